// How far the load of the pool that prefills and that of the pool that decodes swing against each other.
import type { PoolLoads } from '../cluster/gate.ts';

/** Looked at so often. */
const intervalUs = 1_000_000;

export class Swing {
  #nextUs = 0;
  #count = 0;
  #mean = 0;
  #squares = 0;
  #prefill = 0;
  #decode = 0;

  /** When to look next, while requests come. */
  get nextUs(): number {
    return this.#nextUs;
  }

  look(loads: PoolLoads | undefined): void {
    this.#nextUs += intervalUs;
    if (loads === undefined) return;
    const difference = loads.prefill - loads.decode;
    this.#count++;
    this.#prefill += loads.prefill;
    this.#decode += loads.decode;
    // Welford's.
    const delta = difference - this.#mean;
    this.#mean += delta / this.#count;
    this.#squares += delta * (difference - this.#mean);
  }

  /** Means of both loads, and the standard deviation of their difference. */
  get figures() {
    const count = Math.max(1, this.#count);
    return {
      prefillMean: this.#prefill / count,
      decodeMean: this.#decode / count,
      differenceDeviation: Math.sqrt(this.#squares / count),
    };
  }
}
