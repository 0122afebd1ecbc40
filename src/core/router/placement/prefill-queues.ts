// How long a prefill that comes now would wait at each instance: predictions, corrected by how long prefills took.

/** A prior of so much predicted work for each instance being as fast as predicted, and the share of what was learned that each prefill leaves. */
const priorUs = 1e6;
const kept = 0.95;

/**
 * Work is predicted time of prefills that were sent and have not ended. Decode beside them, waiting for memory and wrong predictions show in
 * how long each took from when the one before ended: the ratio, over the recent ones of an instance, scales what it has left.
 */
export class PrefillQueues {
  readonly #workUs: Float64Array;
  readonly #pending: Int32Array;
  /** When the prefill that runs now began, as far as was heard. */
  readonly #sinceUs: Float64Array;
  readonly #tookUs: Float64Array;
  readonly #predictedUs: Float64Array;

  constructor(instances: number) {
    this.#workUs = new Float64Array(instances);
    this.#pending = new Int32Array(instances);
    this.#sinceUs = new Float64Array(instances);
    this.#tookUs = new Float64Array(instances).fill(priorUs);
    this.#predictedUs = new Float64Array(instances).fill(priorUs);
  }

  /** (instances): prefills that were sent and have not ended. */
  get pending(): ArrayLike<number> {
    return this.#pending;
  }

  /** A prefill was sent. */
  add(nowUs: number, instance: number, predictedUs: number): void {
    if (this.#pending[instance] === 0) this.#sinceUs[instance] = nowUs;
    this.#pending[instance]++;
    this.#workUs[instance] += predictedUs;
  }

  /** A prefill that was sent takes another time: more or less is cached. */
  correct(instance: number, beforeUs: number, afterUs: number): void {
    this.#workUs[instance] += afterUs - beforeUs;
  }

  /** A prefill ended with its first token. It could not begin before `readyUs`, when its prefix was there. */
  end(nowUs: number, instance: number, predictedUs: number, readyUs: number): void {
    const tookUs = Math.max(0, nowUs - Math.max(this.#sinceUs[instance], readyUs));
    this.#tookUs[instance] = this.#tookUs[instance] * kept + tookUs;
    this.#predictedUs[instance] = this.#predictedUs[instance] * kept + predictedUs;
    this.#sinceUs[instance] = nowUs;
    this.remove(instance, predictedUs);
  }

  /**
   * A share of a prefill ended, of which others did the rest: what it took is not known, as they wait for one another. It is taken to have run as
   * predicted, beside what the next one that ends here took.
   */
  endShare(instance: number, predictedUs: number): void {
    this.#sinceUs[instance] += predictedUs;
    this.remove(instance, predictedUs);
  }

  /** A prefill will not be run to its end. */
  remove(instance: number, predictedUs: number): void {
    this.#pending[instance]--;
    this.#workUs[instance] = this.#pending[instance] === 0 ? 0 : this.#workUs[instance] - predictedUs;
  }

  /** How many times the predicted time a prefill takes. */
  slowness(instance: number): number {
    return this.#tookUs[instance] / this.#predictedUs[instance];
  }

  /** Writes the predicted wait at each instance: (instances) microseconds. */
  predict(nowUs: number, out: Float64Array): void {
    for (let i = 0; i < out.length; i++) {
      const pending = this.#pending[i];
      if (pending === 0) {
        out[i] = 0;
        continue;
      }
      const leftUs = this.slowness(i) * this.#workUs[i];
      // Of the one that runs some is done: its share of the whole at most, however long it has been held up.
      out[i] = leftUs - Math.max(0, Math.min(nowUs - this.#sinceUs[i], leftUs / pending));
    }
  }
}
