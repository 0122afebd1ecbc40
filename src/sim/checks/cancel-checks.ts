// Cancelled requests hold nothing: at an instance from the receipt of the cancel, on the network one message later.

import type { LengthInstance } from '../../core/instance/length-instance.ts';
import type { InstanceIndex, RequestId } from '../../core/protocol/ids.ts';
import type { Network } from '../network/network.ts';

/** Cancelled requests remembered for each instance. */
const rememberedMax = 4096;

export class CancelChecks {
  /** (instances): by request, the receipt of its cancel. */
  readonly #cancelledUs: readonly Map<RequestId, number>[];
  #any = false;

  constructor(instances: number) {
    this.#cancelledUs = Array.from({ length: instances }, () => new Map<RequestId, number>());
  }

  /** Throws when the instance holds something of the request, except rows of the running step. */
  cancelled(nowUs: number, index: InstanceIndex, { roster, handOffs }: LengthInstance, id: RequestId): void {
    const cancelledUs = this.#cancelledUs[index];
    cancelledUs.set(id, nowUs);
    this.#any = true;
    if (cancelledUs.size > rememberedMax)
      for (const oldest of cancelledUs.keys()) if (cancelledUs.delete(oldest)) break;
    if (handOffs.departures.has(id) || roster.has(id)) throw held(index, id);
    for (const awaited of handOffs.arrivals.awaited()) if (awaited === id) throw held(index, id);
  }

  /** The instance has failed. */
  reset(index: InstanceIndex): void {
    this.#cancelledUs[index].clear();
  }

  /** No cancelled request returns, and transfers from other instances end when they receive the cancel. @param latencyUs maximum message time; infinite where messages are lost */
  check(nowUs: number, instances: readonly LengthInstance[], network: Network, latencyUs: number): void {
    if (!this.#any) return;
    for (const [index, { roster, handOffs }] of instances.entries()) {
      const cancelledUs = this.#cancelledUs[index];
      if (cancelledUs.size === 0) continue;
      for (const { id } of roster.live) if (cancelledUs.has(id)) throw held(index, id);
      for (const { id } of handOffs.arrivals.all()) if (cancelledUs.has(id)) throw held(index, id);
    }
    for (const { kind, from, to, name } of network.transfers) {
      const cancelledUs = this.#cancelledUs[kind === 'prefix' ? to : from].get(name);
      if (cancelledUs !== undefined && nowUs > cancelledUs + (kind === 'prefix' ? latencyUs : 0))
        throw held(from, name);
    }
  }
}

function held(index: InstanceIndex, id: RequestId): Error {
  return new Error(`Requests broken: instance ${index} holds request ${id}, which is cancelled`);
}
