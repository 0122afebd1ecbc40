// What was cancelled holds nothing: at an instance from when it hears so, and on the network one message later.

import type { LengthInstance } from '../../core/instance/length-instance.ts';
import type { InstanceIndex, RequestId } from '../../core/protocol/ids.ts';
import type { Network } from '../network/network.ts';

/** Requests of one instance that are remembered. */
const rememberedMax = 4096;

export class Cancelled {
  /** (instances): by request, when its cancel was heard there. */
  readonly #heardUs: readonly Map<RequestId, number>[];
  #any = false;

  constructor(instances: number) {
    this.#heardUs = Array.from({ length: instances }, () => new Map<RequestId, number>());
  }

  /** Throws where the instance has something of it, but for rows of the step that runs. */
  heard(nowUs: number, index: InstanceIndex, { roster, handOffs }: LengthInstance, id: RequestId): void {
    const heardUs = this.#heardUs[index];
    heardUs.set(id, nowUs);
    this.#any = true;
    if (heardUs.size > rememberedMax) for (const oldest of heardUs.keys()) if (heardUs.delete(oldest)) break;
    if (handOffs.departures.has(id) || roster.has(id)) throw held(index, id);
    for (const awaited of handOffs.arrivals.awaited()) if (awaited === id) throw held(index, id);
  }

  /** The instance starts anew. */
  gone(index: InstanceIndex): void {
    this.#heardUs[index].clear();
  }

  /** It does not come back, and what others send for it ends when they hear so. @param latencyUs of a message, at most; infinite where some are lost */
  check(nowUs: number, instances: readonly LengthInstance[], network: Network, latencyUs: number): void {
    if (!this.#any) return;
    for (const [index, { roster, handOffs }] of instances.entries()) {
      const heardUs = this.#heardUs[index];
      if (heardUs.size === 0) continue;
      for (const { id } of roster.live) if (heardUs.has(id)) throw held(index, id);
      for (const { id } of handOffs.arrivals.all()) if (heardUs.has(id)) throw held(index, id);
    }
    for (const { kind, from, to, name } of network.transfers) {
      const heardUs = this.#heardUs[kind === 'prefix' ? to : from].get(name);
      if (heardUs !== undefined && nowUs > heardUs + (kind === 'prefix' ? latencyUs : 0)) throw held(from, name);
    }
  }
}

function held(index: InstanceIndex, id: RequestId): Error {
  return new Error(`Requests broken: instance ${index} holds request ${id}, which is cancelled`);
}
