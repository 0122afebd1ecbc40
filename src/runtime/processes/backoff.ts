// How long to wait before what has ended is started anew: longer each time, until it has lasted.

const delayMsMin = 500;
const delayMsMax = 30_000;
/** What has lasted for so long has not ended because of how it was started. */
const soundMs = 60_000;

export class Backoff {
  #delayMs = delayMsMin;

  /** @param lastedMs what ended now */
  next(lastedMs: number): number {
    const delayMs = lastedMs >= soundMs ? delayMsMin : this.#delayMs;
    this.#delayMs = Math.min(delayMsMax, 2 * delayMs);
    return delayMs;
  }
}
