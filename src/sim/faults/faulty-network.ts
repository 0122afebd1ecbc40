// A network that loses, duplicates, delays and partitions the messages of a conductor, a gManager and instances.
import type { InstanceIndex } from '../../core/protocol/ids.ts';
import type { Prng } from '../../util/prng.ts';
import type { EventQueue } from '../engine/event-queue.ts';
import { countFault, type Fault, type FaultCounts } from './fault-plan.ts';

export type Endpoint = 'conductor' | 'gmanager' | InstanceIndex;

export class FaultyNetwork {
  readonly #prng: Prng;
  readonly #queue: EventQueue;
  readonly #injected: FaultCounts;
  #faults: readonly Fault[] = [];
  /** The endpoints on one side of each partition. */
  readonly #partitions = new Set<readonly Endpoint[]>();
  #longestUs = 0;

  /** @param injected counts the faults by name */
  constructor(prng: Prng, faults: readonly Fault[], queue: EventQueue, injected: FaultCounts) {
    this.#prng = prng;
    this.#queue = queue;
    this.#injected = injected;
    this.setMessageFaults(faults);
  }

  /** The longest delivery time of a message so far. */
  get longestUs(): number {
    return this.#longestUs;
  }

  /** Sets the loss, duplication and delay of messages from now on. */
  setMessageFaults(faults: readonly Fault[]): void {
    this.#faults = faults.filter(({ kind }) => kind === 'loss' || kind === 'duplication' || kind === 'delay');
  }

  /** Ends all faults and partitions. */
  heal(): void {
    this.#faults = [];
    this.#partitions.clear();
  }

  /** Cuts these off from all other endpoints until `reconnect` with the same array. */
  partition(endpoints: readonly Endpoint[]): void {
    this.#partitions.add(endpoints);
  }

  /** Ends one partition; the others continue. */
  reconnect(endpoints: readonly Endpoint[]): void {
    this.#partitions.delete(endpoints);
  }

  isConnected(from: Endpoint, to: Endpoint): boolean {
    for (const endpoints of this.#partitions) if (endpoints.includes(from) !== endpoints.includes(to)) return false;
    return true;
  }

  /** A message arrives if the two endpoints are connected at the time of arrival. */
  send(from: Endpoint, to: Endpoint, latencyUs: number, deliver: () => void): void {
    let copies = 1;
    let delayUs = latencyUs;
    for (const { kind, ratio, byUs } of this.#faults) {
      if (!this.#prng.chance(ratio)) continue;
      if (kind === 'loss') copies = 0;
      else if (kind === 'duplication') copies *= 2;
      else delayUs += this.#prng.exponentialUs(byUs);
      countFault(this.#injected, kind === 'loss' || kind === 'duplication' ? kind : 'delay');
    }
    this.#longestUs = Math.max(this.#longestUs, delayUs);
    const arrive = () => {
      if (this.isConnected(from, to)) deliver();
    };
    for (let i = 0; i < copies; i++) this.#queue.after(i === 0 ? delayUs : latencyUs, arrive);
  }
}
