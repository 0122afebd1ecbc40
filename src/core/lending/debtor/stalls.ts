// Sequences that run and cannot grow, because memory is full and more is on its way: who they are, since when, and how long that took in all.
import type { Sequence } from '../../scheduler/batching/sequence.ts';

interface Stall {
  readonly sinceUs: number;
  /** Met in the plan that is being made. */
  met: boolean;
}

export class Stalls {
  readonly #stalls = new Map<Sequence, Stall>();
  count = 0;
  us = 0;

  get size(): number {
    return this.#stalls.size;
  }

  /** A plan meets a sequence that has no room: true when it had until now. */
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

  /** A plan is made: whom it did not meet has room again, and so has who got it from others. */
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
