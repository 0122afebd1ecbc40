// A network that loses, doubles, delays and cuts off what a conductor, a gManager and instances say to one another.
import type { InstanceIndex } from '../../core/protocol/ids.ts';
import type { Prng } from '../../util/prng.ts';
import type { Fault, FaultName } from './faults.ts';

export type Party = 'conductor' | 'gmanager' | InstanceIndex;

export class FaultyNetwork {
  readonly #prng: Prng;
  readonly #later: (delayUs: number, action: () => void) => void;
  readonly #count: (fault: FaultName) => void;
  #faults: readonly Fault[];
  /** Those on one side of each partition. */
  readonly #cuts = new Set<readonly Party[]>();
  #longestUs = 0;

  constructor(
    prng: Prng,
    faults: readonly Fault[],
    later: (delayUs: number, action: () => void) => void,
    count: (fault: FaultName) => void,
  ) {
    this.#prng = prng;
    this.#faults = faults.filter(({ kind }) => kind === 'loss' || kind === 'duplication' || kind === 'delay');
    this.#later = later;
    this.#count = count;
  }

  /** What a message has taken, at most. */
  get longestUs(): number {
    return this.#longestUs;
  }

  /** From now on nothing goes wrong any more. */
  heal(): void {
    this.#faults = [];
    this.#cuts.clear();
  }

  /** From now on nothing comes from these to the others, or from the others to these, until the same are joined. */
  cut(parties: readonly Party[]): void {
    this.#cuts.add(parties);
  }

  /** Other partitions last: nobody loses anybody by it. */
  join(parties: readonly Party[]): void {
    this.#cuts.delete(parties);
  }

  canHear(from: Party, to: Party): boolean {
    for (const parties of this.#cuts) if (parties.includes(from) !== parties.includes(to)) return false;
    return true;
  }

  /** What stands between the two when it arrives decides whether it does. */
  send(from: Party, to: Party, latencyUs: number, deliver: () => void): void {
    let copies = 1;
    let delayUs = latencyUs;
    for (const { kind, ratio, byUs } of this.#faults) {
      if (!this.#prng.chance(ratio)) continue;
      if (kind === 'loss') copies = 0;
      else if (kind === 'duplication') copies *= 2;
      else delayUs += this.#prng.exponentialUs(byUs);
      this.#count(kind === 'loss' || kind === 'duplication' ? kind : 'delay');
    }
    this.#longestUs = Math.max(this.#longestUs, delayUs);
    for (let i = 0; i < copies; i++)
      this.#later(i === 0 ? delayUs : latencyUs, () => {
        if (this.canHear(from, to)) deliver();
      });
  }
}
