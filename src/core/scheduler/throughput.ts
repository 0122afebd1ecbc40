// The rate at which requests end, from which Retry-After is derived.

import { retryAfterMsMax, retryAfterMsMin } from '../protocol/refusals.ts';

/** Ends of requests that the rate is taken over. */
const samples = 64;

export class Throughput {
  readonly #endedUs = new Float64Array(samples);
  #count = 0;

  ended(nowUs: number): void {
    this.#endedUs[this.#count++ % samples] = nowUs;
  }

  /** Time in which half of `backlog` requests end at the observed rate: 1 s to 60 s, and 1 s before two requests have ended. */
  retryAfterMs(nowUs: number, backlog: number): number {
    const known = Math.min(samples, this.#count);
    if (known < 2) return retryAfterMsMin;
    const oldestUs = this.#endedUs[this.#count > samples ? this.#count % samples : 0];
    const usPerRequest = (nowUs - oldestUs) / known;
    return Math.round(Math.min(retryAfterMsMax, Math.max(retryAfterMsMin, (usPerRequest * backlog) / 2 / 1_000)));
  }
}
