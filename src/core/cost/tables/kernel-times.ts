// Times of single kernels from measured tables: matrix products, attention and all-reduce with the shapes of a model.
import { Line, Surface } from './interpolate.ts';
import type { AttentionTable, GemmTable, ReduceTable } from './measured-tables.ts';

/** Matrix products: bilinear in n and k (work and bytes are proportional to n k), then a line in m. */
export class GemmTimes {
  readonly #name: string;
  readonly #us = new Map<string, number>();
  readonly #ms: readonly number[];
  readonly #ns: readonly number[];
  readonly #ks: readonly number[];

  constructor(table: GemmTable, name: string) {
    this.#name = name;
    for (let i = 0; i < table.us.length; i++) this.#us.set(`${table.m[i]},${table.n[i]},${table.k[i]}`, table.us[i]);
    this.#ms = distinct(table.m);
    this.#ns = distinct(table.n);
    this.#ks = distinct(table.k);
  }

  /** Microseconds by rows. @throws RangeError when no similar size was measured */
  line(n: number, k: number): Line {
    const ms: number[] = [];
    const us: number[] = [];
    for (const m of this.#ms) {
      const at = this.#between(m, n, k);
      if (at === undefined) continue;
      ms.push(m);
      us.push(at);
    }
    if (ms.length === 0)
      throw new RangeError(`Cannot time a product of ${n} x ${k}: ${this.#name} has no similar size`);
    return new Line(ms, plausible(ms, us));
  }

  /**
   * Time at a measured m; undefined when a grid corner is missing. Beyond the largest size, time grows in proportion.
   */
  #between(m: number, n: number, k: number): number | undefined {
    const [n0, n1, shareN, beyondN] = bracket(this.#ns, n);
    const [k0, k1, shareK, beyondK] = bracket(this.#ks, k);
    let sum = 0;
    for (const [cornerN, weightN] of [[n0, 1 - shareN] as const, [n1, shareN] as const]) {
      for (const [cornerK, weightK] of [[k0, 1 - shareK] as const, [k1, shareK] as const]) {
        const weight = weightN * weightK;
        if (weight === 0) continue;
        const us = this.#us.get(`${m},${cornerN},${cornerK}`);
        if (us === undefined) return undefined;
        sum += weight * us;
      }
    }
    return sum * beyondN * beyondK;
  }
}

/**
 * Measured times without outliers. An engine avoids them: it pads a step to a larger size that is faster, or splits it
 * into several smaller ones.
 * @param ms rising
 */
export function plausible(ms: readonly number[], us: readonly number[]): number[] {
  const least = [...us];
  for (let i = 0; i < ms.length; i++) {
    for (let j = 0; j < i; j++) least[i] = Math.min(least[i], Math.ceil(ms[i] / ms[j]) * least[j]);
  }
  for (let i = ms.length - 2; i >= 0; i--) least[i] = Math.min(least[i], least[i + 1]);
  return least;
}

/** A grid of batch sizes and lengths, for the heads of one device. */
export class AttentionTimes {
  readonly #surface: Surface;
  /** Calls of the measured kernel that cover all heads: heads are independent, like sequences. */
  readonly #calls: number;

  /** @param place coordinate of a length on its axis, chosen such that time is almost linear in it */
  constructor(table: AttentionTable, heads: number, kvHeads: number, place: (tokens: number) => number, name: string) {
    const found = measuredHeads(table, heads, kvHeads);
    if (found === undefined)
      throw new RangeError(`Cannot time attention: ${name} has no ${heads} over ${kvHeads} heads`);
    this.#calls = found.calls;
    const rows = rowsOf(table, found.heads, found.kvHeads);
    const tokens = distinct(rows.flatMap(({ points }) => points.sizes));
    const values = rows.flatMap(({ points }) => {
      const line = new Line(points.sizes.map(place), points.us);
      return tokens.map((length) => line.at(place(length)));
    });
    this.#surface = new Surface(
      rows.map(({ batch }) => batch),
      tokens.map(place),
      rising(values, tokens.length),
    );
  }

  /** @param placed coordinate of each sequence's length, from `place` */
  us(batch: number, placed: number): number {
    return this.#surface.at(batch * this.#calls, placed);
  }
}

/** The measured heads that make up `heads` over `kvHeads`, rounded up, with the fewest calls. */
function measuredHeads(table: AttentionTable, heads: number, kvHeads: number) {
  const measured = new Map<number, Set<number>>();
  for (let i = 0; i < table.us.length; i++) {
    const heads = measured.get(table.kvHeads[i]) ?? new Set<number>();
    measured.set(table.kvHeads[i], heads.add(table.heads[i]));
  }
  for (let calls = 1; calls <= kvHeads; calls++) {
    if (kvHeads % calls !== 0) continue;
    const enough = [...(measured.get(kvHeads / calls) ?? [])].filter((each) => each * calls >= heads);
    if (enough.length > 0) return { heads: Math.min(...enough), kvHeads: kvHeads / calls, calls };
  }
  return undefined;
}

/** Measured batch sizes, rising, and the times of each by tokens, rising. */
function rowsOf(table: AttentionTable, heads: number, kvHeads: number) {
  const byBatch = new Map<number, Points>();
  for (let i = 0; i < table.us.length; i++) {
    if (table.heads[i] !== heads || table.kvHeads[i] !== kvHeads) continue;
    const points = byBatch.get(table.batch[i]) ?? new Points();
    byBatch.set(table.batch[i], points);
    points.add(table.tokens[i], table.us[i]);
  }
  return [...byBatch].map(([batch, points]) => ({ batch, points: points.rising() })).sort((a, b) => a.batch - b.batch);
}

/** Measured times by size; the shortest one for a size measured twice. */
class Points {
  readonly #us = new Map<number, number>();

  add(size: number, us: number): void {
    this.#us.set(size, Math.min(us, this.#us.get(size) ?? us));
  }

  rising(): { readonly sizes: number[]; readonly us: number[] } {
    const sizes = [...this.#us.keys()].sort((a, b) => a - b);
    return { sizes, us: sizes.map((size) => this.#us.get(size) ?? 0) };
  }
}

/**
 * (rows, columns): values of a surface that never falls. A slow outlier is replaced by the minimum of the larger sizes.
 */
function rising(values: readonly number[], columns: number): Float64Array {
  const least = Float64Array.from(values);
  for (let at = least.length - 1; at >= 0; at--) {
    if ((at + 1) % columns !== 0) least[at] = Math.min(least[at], least[at + 1]);
    if (at + columns < least.length) least[at] = Math.min(least[at], least[at + columns]);
  }
  return least;
}

/** Microseconds of one all-reduce by bytes. @throws RangeError when this number of devices was not measured */
export function reduceLine(table: ReduceTable, devices: number, name: string): Line {
  const points = new Points();
  for (let i = 0; i < table.us.length; i++) if (table.devices[i] === devices) points.add(table.bytes[i], table.us[i]);
  const { sizes, us } = points.rising();
  if (sizes.length === 0)
    throw new RangeError(`Cannot time an all-reduce: ${name} has no times for ${devices} devices`);
  return new Line(sizes, Array.from(rising(us, sizes.length)));
}

/**
 * The neighbours of x among rising values, the position of x between them, and the factor by which x exceeds the
 * largest value (else 1).
 */
function bracket(values: readonly number[], x: number): [number, number, number, number] {
  const last = values[values.length - 1];
  if (x >= last) return [last, last, 0, x / last];
  const above = values.findIndex((value) => value > x);
  if (above === 0) return [values[0], values[0], 0, 1];
  const [from, to] = [values[above - 1], values[above]];
  return [from, to, (x - from) / (to - from), 1];
}

function distinct(values: ArrayLike<number>): number[] {
  return [...new Set(Array.from(values))].sort((a, b) => a - b);
}
