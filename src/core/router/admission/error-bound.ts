// How late things come against their predictions: a bound that all but few keep, learned as they come.

/** Share that is to keep the bound. */
const share = 0.99;
/** How far one observation moves it, over what may be waited. */
const stepShare = 0.02;

/** Robbins and Monro's quantile: up by `share` of a step for one that comes later, down by the rest for one that does not. */
export class ErrorBound {
  #us = 0;

  /** To add to a prediction. */
  get us(): number {
    return Math.max(0, this.#us);
  }

  /** It came at `actualUs`; `scaleUs`: what it might have waited. */
  observe(predictedUs: number, actualUs: number, scaleUs: number): void {
    const step = stepShare * scaleUs;
    this.#us += actualUs > predictedUs + this.#us ? step * share : -step * (1 - share);
  }
}
