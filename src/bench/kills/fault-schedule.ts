// The order of injected faults: each kind occurs once before any occurs again, in an order that the seed chooses.
import { Prng } from '../../util/prng.ts';

export class FaultSchedule<Kind> {
  readonly #kinds: readonly Kind[];
  readonly #prng: Prng;
  /** Of the current round. */
  #left: Kind[] = [];

  /** @param kinds at least one */
  constructor(kinds: readonly Kind[], seed: number) {
    this.#kinds = kinds;
    this.#prng = new Prng(seed, 1);
  }

  next(): Kind {
    if (this.#left.length === 0) this.#left = [...this.#kinds];
    const [kind] = this.#left.splice(this.victim(this.#left.length), 1);
    if (kind === undefined) throw new Error('Cannot choose a fault: there are no kinds');
    return kind;
  }

  /** Which of so many processes has the fault, from 0. */
  victim(processes: number): number {
    return this.#prng.integer(0, processes - 1);
  }
}
