// The rate at which requests end, from which Retry-After is derived.

import { retryAfterMsMax, retryAfterMsMin } from '../protocol/refusals.ts';

/** Number of last ends over which the rate is taken. */
const samples = 64;

export class Throughput {
  readonly #endedUs = new Float64Array(samples);
  #count = 0;

  ended(nowUs: number): void {
    this.#endedUs[this.#count++ % samples] = nowUs;
  }

  /** Time in which half of `backlog` requests end at the observed rate: 1 s to 60 s, and 1 s before two requests have ended. */
  retryAfterMs(nowUs: number, backlog: number): number {
    const count = Math.min(samples, this.#count);
    if (count < 2) return retryAfterMsMin;
    const oldestUs = this.#endedUs[this.#count > samples ? this.#count % samples : 0];
    const usPerRequest = (nowUs - oldestUs) / count;
    return Math.round(Math.min(retryAfterMsMax, Math.max(retryAfterMsMin, (usPerRequest * backlog) / 2 / 1_000)));
  }
}
