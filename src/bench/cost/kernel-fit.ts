// The efficiency of a kind of device from measured kernels: shares of its peaks by the size of a shard, and all-reduces.
import type { DeviceShape, Efficiency } from '../../core/cost/shapes.ts';
import type { MeasuredTables } from '../../core/cost/tables/measured-tables.ts';

export type KernelEfficiency = Required<
  Pick<
    Efficiency,
    'compute' | 'memory' | 'computeShard' | 'memoryShard' | 'attentionCompute' | 'attentionMemory' | 'link' | 'reduceUs'
  >
>;

/** Rows of products that are bound by reading weights, and by arithmetic. */
const memoryRowsMax = 16;
const computeRowsMin = 2048;
/** Weights of the smallest product: narrower ones are no shards of a layer. */
const weightsMin = 2 ** 18;
/** Keys and tokens of the smallest attention; all-reduces that the link bounds, and those that it does not. */
const keysMin = 2 ** 17;
const tokensMin = 4096;
const largeBytes = 2 ** 23;
/** Sizes of the files count elements: as bytes, eight A100 would reach half of what NCCL is known to reach. */
const elementBytes = 2;
const smallBytes = 2 ** 16;

/** @param device with peaks for the precision of the tables, whose elements have two bytes */
export function kernelEfficiency(tables: MeasuredTables, device: DeviceShape): KernelEfficiency {
  const bytesPerUs = device.memoryBytesPerSecond / 1e6;
  const operationsPerUs = device.operationsPerSecond / 1e6;
  const { m, n, k, us } = tables.gemm;
  const memory = new Line();
  const compute = new Line();
  for (let i = 0; i < us.length; i++) {
    const weights = n[i] * k[i];
    if (weights < weightsMin) continue;
    if (m[i] <= memoryRowsMax) memory.add(2 / bytesPerUs, weights, us[i]);
    if (m[i] >= computeRowsMin) compute.add((2 * m[i]) / operationsPerUs, weights, us[i]);
  }
  return {
    compute: compute.share,
    memory: memory.share,
    computeShard: compute.half,
    memoryShard: memory.half,
    attentionCompute: median(prefillShares(tables, operationsPerUs)),
    attentionMemory: median(decodeShares(tables, bytesPerUs)),
    ...reduceTimes(tables, device),
  };
}

/**
 * Least squares of the relative errors of us = scale (weights + half) / share, which is linear in 1 / share and
 * half / share.
 */
class Line {
  #xx = 0;
  #xy = 0;
  #yy = 0;
  #x = 0;
  #y = 0;

  add(scale: number, weights: number, us: number): void {
    const [x, y] = [(scale * weights) / us, scale / us];
    this.#xx += x * x;
    this.#xy += x * y;
    this.#yy += y * y;
    this.#x += x;
    this.#y += y;
  }

  get #inverse(): number {
    const { first, both } = this.#solved;
    return both ? first : this.#x / this.#xx;
  }

  get #solved() {
    const determinant = this.#xx * this.#yy - this.#xy * this.#xy;
    const first = (this.#x * this.#yy - this.#y * this.#xy) / determinant;
    const second = (this.#y * this.#xx - this.#x * this.#xy) / determinant;
    return { first, second, both: second >= 0 };
  }

  get share(): number {
    return Math.min(1, 1 / this.#inverse);
  }

  get half(): number {
    const { second, both } = this.#solved;
    return both ? second / this.#inverse : 0;
  }
}

/** Shares of peak arithmetic in attention of long prompts, whose rows attend to half of the keys in the mean. */
function prefillShares({ contextAttention, headDim }: MeasuredTables, operationsPerUs: number): readonly number[] {
  const { batch, tokens, heads, us } = contextAttention;
  return shares(us, (i) =>
    tokens[i] < tokensMin ? undefined : (2 * batch[i] * heads[i] * headDim * tokens[i] ** 2) / operationsPerUs,
  );
}

/** Shares of peak bandwidth in attention of decode rows. A file may state 0 KV heads for as many as query heads. */
function decodeShares({ generationAttention, headDim }: MeasuredTables, bytesPerUs: number): readonly number[] {
  const { batch, tokens, heads, kvHeads, us } = generationAttention;
  return shares(us, (i) => {
    const keys = batch[i] * tokens[i] * (kvHeads[i] || heads[i]);
    return keys < keysMin * 8 ? undefined : (4 * keys * headDim) / bytesPerUs;
  });
}

function shares(us: Float64Array, idealOf: (index: number) => number | undefined): readonly number[] {
  const all = Array.from(us, (measured, i) => (idealOf(i) ?? Number.NaN) / measured);
  return all.filter((share) => share > 0 && share <= 1);
}

/** The share of the link by large all-reduces, and the time of small ones beside `linkUs`. The faster of both kernels counts. */
function reduceTimes({ allReduce }: MeasuredTables, { linkBytesPerSecond, linkUs }: DeviceShape) {
  const fastest = new Map<string, number>();
  for (const { devices, bytes, us } of [allReduce.engine, allReduce.library])
    for (let i = 0; i < us.length; i++) {
      const key = `${devices[i]},${bytes[i]}`;
      if (devices[i] > 1) fastest.set(key, Math.min(fastest.get(key) ?? Number.POSITIVE_INFINITY, us[i]));
    }
  const reduces = [...fastest].map(([key, us]) => {
    const [devices = 2, elements = 0] = key.split(',').map(Number);
    const bytes = elements * elementBytes;
    return { bytes, us, idealUs: ((2 * (devices - 1)) / devices) * (bytes / (linkBytesPerSecond / 1e6)) };
  });
  const large = reduces.filter(({ bytes }) => bytes >= largeBytes);
  const small = reduces.filter(({ bytes }) => bytes <= smallBytes);
  const link = median(large.map(({ us, idealUs }) => idealUs / us));
  return { link, reduceUs: Math.max(0, median(small.map(({ us, idealUs }) => us - idealUs / link)) - linkUs) };
}

function median(values: readonly number[]): number {
  return values.toSorted((a, b) => a - b)[values.length >> 1] ?? 1;
}
