// How much those who decode together grow before one of them leaves.

/** Outputs that the mean remembers. */
const rememberedMax = 256;
/** A batch of n with outputs of mean m loses one every m / n steps, and grows by n tokens in each: by m. Few wait for three times as long. */
const means = 3;

export class DecodeGrowth {
  #mean = 0;
  #known = 0;

  /** Of all of them together. */
  get tokens(): number {
    return means * this.#mean;
  }

  observe(outputTokens: number): void {
    this.#known = Math.min(rememberedMax, this.#known + 1);
    this.#mean += (outputTokens - this.#mean) / this.#known;
  }
}
