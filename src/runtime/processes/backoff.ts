// Exponential backoff before restarts; it resets after a long run.

const delayMsMin = 500;
const delayMsMax = 30_000;
/** A run of this length resets the delay. */
const stableMs = 60_000;

export class Backoff {
  #delayMs = delayMsMin;

  /** The delay before the next start, in milliseconds. @param lastedMs duration of the run that ended */
  next(lastedMs: number): number {
    const delayMs = lastedMs >= stableMs ? delayMsMin : this.#delayMs;
    this.#delayMs = Math.min(delayMsMax, 2 * delayMs);
    return delayMs;
  }
}
