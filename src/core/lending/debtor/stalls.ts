// Stalls: running sequences that cannot grow until borrowed memory arrives, since when, and their total time.
import type { Sequence } from '../../scheduler/batching/sequence.ts';

interface Stall {
  readonly sinceUs: number;
  /** Recorded by the plan in progress. */
  recorded: boolean;
}

export class Stalls {
  readonly #stalls = new Map<Sequence, Stall>();
  count = 0;
  us = 0;

  get size(): number {
    return this.#stalls.size;
  }

  /** Records a sequence that has no memory to grow. True if the stall is new. */
  record(nowUs: number, sequence: Sequence): boolean {
    const stall = this.#stalls.get(sequence);
    if (stall === undefined) {
      this.#stalls.set(sequence, { sinceUs: nowUs, recorded: true });
      this.count++;
      return true;
    }
    stall.recorded = true;
    return false;
  }

  /** The plan is complete: stalls that it did not record, or whose sequences have rows, are over. */
  planned(nowUs: number): void {
    for (const [sequence, stall] of this.#stalls) {
      if (!stall.recorded || sequence.planned > 0) this.end(nowUs, sequence);
      stall.recorded = false;
    }
  }

  /** Sequences that have stalled for `us` or longer. */
  lasting(nowUs: number, us: number): readonly Sequence[] {
    return [...this.#stalls].flatMap(([sequence, { sinceUs }]) => (nowUs - sinceUs >= us ? [sequence] : []));
  }

  end(nowUs: number, sequence: Sequence): void {
    const stall = this.#stalls.get(sequence);
    if (stall === undefined) return;
    this.us += nowUs - stall.sinceUs;
    this.#stalls.delete(sequence);
  }
}
