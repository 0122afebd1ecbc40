// Running sequences that cannot grow because memory is full and more is on its way: which, since when, and the total
// time.
import type { Sequence } from '../../scheduler/batching/sequence.ts';

interface Stall {
  readonly sinceUs: number;
  /** Recorded by the plan in progress. */
  met: boolean;
}

export class Stalls {
  readonly #stalls = new Map<Sequence, Stall>();
  count = 0;
  us = 0;

  get size(): number {
    return this.#stalls.size;
  }

  /** Records a sequence without free memory; true when the stall is new. */
  record(nowUs: number, sequence: Sequence): boolean {
    const stall = this.#stalls.get(sequence);
    if (stall === undefined) {
      this.#stalls.set(sequence, { sinceUs: nowUs, met: true });
      this.count++;
      return true;
    }
    stall.met = true;
    return false;
  }

  /** The plan is complete: sequences that it did not record, or gave rows to, have memory again. */
  planned(nowUs: number): void {
    for (const [sequence, stall] of this.#stalls) {
      if (!stall.met || sequence.planned > 0) this.end(nowUs, sequence);
      stall.met = false;
    }
  }

  end(nowUs: number, sequence: Sequence): void {
    const stall = this.#stalls.get(sequence);
    if (stall === undefined) return;
    this.us += nowUs - stall.sinceUs;
    this.#stalls.delete(sequence);
  }
}
