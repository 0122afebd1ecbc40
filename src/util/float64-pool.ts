// Arrays of doubles that are used again: taking and giving back costs less than the collector's work on large short-lived ones.

/** Arrays have a power of two of elements, 16 at least; what they held before is still in them. */
export class Float64Pool {
  /** By the logarithm of the length. */
  readonly #free: Float64Array[][] = Array.from({ length: 32 }, () => []);

  /** An array of at least `length` elements. */
  take(length: number): Float64Array {
    const size = sizeClass(length);
    return this.#free[size].pop() ?? new Float64Array(2 ** size);
  }

  /** Nobody uses the array any more; it came from `take`. */
  give(array: Float64Array): void {
    this.#free[sizeClass(array.length)].push(array);
  }
}

function sizeClass(length: number): number {
  return 32 - Math.clz32(Math.max(16, length) - 1);
}
