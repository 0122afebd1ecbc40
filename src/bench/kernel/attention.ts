// `kvasir bench kernel attention`: decode and prefill over pages in memory, beside the roof and the peak of the same run.
import { type KvType, kvTokenBytes } from '../../util/kv-type.ts';
import { pageTokens } from '../../util/step.ts';
import { round } from '../statistics.ts';
import { type HeadsShape, KernelLab } from './lab.ts';

export interface AttentionBenchOptions {
  readonly threads: number;
  readonly kv: KvType;
  readonly shape: HeadsShape;
  /** Context lengths; the default has one below 8k, one up to 32k and one above. */
  readonly contexts: readonly number[];
  /** Rows of a prefill chunk. */
  readonly queries: number;
  /** Memory that the roof and the decode rows read; less than 1024 may fit into a cache. */
  readonly mebibytes: number;
  readonly repeats: number;
  readonly onProgress?: (line: string) => void;
}

/** The division of a row into tasks. It never changes the bits of the result. */
export interface SplitReport {
  readonly tileTokens: number;
  readonly groupRanges: number;
  readonly tasks: number;
  readonly merges: number;
}

export interface AttentionDecodeRow {
  readonly context: number;
  readonly threads: number;
  readonly sequences: number;
  readonly ms: number;
  /** K and V bytes of one call over its time. */
  readonly gbPerSecond: number;
  readonly gflopPerSecond: number;
  readonly roofGbPerSecond: number;
  readonly percentOfRoof: number;
  readonly split: SplitReport;
}

export interface AttentionPrefillRow {
  readonly context: number;
  readonly queries: number;
  readonly threads: number;
  readonly ms: number;
  readonly gbPerSecond: number;
  readonly gflopPerSecond: number;
  readonly peakGflopPerSecond: number;
  readonly percentOfPeak: number;
  readonly split: SplitReport;
}

/** The key-major pass that scores all keys of a sequence with its last rows (sparse KV). */
export interface KeyScoringRow {
  readonly context: number;
  /** Rows that score keys (observation window). */
  readonly observed: number;
  readonly threads: number;
  readonly ms: number;
  /** Attention of the observed rows. */
  readonly attentionMs: number;
  /**
   * Time over observed / context of the attention of the whole context, which takes as long a (row, key) as that of the
   * observed rows.
   */
  readonly timesShare: number;
}

export interface AttentionBenchReport {
  readonly isa: string;
  readonly threads: number;
  readonly kv: KvType;
  readonly shape: HeadsShape;
  readonly mebibytes: number;
  readonly roofGbPerSecond: { readonly oneThread: number; readonly allThreads: number };
  readonly peakGflopPerSecond: number;
  /** Decode at the first context on one thread, for comparison with the roof of one thread. */
  readonly oneThread: AttentionDecodeRow;
  readonly decode: readonly AttentionDecodeRow[];
  readonly prefill: readonly AttentionPrefillRow[];
  readonly scoring: readonly KeyScoringRow[];
}

/** @throws Error if the kernels are not compiled or the pages exceed the memory */
export function benchAttention(options: AttentionBenchOptions): AttentionBenchReport {
  const one = withLab(1, (lab) => ({ isa: lab.isa, row: decodeRow(lab, options, options.contexts[0] ?? pageTokens) }));
  return withLab(options.threads, (lab) => {
    const decode = options.contexts.map((context) => decodeRow(lab, options, context));
    const prefill = options.contexts.map((context) => prefillRow(lab, options, context));
    const scoring = options.contexts.map((context) => scoringRow(lab, options, context));
    return {
      isa: one.isa,
      threads: options.threads,
      kv: options.kv,
      shape: options.shape,
      mebibytes: options.mebibytes,
      roofGbPerSecond: {
        oneThread: one.row.roofGbPerSecond,
        allThreads: Math.max(...decode.map(({ roofGbPerSecond }) => roofGbPerSecond)),
      },
      peakGflopPerSecond: Math.max(...prefill.map(({ peakGflopPerSecond }) => peakGflopPerSecond)),
      oneThread: one.row,
      decode,
      prefill,
      scoring,
    };
  });
}

function withLab<T>(threads: number, use: (lab: KernelLab) => T): T {
  const lab = new KernelLab(threads);
  try {
    return use(lab);
  } finally {
    lab.close();
  }
}

/** The roof is the better of two measurements, before and after, since the machine may be shared. */
function decodeRow(lab: KernelLab, options: AttentionBenchOptions, context: number): AttentionDecodeRow {
  const { kv, shape, mebibytes, repeats } = options;
  const before = lab.readRoof(mebibytes);
  const { seconds, bytes, sequences, ...split } = lab.decode(kv, shape, context, mebibytes, repeats);
  const roof = Math.max(before, lab.readRoof(mebibytes));
  const gbPerSecond = bytes / seconds / 1e9;
  const operations = 4 * sequences * context * shape.kvHeads * shape.group * shape.headDim;
  const row = {
    context,
    threads: lab.threads,
    sequences,
    ms: round(1000 * seconds),
    gbPerSecond: round(gbPerSecond),
    gflopPerSecond: round(operations / seconds / 1e9),
    roofGbPerSecond: round(roof),
    percentOfRoof: round((100 * gbPerSecond) / roof),
    split: splitReport(split),
  };
  options.onProgress?.(
    `decode, ${lab.threads} threads, ${context} tokens: ${row.gbPerSecond} of ${row.roofGbPerSecond} GB/s (${row.percentOfRoof} %)`,
  );
  return row;
}

function prefillRow(lab: KernelLab, options: AttentionBenchOptions, context: number): AttentionPrefillRow {
  const { kv, shape, repeats } = options;
  const queries = Math.min(options.queries, context);
  const before = lab.attentionPeak(kv);
  const { seconds, operations, ...split } = lab.prefill(kv, shape, queries, context, repeats);
  const peak = Math.max(before, lab.attentionPeak(kv));
  const kvBytes = context * kvTokenBytes(shape, kv);
  const gflopPerSecond = operations / seconds / 1e9;
  const row = {
    context,
    queries,
    threads: lab.threads,
    ms: round(1000 * seconds),
    gbPerSecond: round(kvBytes / seconds / 1e9),
    gflopPerSecond: round(gflopPerSecond),
    peakGflopPerSecond: round(peak),
    percentOfPeak: round((100 * gflopPerSecond) / peak),
    split: splitReport(split),
  };
  options.onProgress?.(
    `prefill of ${queries}, ${lab.threads} threads, ${context} tokens: ${row.gflopPerSecond} of ${row.peakGflopPerSecond} GFLOP/s (${row.percentOfPeak} %)`,
  );
  return row;
}

/** Rows that score keys, the default of `serve --sparse`. */
const observedRows = 256;

function scoringRow(lab: KernelLab, { kv, shape, repeats, onProgress }: AttentionBenchOptions, context: number) {
  const observed = Math.min(observedRows, context);
  const { seconds, attentionSeconds } = lab.scoring(kv, shape, observed, context, repeats);
  const observedPairs = observed * (context - observed) + (observed * (observed + 1)) / 2;
  const pairs = (context * (context + 1)) / 2;
  const share = ((attentionSeconds * pairs) / observedPairs) * (observed / context);
  const row: KeyScoringRow = {
    ...{ context, observed, threads: lab.threads, ms: round(1000 * seconds) },
    attentionMs: round(1000 * attentionSeconds),
    timesShare: round(seconds / share),
  };
  onProgress?.(
    `scoring with ${observed}, ${lab.threads} threads, ${context} tokens: ${row.ms} ms, ${row.timesShare} of its share of attention`,
  );
  return row;
}

function splitReport({ tileTokens, groupRanges, tasks, merges }: SplitReport): SplitReport {
  return { tileTokens, groupRanges, tasks, merges };
}
