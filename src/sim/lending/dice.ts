// Random choices of a world, each a function of (seed, how many were made before).
import { counterUniform } from '../../util/counter-random.ts';

export class Prng {
  readonly #seed: number;
  readonly #stream: number;
  #count = 0;

  /** Streams of one seed are independent. */
  constructor(seed: number, stream: number) {
    this.#seed = seed;
    this.#stream = stream;
  }

  /** In [0, 1). */
  next(): number {
    return counterUniform(this.#seed, this.#stream, this.#count++);
  }

  chance(ratio: number): boolean {
    return this.next() < ratio;
  }

  /** An integer of `from..to`, both included. */
  between(from: number, to: number): number {
    return from + Math.floor(this.next() * (to - from + 1));
  }

  /** Most are short, few much longer: exponential around `mean`. */
  around(mean: number): number {
    return Math.floor(-Math.log(1 - this.next()) * mean);
  }
}
