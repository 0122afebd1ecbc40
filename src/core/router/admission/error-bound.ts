// An upper bound on the error of all but a small share of the predictions, learned online.

/** Share of the observations within the bound. */
const share = 0.99;
/** Step of the bound for each observation, over the scale of the observation. */
const stepShare = 0.02;

/** Quantile by stochastic approximation (Robbins and Monro, 1951): up by `share` of a step for a later value, else down by the rest. */
export class ErrorBound {
  #us = 0;

  /** Microseconds to add to a prediction. */
  get us(): number {
    return Math.max(0, this.#us);
  }

  /** @param scaleUs the bound on the predicted value, which scales the step */
  observe(predictedUs: number, actualUs: number, scaleUs: number): void {
    const step = stepShare * scaleUs;
    this.#us += actualUs > predictedUs + this.#us ? step * share : -step * (1 - share);
  }
}
