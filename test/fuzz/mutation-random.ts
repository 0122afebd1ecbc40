// A seeded pseudo-random number generator for mutations of input.

/** The same seed gives the same sequence of numbers. */
export class MutationRandom {
  #state: number;

  constructor(seed: number) {
    this.#state = (seed ^ 0x5eed1e55) >>> 0;
  }

  /** An integer of at least 0 and below `bound`. */
  below(bound: number): number {
    this.#state = (this.#state + 0x9e3779b9) >>> 0;
    let mixed = Math.imul(this.#state ^ (this.#state >>> 16), 0x85ebca6b);
    mixed = Math.imul(mixed ^ (mixed >>> 13), 0xc2b2ae35);
    return Math.floor((((mixed ^ (mixed >>> 16)) >>> 0) / 2 ** 32) * bound);
  }

  pick<T>(items: readonly T[]): T {
    const item = items[this.below(items.length)];
    if (item === undefined) throw new Error('Cannot choose: the list is empty');
    return item;
  }

  real(low: number, high: number): number {
    return low + (high - low) * (this.below(1_000_000) / 1_000_000);
  }
}
