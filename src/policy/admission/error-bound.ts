// How late things come against their predictions: what a share of them keeps, learned as they come.

export interface BoundSettings {
  /** Share that is to keep the bound. */
  readonly share: number;
  /** How far one observation moves it, over what may be waited. */
  readonly stepShare: number;
  /** Infinity below: predictions may be found to be too long. */
  readonly leastUs: number;
}

/** What all but one of a hundred keep. */
export const lateOnly: BoundSettings = { share: 0.99, stepShare: 0.02, leastUs: 0 };
/** What half of them meet: without it a prediction is off to one side. */
export const middle: BoundSettings = { share: 0.5, stepShare: 0.002, leastUs: Number.NEGATIVE_INFINITY };

/** Robbins and Monro's quantile: up by `share` of a step for one that comes later, down by the rest for one that does not. */
export class ErrorBound {
  readonly #settings: BoundSettings;
  #us = 0;

  constructor(settings: BoundSettings) {
    this.#settings = settings;
  }

  /** To add to a prediction. */
  get us(): number {
    return Math.max(this.#settings.leastUs, this.#us);
  }

  /** It came at `actualUs`; `scaleUs`: what it might have waited. */
  observe(predictedUs: number, actualUs: number, scaleUs: number): void {
    const { share, stepShare } = this.#settings;
    const step = stepShare * scaleUs;
    this.#us += actualUs > predictedUs + this.#us ? step * share : -step * (1 - share);
  }
}
