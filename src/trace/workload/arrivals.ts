// Arrival times: constant, Poisson, or in bursts.
import type { Prng } from '../../util/prng.ts';

export type Arrivals =
  /** Independent arrivals. */
  | { readonly kind: 'poisson'; readonly requestsPerSecond: number }
  /** At equal distances. */
  | { readonly kind: 'constant'; readonly requestsPerSecond: number }
  /**
   * Alternating phases with (Poisson) and without arrivals, of exponential lengths with these means. The rate is the
   * overall mean.
   */
  | {
      readonly kind: 'bursts';
      readonly requestsPerSecond: number;
      readonly onSeconds: number;
      readonly offSeconds: number;
    };

/** Times in whole microseconds, from 0 on. */
export class ArrivalClock {
  readonly #arrivals: Arrivals;
  readonly #prng: Prng;
  #count = 0;
  #nowUs = 0;
  /** Remaining time of the phase with arrivals. */
  #onUs = 0;

  constructor(arrivals: Arrivals, prng: Prng) {
    this.#arrivals = arrivals;
    this.#prng = prng;
    if (arrivals.kind === 'bursts') this.#onUs = this.#phaseUs(arrivals.onSeconds);
  }

  nextUs(): number {
    const { kind, requestsPerSecond } = this.#arrivals;
    if (kind === 'constant') return Math.round((this.#count++ * 1e6) / requestsPerSecond);
    if (kind === 'poisson') this.#nowUs += this.#phaseUs(1 / requestsPerSecond);
    else this.#burst(this.#arrivals);
    return this.#nowUs;
  }

  #burst({ requestsPerSecond, onSeconds, offSeconds }: Extract<Arrivals, { kind: 'bursts' }>): void {
    const share = onSeconds / (onSeconds + offSeconds);
    let gapUs = this.#phaseUs(share / requestsPerSecond);
    while (gapUs > this.#onUs) {
      gapUs -= this.#onUs;
      this.#nowUs += this.#onUs + this.#phaseUs(offSeconds);
      this.#onUs = this.#phaseUs(onSeconds);
    }
    this.#onUs -= gapUs;
    this.#nowUs += gapUs;
  }

  #phaseUs(meanSeconds: number): number {
    return Math.round(this.#prng.exponential() * meanSeconds * 1e6);
  }
}
