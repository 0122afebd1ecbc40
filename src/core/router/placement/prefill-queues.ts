// Predicted wait of a new prefill on each instance, corrected by how long recent prefills took.

/** Predicted work of the prior: an instance starts out as fast as predicted. */
const priorUs = 1e6;
/** Share of the earlier observations that remains after each prefill. */
const decay = 0.95;

/**
 * The work of an instance is the predicted time of its prefills that have not ended. The time from the end of one prefill to the end of the
 * next also contains decode steps, waits for memory and prediction errors. The ratio of this time to the prediction, over recent prefills,
 * scales the remaining work.
 */
export class PrefillQueues {
  readonly #workUs: Float64Array;
  readonly #pending: Int32Array;
  /** (instances): start of the running prefill, as far as it is reported. */
  readonly #sinceUs: Float64Array;
  /** (instances): decayed sums of observed and of predicted times. */
  readonly #tookUs: Float64Array;
  readonly #predictedUs: Float64Array;

  constructor(instances: number) {
    this.#workUs = new Float64Array(instances);
    this.#pending = new Int32Array(instances);
    this.#sinceUs = new Float64Array(instances);
    this.#tookUs = new Float64Array(instances).fill(priorUs);
    this.#predictedUs = new Float64Array(instances).fill(priorUs);
  }

  /** (instances): prefills that have not ended. */
  get pending(): ArrayLike<number> {
    return this.#pending;
  }

  /** A prefill was sent. */
  add(nowUs: number, instance: number, predictedUs: number): void {
    if (this.#pending[instance] === 0) this.#sinceUs[instance] = nowUs;
    this.#pending[instance]++;
    this.#workUs[instance] += predictedUs;
  }

  /** The cached part of a pending prompt differs from the prediction. */
  correct(instance: number, beforeUs: number, afterUs: number): void {
    this.#workUs[instance] += afterUs - beforeUs;
  }

  /** A prefill has ended. @param readyUs when its prefix was there: it could not start before */
  end(nowUs: number, instance: number, predictedUs: number, readyUs: number): void {
    const tookUs = Math.max(0, nowUs - Math.max(this.#sinceUs[instance], readyUs));
    this.#tookUs[instance] = this.#tookUs[instance] * decay + tookUs;
    this.#predictedUs[instance] = this.#predictedUs[instance] * decay + predictedUs;
    this.#sinceUs[instance] = nowUs;
    this.remove(instance, predictedUs);
  }

  /**
   * The share of a group member has ended. Its own time is not observable, since members wait for one another. It counts as predicted, and
   * not in the time of the next prefill that ends on this instance.
   */
  endShare(instance: number, predictedUs: number): void {
    this.#sinceUs[instance] += predictedUs;
    this.remove(instance, predictedUs);
  }

  /** A pending prefill is cancelled. */
  remove(instance: number, predictedUs: number): void {
    this.#pending[instance]--;
    this.#workUs[instance] = this.#pending[instance] === 0 ? 0 : this.#workUs[instance] - predictedUs;
  }

  /** Observed over predicted time of recent prefills. */
  slowness(instance: number): number {
    return this.#tookUs[instance] / this.#predictedUs[instance];
  }

  /** Writes the predicted wait of a prefill that arrives now: (instances) microseconds. */
  predict(nowUs: number, out: Float64Array): void {
    for (let i = 0; i < out.length; i++) {
      const pending = this.#pending[i];
      if (pending === 0) {
        out[i] = 0;
        continue;
      }
      const leftUs = this.slowness(i) * this.#workUs[i];
      // The running prefill has done at most its share of the work, however long it has been delayed.
      out[i] = leftUs - Math.max(0, Math.min(nowUs - this.#sinceUs[i], leftUs / pending));
    }
  }
}
