// Reusable arrays of doubles: cheaper than garbage collection of large short-lived ones.

/** Arrays have a power of two of elements, at least 16. They keep their old contents. */
export class Float64Pool {
  /** By the logarithm of the length. */
  readonly #free: Float64Array[][] = Array.from({ length: 32 }, () => []);

  /** An array of at least `length` elements. */
  take(length: number): Float64Array {
    const size = sizeClass(length);
    return this.#free[size].pop() ?? new Float64Array(2 ** size);
  }

  /** Returns an array from `take` that is not in use any more. */
  release(array: Float64Array): void {
    this.#free[sizeClass(array.length)].push(array);
  }
}

function sizeClass(length: number): number {
  return 32 - Math.clz32(Math.max(16, length) - 1);
}
