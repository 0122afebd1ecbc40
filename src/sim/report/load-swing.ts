// How far the load of the pool that prefills and that of the pool that decodes swing against each other.
import type { PoolLoads } from '../../core/router/admission/admission-controller.ts';

/** Looked at so often. */
const intervalUs = 1_000_000;

export class LoadSwing {
  #nextUs = 0;
  #count = 0;
  #mean = 0;
  #squares = 0;
  #prefill = 0;
  #decode = 0;

  /** Looks at equal distances, as long as requests come. @param loadsAt once everything before has happened */
  lookUntil(timeUs: number, loadsAt: (atUs: number) => PoolLoads | undefined): void {
    for (; this.#nextUs < timeUs; this.#nextUs += intervalUs) this.#look(loadsAt(this.#nextUs));
  }

  #look(loads: PoolLoads | undefined): void {
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
