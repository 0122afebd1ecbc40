// Deterministic random numbers: each purpose has its own stream, so that more draws of one do not change another.
import { counterUniform } from './counter-random.ts';
import { exactLog } from './exact-math.ts';

/**
 * A pure function of (seed, stream, number of draws), with the same bits on any machine. Streams of one seed are
 * independent.
 */
export class Prng {
  readonly #seed: number;
  readonly #stream: number;
  #drawn = 0;
  #spareNormal: number | undefined;

  constructor(seed: number, stream: number) {
    this.#seed = seed;
    this.#stream = stream;
  }

  /** In [0, 1). */
  uniform(): number {
    return counterUniform(this.#seed, this.#stream, this.#drawn++);
  }

  /** True with this probability. */
  chance(probability: number): boolean {
    return this.uniform() < probability;
  }

  /** An integer of [min, max]. */
  integer(min: number, max: number): number {
    return min + Math.floor(this.uniform() * (max - min + 1));
  }

  /** Of mean 1. */
  exponential(): number {
    return -exactLog(1 - this.uniform());
  }

  /** An exponentially distributed time in whole microseconds. */
  exponentialUs(meanUs: number): number {
    return Math.floor(this.exponential() * meanUs);
  }

  /** Of mean 0 and deviation 1: Marsaglia's polar method; IEEE 754 rounds its square root exactly. */
  normal(): number {
    const spare = this.#spareNormal;
    this.#spareNormal = undefined;
    if (spare !== undefined) return spare;
    for (;;) {
      const x = 2 * this.uniform() - 1;
      const y = 2 * this.uniform() - 1;
      const square = x * x + y * y;
      if (square >= 1 || square === 0) continue;
      const scale = Math.sqrt((-2 * exactLog(square)) / square);
      this.#spareNormal = y * scale;
      return x * scale;
    }
  }
}
