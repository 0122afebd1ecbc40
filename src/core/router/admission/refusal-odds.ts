// How likely a request is to be refused where it decodes, by the load that was predicted for it: learned from those that got there.
import { exactExp, exactLog } from '../../../util/exact-math.ts';

/** Loads are looked at in parts of this size about full. */
const unit = 0.05;
/** How far one request moves what is thought. */
const rate = 0.02;
/** A larger load never makes a refusal less likely. */
const slopeMin = 0.2;
/** What is not seen is forgotten: how much of it with each request that is refused unseen. */
const forgotten = 0.005;

/**
 * Logistic regression by stochastic gradient. Where predictions say much, the load at which half are refused is near 1 and the odds are steep about it;
 * where they say little, hardly any load is likely to be refused, and so none is refused for what may never be.
 */
export class RefusalOdds {
  #intercept = 0;
  #slope = 1;

  /** A request of such a predicted load came to where it decodes. */
  observe(load: number, refused: boolean): void {
    const x = (load - 1) / unit;
    const error = Number(refused) - this.of(load);
    this.#intercept += rate * error;
    this.#slope = Math.max(slopeMin, this.#slope + rate * error * Math.max(-20, Math.min(20, x)));
  }

  /** A request was refused before anybody could see: so that nobody is shut out for what once was. */
  decay(): void {
    this.#intercept -= forgotten * this.#intercept;
    this.#slope += forgotten * (1 - this.#slope);
  }

  /** Share of requests of such a load that are refused. */
  of(load: number): number {
    const x = (load - 1) / unit;
    return 1 / (1 + exactExp(-Math.max(-30, Math.min(30, this.#intercept + this.#slope * x))));
  }

  /** The load from which on at least a share is refused. */
  loadAt(share: number): number {
    return 1 + (unit * (exactLog(share / (1 - share)) - this.#intercept)) / this.#slope;
  }
}
