// Measured kernel latencies of one kind of device, in columns.
import { Line } from './interpolate.ts';

/** A row is one matrix product, (m, k) by (k, n); m is the number of rows of the step. */
export interface GemmTable {
  readonly m: Float64Array;
  readonly n: Float64Array;
  readonly k: Float64Array;
  readonly us: Float64Array;
}

/** A row is one attention call over equal sequences. */
export interface AttentionTable {
  readonly batch: Float64Array;
  /** For each sequence: tokens of the prompt (all of them rows), or keys that its one row attends to. */
  readonly tokens: Float64Array;
  readonly heads: Float64Array;
  readonly kvHeads: Float64Array;
  readonly us: Float64Array;
}

export interface ReduceTable {
  readonly devices: Float64Array;
  readonly bytes: Float64Array;
  readonly us: Float64Array;
}

/** Tables for one precision of weights and one of KV. */
export interface MeasuredTables {
  /** Name in errors. */
  readonly name: string;
  readonly gemm: GemmTable;
  readonly contextAttention: AttentionTable;
  readonly generationAttention: AttentionTable;
  /** Times of the engine's own kernel and of the collective library: for each size the faster one counts. */
  readonly allReduce: { readonly engine: ReduceTable; readonly library: ReduceTable };
  /** Head dimension of the measured attention. */
  readonly headDim: number;
}

/** At this k, a narrow product takes almost no time, however many its rows. */
const shortK = 1024;

/**
 * Measured fp8 products quantise their inputs first, in separate kernels; servers with known scales do that inside the
 * kernel that produces the inputs. The time of quantisation, by elements, is the difference of fp8 and bf16 where n is
 * smallest and k short.
 */
export function withoutQuantising(fp8: GemmTable, bf16: GemmTable): GemmTable {
  const plain = narrow(bf16);
  const extra = narrow(fp8)
    .filter(({ m }) => plain.some((other) => other.m === m))
    .map(({ m, us }) => ({ m, us: Math.max(0, us - (plain.find((other) => other.m === m)?.us ?? 0)) }));
  if (extra.length === 0) return fp8;
  const quantising = new Line(
    extra.map(({ m }) => m * shortK),
    extra.map(({ us }) => us),
  );
  return { ...fp8, us: fp8.us.map((us, i) => Math.max(0, us - quantising.at(fp8.m[i] * fp8.k[i]))) };
}

/** Products with the smallest n, by rising m. */
function narrow({ m, n, k, us }: GemmTable): { m: number; us: number }[] {
  const narrowest = n.reduce((least, width) => Math.min(least, width));
  const found: { m: number; us: number }[] = [];
  for (let i = 0; i < us.length; i++) if (n[i] === narrowest && k[i] === shortK) found.push({ m: m[i], us: us[i] });
  return found.sort((a, b) => a.m - b.m);
}
