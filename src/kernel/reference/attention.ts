// Paged KV and causal attention of the reference backend, in float64; merging of partials.
import type { HeadShape } from '../../graph/program.ts';
import { roundAllToBf16, roundTiesToEven, roundToBf16 } from '../../util/floats.ts';
import { type KvType, q8Dims } from '../../util/kv-type.ts';
import { pageTokens, type Step, type StepGroup } from '../../util/step.ts';
import type { KvPoolSpec } from '../backend.ts';
import { finishRow, type RowBuffer, rowOf } from './buffers.ts';
import { softcap } from './ops.ts';

/** Pages of (2, kvHeads, pageTokens, headDim) values, K first. */
export class ReferencePool {
  readonly spec: KvPoolSpec;
  readonly #pageValues: number;
  readonly #pages: (Float32Array | undefined)[];

  constructor(spec: KvPoolSpec) {
    this.spec = spec;
    this.#pageValues = 2 * spec.kvHeads * pageTokens * spec.headDim;
    this.#pages = new Array<Float32Array | undefined>(spec.pages).fill(undefined);
  }

  /** The page itself, allocated at first use. */
  page(id: number): Float32Array {
    if (!Number.isInteger(id) || id < 0 || id >= this.#pages.length)
      throw new RangeError(`Cannot use page: ${id} of ${this.#pages.length}`);
    const page = this.#pages[id] ?? new Float32Array(this.#pageValues);
    this.#pages[id] = page;
    return page;
  }

  write(id: number, values: Float32Array): void {
    if (values.length !== this.#pageValues)
      throw new RangeError(`Cannot write page: ${values.length} values: ${this.#pageValues} expected`);
    const page = this.page(id);
    page.set(values);
    roundKv(this.spec.type, page);
  }

  /** Index in a page of the (pageTokens, headDim) values of head `head` of K (part 0) or V (part 1). */
  headStart(part: 0 | 1, head: number): number {
    return (part * this.spec.kvHeads + head) * pageTokens * this.spec.headDim;
  }
}

/** Pages of one sequence in one layer. */
export type PageOf = (position: number) => Float32Array;

export function pagesOf(pool: ReferencePool, group: StepGroup, sequence: number, layer: number): PageOf {
  const start = group.blockStart[sequence];
  const first = group.firstBlock[sequence];
  return (position) => {
    const block = group.blocks[start + Math.floor(position / pageTokens) - first];
    const page = block === undefined ? undefined : group.pageTable[block * group.layers + layer];
    if (page === undefined)
      throw new RangeError(`Cannot find page: position ${position} of sequence ${sequence}: no block listed`);
    return pool.page(page);
  };
}

export interface AttentionTask extends HeadShape {
  readonly scale: number;
  readonly window: number | undefined;
  readonly softcap: number | undefined;
  readonly bidirectional?: boolean;
  /** (heads) */
  readonly slopes: Float32Array | undefined;
  readonly query: RowBuffer;
  readonly out: RowBuffer;
  readonly stats: { readonly max: RowBuffer; readonly sum: RowBuffer } | undefined;
}

/**
 * Causal attention of every row over its sequence's keys, from the row's window to its own position; bidirectional
 * attention over all of them. Rows of a sequence
 * without pages become 0; those for which `isElsewhere` is true are left out.
 */
export function runAttention(
  task: AttentionTask,
  step: Step,
  pages: (sequence: number) => PageOf | undefined,
  pool: ReferencePool,
  isElsewhere: (sequence: number) => boolean,
): void {
  for (let sequence = 0; sequence + 1 < step.rowStart.length; sequence++) {
    if (isElsewhere(sequence)) continue;
    const pageOf = pages(sequence);
    const end = step.rowStart[sequence + 1];
    for (let row = step.rowStart[sequence]; row < end; row++) {
      const last = step.positions[task.bidirectional === true ? end - 1 : row];
      if (pageOf === undefined) clearRow(task, row);
      else for (let head = 0; head < task.heads; head++) attendHead(task, row, head, last, pageOf, pool);
      finishRow(task.out, row);
    }
  }
}

function clearRow(task: AttentionTask, row: number): void {
  rowOf(task.out, row).fill(0);
  if (task.stats === undefined) return;
  rowOf(task.stats.max, row).fill(-Infinity);
  rowOf(task.stats.sum, row).fill(0);
}

/** Attention of one query head of a row over keys `0` to `position` of its pages, from its window on. */
export function attendHead(
  task: AttentionTask,
  row: number,
  head: number,
  position: number,
  pageOf: PageOf,
  pool: ReferencePool,
): void {
  const { headDim } = task;
  const kvHead = Math.floor(head / (task.heads / task.kvHeads));
  const { weights, first, max, total } = headWeights(task, row, head, position, pageOf, pool);
  const values = pool.headStart(1, kvHead);
  const sums = new Float64Array(headDim);
  for (let p = first; p <= position; p++) {
    const page = pageOf(p);
    const at = values + (p % pageTokens) * headDim;
    for (let i = 0; i < headDim; i++) sums[i] = sums[i] + weights[p] * page[at + i];
  }
  const out = rowOf(task.out, row).subarray(head * headDim, (head + 1) * headDim);
  const divisor = task.stats === undefined ? total : 1;
  for (let i = 0; i < headDim; i++) out[i] = sums[i] / divisor;
  if (task.stats === undefined) return;
  rowOf(task.stats.max, row)[head] = max;
  rowOf(task.stats.sum, row)[head] = total;
}

/** The weights exp(score - max) of the keys that a query head of a row sees, from `first` on; earlier ones are 0. */
export function headWeights(
  task: AttentionTask,
  row: number,
  head: number,
  position: number,
  pageOf: PageOf,
  pool: ReferencePool,
): { readonly weights: Float64Array; readonly first: number; readonly max: number; readonly total: number } {
  const { headDim } = task;
  const kvHead = Math.floor(head / (task.heads / task.kvHeads));
  const q = rowOf(task.query, row).subarray(head * headDim, (head + 1) * headDim);
  const first = task.window === undefined ? 0 : Math.max(0, position - task.window + 1);
  const weights = new Float64Array(position + 1);
  const keys = pool.headStart(0, kvHead);
  let max = -Infinity;
  for (let p = first; p <= position; p++) {
    const score = scoreOf(task, head, dot(q, pageOf(p), keys + (p % pageTokens) * headDim), p - position);
    weights[p] = score;
    if (score > max || Number.isNaN(score)) max = score;
  }
  let total = 0;
  for (let p = first; p <= position; p++) {
    weights[p] = Math.exp(weights[p] - max);
    total += weights[p];
  }
  return { weights, first, max, total };
}

/** Score of a key that lies `distance` (<= 0) from the row. */
function scoreOf(task: AttentionTask, head: number, product: number, distance: number): number {
  const scaled = task.scale * product;
  const capped = task.softcap === undefined ? scaled : softcap(task.softcap, scaled);
  return task.slopes === undefined ? capped : capped + task.slopes[head] * distance;
}

/** The dot product of a and the values of b from `at` on. */
function dot(a: Float32Array, b: Float32Array, at: number): number {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i] * b[at + i];
  return sum;
}

export interface PartialBuffers {
  readonly o: RowBuffer;
  readonly max: RowBuffer;
  readonly sum: RowBuffer;
}

/**
 * ScaleReduce: softmax over the union of the parts' keys; a part without keys has sum 0. Sums are float64, so the order
 * of the merges has no visible effect.
 */
export function mergePartials(
  parts: readonly PartialBuffers[],
  heads: number,
  headDim: number,
  out: RowBuffer,
  rows: number,
): void {
  for (let row = 0; row < rows; row++) {
    for (let head = 0; head < heads; head++) mergeHead(parts, row, head, headDim, out);
    finishRow(out, row);
  }
}

function mergeHead(parts: readonly PartialBuffers[], row: number, head: number, headDim: number, out: RowBuffer): void {
  const filled = parts.filter((part) => rowOf(part.sum, row)[head] !== 0);
  const max = filled.reduce((largest, part) => Math.max(largest, rowOf(part.max, row)[head] as number), -Infinity);
  const sums = new Float64Array(headDim);
  let total = 0;
  for (const part of filled) {
    const weight = Math.exp(rowOf(part.max, row)[head] - max);
    const o = rowOf(part.o, row).subarray(head * headDim, (head + 1) * headDim);
    total += weight * rowOf(part.sum, row)[head];
    for (let i = 0; i < headDim; i++) sums[i] = sums[i] + weight * o[i];
  }
  const result = rowOf(out, row).subarray(head * headDim, (head + 1) * headDim);
  for (let i = 0; i < headDim; i++) result[i] = total === 0 ? 0 : sums[i] / total;
}

/** How each head of q or k is prepared before attention. */
export interface HeadTransform {
  readonly headDim: number;
  readonly rope: Float32Array | undefined;
  readonly rotaryDim: number;
  readonly gain: Float32Array | undefined;
  readonly eps: number;
}

export interface QkvTask extends HeadShape {
  readonly q: HeadTransform;
  readonly k: HeadTransform;
  readonly x: RowBuffer;
  readonly query: RowBuffer;
}

/**
 * Normalises and rotates q and k of every row, and writes K and V to their slots and q to the query buffer. K | V of a
 * sequence without pages go to `staged`, by row.
 */
export function runQkv(
  task: QkvTask,
  step: Step,
  pages: (sequence: number) => PageOf | undefined,
  pool: ReferencePool,
  staged: Map<number, Float32Array>,
): void {
  runSendQ({ transform: task.q, x: task.x, out: task.query }, step);
  for (let sequence = 0; sequence + 1 < step.rowStart.length; sequence++) {
    const pageOf = pages(sequence);
    for (let row = step.rowStart[sequence]; row < step.rowStart[sequence + 1]; row++) {
      const position = step.positions[row];
      const keyValue = keyValueOf(task, row, position, pool);
      if (pageOf === undefined) staged.set(row, keyValue);
      else writeKeyValue(task, keyValue, position, pageOf(position), pool);
    }
  }
}

export interface SendTask {
  readonly transform: HeadTransform;
  readonly x: RowBuffer;
  readonly out: RowBuffer;
}

/** Normalises and rotates q, the first columns of every row, into the query buffer. */
export function runSendQ({ transform, x, out }: SendTask, step: Step): void {
  for (const [row, position] of step.positions.entries()) {
    const into = rowOf(out, row);
    into.set(rowOf(x, row).subarray(0, out.columns));
    rotateHeads(transform, into, position);
    finishRow(out, row);
  }
}

/** Normalises and rotates k of k | v, the last columns of every row, into the buffer. */
export function runSendKV({ transform, x, out }: SendTask, step: Step): void {
  for (const [row, position] of step.positions.entries()) {
    const into = rowOf(out, row);
    into.set(rowOf(x, row).subarray(x.columns - out.columns));
    rotateHeads(transform, into.subarray(0, out.columns / 2), position);
    finishRow(out, row);
  }
}

/** K | V of one row, (2, kvHeads, headDim), rounded as pages round them. */
function keyValueOf(task: QkvTask, row: number, position: number, pool: ReferencePool): Float32Array {
  const { heads, kvHeads, headDim } = task;
  const keyValue = rowOf(task.x, row).slice(heads * headDim, (heads + 2 * kvHeads) * headDim);
  for (let head = 0; head < kvHeads; head++)
    rotateHead(task.k, keyValue.subarray(head * headDim, (head + 1) * headDim), position);
  roundKv(pool.spec.type, keyValue);
  return keyValue;
}

function writeKeyValue(
  { kvHeads, headDim }: QkvTask,
  keyValue: Float32Array,
  position: number,
  page: Float32Array,
  pool: ReferencePool,
): void {
  for (let head = 0; head < kvHeads; head++) {
    const slot = (position % pageTokens) * headDim;
    const v = (kvHeads + head) * headDim;
    page.set(keyValue.subarray(head * headDim, (head + 1) * headDim), pool.headStart(0, head) + slot);
    page.set(keyValue.subarray(v, v + headDim), pool.headStart(1, head) + slot);
  }
}

/** Rounds values of whole heads as pages hold them. */
function roundKv(type: KvType, values: Float32Array): void {
  if (type === 'bf16') roundAllToBf16(values);
  if (type !== 'q8') return;
  for (let at = 0; at < values.length; at += q8Dims) roundToQ8(values.subarray(at, at + q8Dims));
}

/** A block with a largest magnitude below this becomes zero: the inverse of the scale must stay finite. */
const tiny = 1e-30;

/**
 * Rounds a block to levels from -127 to 127 times a scale: largest magnitude / 127, rounded to bf16. Levels are those of
 * the rounded scale, so the largest is 127, and rounding again changes nothing. A NaN or infinity makes all values NaN.
 */
function roundToQ8(values: Float32Array): void {
  let largest = 0;
  for (const value of values) largest = Math.max(largest, Math.abs(value));
  if (!(largest < Infinity && largest >= tiny)) {
    values.fill(largest < tiny ? 0 : Number.NaN);
    return;
  }
  const scale = roundToBf16(Math.fround(largest / 127));
  const inverse = Math.fround(1 / scale);
  for (let i = 0; i < values.length; i++) values[i] = scale * roundTiesToEven(Math.fround(values[i] * inverse));
}

function rotateHeads(transform: HeadTransform, row: Float32Array, position: number): void {
  const { headDim } = transform;
  for (let at = 0; at < row.length; at += headDim) rotateHead(transform, row.subarray(at, at + headDim), position);
}

/** RMS norm of one head if there is a gain, then rotation (rotate-half) of its first dimensions, in place. */
function rotateHead({ rope, rotaryDim, gain, eps }: HeadTransform, head: Float32Array, position: number): void {
  if (gain !== undefined) {
    const inverse = 1 / Math.sqrt(dot(head, head, 0) / head.length + eps);
    for (let i = 0; i < head.length; i++) head[i] = head[i] * inverse * gain[i];
  }
  if (rope === undefined) return;
  const half = rotaryDim / 2;
  const table = rope.subarray(position * rotaryDim, (position + 1) * rotaryDim);
  if (table.length !== rotaryDim)
    throw new RangeError(`Cannot rotate a head: position ${position} is past the rope table`);
  for (let i = 0; i < half; i++) {
    const a = head[i];
    const b = head[i + half];
    const cos = table[i];
    const sin = table[i + half];
    head[i] = a * cos - b * sin;
    head[i + half] = b * cos + a * sin;
  }
}
