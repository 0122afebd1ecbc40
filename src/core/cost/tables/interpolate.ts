// Interpolation of measured points by straight lines, with sums and products only, so that results are bit-identical
// on every machine.

/** Index i of the segment xs[i]..xs[i+1] for x: the last segment behind the end, the first one before the start. */
function segmentOf(xs: Float64Array, x: number): number {
  let low = 0;
  let high = xs.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] <= x) low = middle;
    else high = middle;
  }
  return low;
}

/** Position of x in its segment: 0 before the first point, above 1 behind the last. */
function shareOf(xs: Float64Array, segment: number, x: number): number {
  return xs.length === 1 ? 0 : Math.max(0, (x - xs[segment]) / (xs[segment + 1] - xs[segment]));
}

/**
 * A line through points of rising x. It is level before the first point, and continues the last segment behind the
 * last, but never falls there.
 */
export class Line {
  readonly #xs: Float64Array;
  readonly #ys: Float64Array;

  /** @param xs rising, at least one */
  constructor(xs: ArrayLike<number>, ys: ArrayLike<number>) {
    this.#xs = Float64Array.from(xs);
    this.#ys = Float64Array.from(ys);
  }

  at(x: number): number {
    const segment = segmentOf(this.#xs, x);
    const from = this.#ys[segment];
    if (this.#xs.length === 1) return from;
    const share = shareOf(this.#xs, segment, x);
    const rise = this.#ys[segment + 1] - from;
    return share > 1 ? from + rise + Math.max(0, rise) * (share - 1) : from + rise * share;
  }
}

/** Bilinear interpolation over a full grid: lines in y, and a line in x between them. */
export class Surface {
  readonly #xs: Float64Array;
  readonly #ys: Float64Array;
  /** (xs, ys) */
  readonly #values: Float64Array;

  /** @param xs rising, like `ys`; at least two of each */
  constructor(xs: ArrayLike<number>, ys: ArrayLike<number>, values: ArrayLike<number>) {
    this.#xs = Float64Array.from(xs);
    this.#ys = Float64Array.from(ys);
    this.#values = Float64Array.from(values);
  }

  at(x: number, y: number): number {
    const i = segmentOf(this.#xs, x);
    const j = segmentOf(this.#ys, y);
    const shareX = shareOf(this.#xs, i, x);
    const shareY = shareOf(this.#ys, j, y);
    const at = i * this.#ys.length + j;
    const near = this.#values[at] + (this.#values[at + 1] - this.#values[at]) * shareY;
    const below = at + this.#ys.length;
    const far = this.#values[below] + (this.#values[below + 1] - this.#values[below]) * shareY;
    return near + (far - near) * shareX;
  }
}
