// Distributions of any length in fixed memory: the width of a bucket is a fixed share of its value.

/** Buckets of a doubling: values are exact to a thousandth. */
const bucketBits = 10;
const perDoubling = 2 ** bucketBits;
const doublings = 54;

/** The number of values of [from, to]. */
export interface HistogramBin {
  readonly from: number;
  readonly to: number;
  readonly count: number;
}

/** Of integers 0..2^53. Mean and extremes are exact, percentiles within 0.1 %. */
export class Histogram {
  readonly #counts = new Uint32Array(doublings * perDoubling);
  #count = 0;
  #sum = 0;
  #max = 0;

  get count(): number {
    return this.#count;
  }

  add(value: number): void {
    this.#counts[bucketOf(value)]++;
    this.#count++;
    this.#sum += value;
    this.#max = Math.max(this.#max, value);
  }

  get mean(): number {
    return this.#count === 0 ? 0 : this.#sum / this.#count;
  }

  get max(): number {
    return this.#max;
  }

  /** At most `binsMax` adjacent ranges that cover every value, of about equal relative width. */
  bins(binsMax: number): readonly HistogramBin[] {
    const first = this.#counts.findIndex((count) => count > 0);
    if (first < 0) return [];
    const last = this.#counts.findLastIndex((count) => count > 0);
    const width = Math.ceil((last - first + 1) / binsMax);
    const bins: HistogramBin[] = [];
    for (let from = first; from <= last; from += width) {
      const count = this.#counts.subarray(from, from + width).reduce((sum, each) => sum + each, 0);
      bins.push({ from: from === 0 ? 0 : upperEnd(from - 1) + 1, to: upperEnd(from + width - 1), count });
    }
    return bins;
  }

  /** The percentile `p` of [0, 1]. */
  percentile(p: number): number {
    const rank = Math.max(1, Math.ceil(p * this.#count));
    let seen = 0;
    for (let bucket = 0; bucket < this.#counts.length; bucket++) {
      seen += this.#counts[bucket];
      if (seen >= rank) return Math.min(this.#max, upperEnd(bucket));
    }
    return this.#max;
  }
}

export interface Latency {
  readonly mean: number;
  readonly p50: number;
  readonly p90: number;
  readonly p99: number;
}

/** Of a histogram of microseconds. */
export function latencyMs(histogram: Histogram): Latency {
  const ms = (us: number) => us / 1000;
  return {
    mean: ms(histogram.mean),
    p50: ms(histogram.percentile(0.5)),
    p90: ms(histogram.percentile(0.9)),
    p99: ms(histogram.percentile(0.99)),
  };
}

/** The distribution of a histogram of microseconds: milliseconds by percentile. */
export function percentilesMs(histogram: Histogram): Readonly<Record<string, number>> {
  const shown = [5, 10, 25, 50, 75, 90, 95, 99, 100];
  return Object.fromEntries(shown.map((percent) => [`p${percent}`, histogram.percentile(percent / 100) / 1000]));
}

/** Values below 2^10 have a bucket each. */
function bucketOf(value: number): number {
  if (value < perDoubling) return value;
  let exponent = 0;
  let mantissa = value;
  while (mantissa >= 2 * perDoubling) {
    mantissa = Math.floor(mantissa / 2);
    exponent++;
  }
  return exponent * perDoubling + mantissa;
}

function upperEnd(bucket: number): number {
  if (bucket < 2 * perDoubling) return bucket;
  const exponent = Math.floor(bucket / perDoubling) - 1;
  return (bucket - exponent * perDoubling + 1) * 2 ** exponent - 1;
}
