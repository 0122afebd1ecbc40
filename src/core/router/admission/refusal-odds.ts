// The probability of a refusal on the decode instance as a function of the forecast load, learned from the requests that reached it.

import { exactExp, exactLog } from '../../../util/exact-math.ts';

/** Loads are measured in these units from 1. */
const unit = 0.05;
/** Learning rate. */
const rate = 0.02;
/** A larger load never makes a refusal less likely. */
const slopeMin = 0.2;
/** Share of the fit that each unobserved refusal decays. */
const decayRate = 0.005;

/**
 * Logistic regression by stochastic gradient descent. With accurate forecasts, half of the requests are refused near load 1, and the odds are
 * steep around it. With inaccurate forecasts hardly any load has such odds, and hardly any request is refused before prefill.
 */
export class RefusalOdds {
  #intercept = 0;
  #slope = 1;

  /** A request with this forecast load reached its decode instance. */
  observe(load: number, refused: boolean): void {
    const x = (load - 1) / unit;
    const error = Number(refused) - this.of(load);
    this.#intercept += rate * error;
    this.#slope = Math.max(slopeMin, this.#slope + rate * error * Math.max(-20, Math.min(20, x)));
  }

  /** A request was refused before prefill, unobserved: the fit moves back to its prior, so that a past overload does not cause refusals for ever. */
  decay(): void {
    this.#intercept -= decayRate * this.#intercept;
    this.#slope += decayRate * (1 - this.#slope);
  }

  /** Share of requests with this load that are refused. */
  of(load: number): number {
    const x = (load - 1) / unit;
    return 1 / (1 + exactExp(-Math.max(-30, Math.min(30, this.#intercept + this.#slope * x))));
  }

  /** The load from which on at least this share is refused. */
  loadAt(share: number): number {
    return 1 + (unit * (exactLog(share / (1 - share)) - this.#intercept)) / this.#slope;
  }
}
