// Linear layers of the reference backend: stored bytes, decoded rows, products in float64, of i16 inputs in float32.

import type { InputForm } from '../../graph/program.ts';
import { fusedMultiplyAdd, roundAllToBf16 } from '../../util/floats.ts';
import { decodeBlocks, type QuantisedBlocks } from '../../util/quantised-blocks.ts';
import type { LinearSpec, WeightType } from '../backend.ts';
import { type Levels, type RowBuffer, rowOf } from './buffers.ts';
import { blockElements, decodeWeights, isQuantised, storedBytes } from './weights.ts';

/** Limit of decoded float32 values kept, over all layers. Beyond it, rows are decoded at each use. */
const decodedValuesMax = 2 ** 28;
let decodedValues = 0;

/** Rows decoded and multiplied together. */
const tileRows = 4;

interface Segment {
  readonly type: WeightType;
  readonly rows: number;
  readonly firstColumn: number;
  readonly bytes: Uint8Array;
}

export class ReferenceLinear {
  readonly spec: LinearSpec;
  readonly rows: number;
  readonly #segments: readonly Segment[];
  #decoded: readonly Float32Array[] | undefined;
  #blocks: readonly QuantisedBlocks[] | undefined;

  constructor(spec: LinearSpec) {
    if (isInteger(spec.inputs) && spec.segments.some((segment) => !isQuantised(segment.type))) {
      throw new Error(
        `Cannot create linear layer: int8 and i16 inputs need quantised weights: ${spec.segments.map((s) => s.type).join(', ')}`,
      );
    }
    let rows = 0;
    this.#segments = spec.segments.map(({ type, rows: count }) => {
      const firstColumn = rows;
      rows += count;
      return { type, rows: count, firstColumn, bytes: new Uint8Array(count * storedBytes(type, spec.columns)) };
    });
    this.spec = spec;
    this.rows = rows;
  }

  pack(segment: number, firstRow: number, rows: number, bytes: Uint8Array): void {
    const into = this.#segment(segment);
    const rowBytes = storedBytes(into.type, this.spec.columns);
    if (firstRow < 0 || firstRow + rows > into.rows || bytes.byteLength !== rows * rowBytes) {
      throw new RangeError(
        `Cannot pack rows: ${rows} rows from ${firstRow} in ${bytes.byteLength} bytes: segment has ${into.rows} rows of ${rowBytes} bytes`,
      );
    }
    into.bytes.set(bytes, firstRow * rowBytes);
    this.free();
  }

  bytes(): number {
    return this.#segments.reduce((sum, segment) => sum + segment.bytes.byteLength, 0);
  }

  /** Drops the decoded rows. */
  free(): void {
    if (this.#decoded !== undefined) decodedValues -= this.rows * this.spec.columns;
    this.#decoded = undefined;
    this.#blocks = undefined;
  }

  /** One row as stored, widened exactly: an embedding. */
  readRow(row: number, out: Float32Array): void {
    const segment = this.#segments.findLast((candidate) => candidate.firstColumn <= row);
    if (segment === undefined || row < 0 || row >= this.rows)
      throw new RangeError(`Cannot read row: ${row} of ${this.rows}`);
    this.#decode(segment, row - segment.firstColumn, 1, out);
  }

  /** y[t] = x[t] W^T + bias for rows 0..count-1. */
  run(x: RowBuffer, y: RowBuffer, count: number, bias: Float32Array | undefined): void {
    if (isInteger(this.spec.inputs)) this.#runBlocks(x, y, count);
    else this.#runFloat(x, y, count);
    if (bias === undefined) return;
    for (let t = 0; t < count; t++) {
      const out = rowOf(y, t);
      for (let i = 0; i < out.length; i++) out[i] = out[i] + bias[i];
    }
  }

  #runFloat(x: RowBuffer, y: RowBuffer, count: number): void {
    const { columns } = this.spec;
    const tile = new Float32Array(tileRows * columns);
    const decoded = this.#keepDecoded();
    this.#segments.forEach((segment, index) => {
      for (let row = 0; row < segment.rows; row += tileRows) {
        const rows = Math.min(tileRows, segment.rows - row);
        const weights = decoded?.[index]?.subarray(row * columns, (row + rows) * columns) ?? tile;
        if (decoded === undefined) this.#decodeFolded(segment, row, rows, tile);
        for (let t = 0; t < count; t++) {
          multiplyTile(
            weights,
            rows,
            columns,
            x.values,
            t * columns,
            y.values,
            t * y.columns + segment.firstColumn + row,
          );
        }
      }
    });
  }

  #runBlocks(x: RowBuffer, y: RowBuffer, count: number): void {
    const { columns } = this.spec;
    const blocks = columns / blockElements;
    const product = this.spec.inputs === 'int8' ? blockProduct : blockChain;
    this.#blocks ??= this.#segments.flatMap(({ type, bytes }) =>
      isQuantised(type) ? [decodeBlocks(type, bytes)] : [],
    );
    if (x.levels === undefined || x.scales === undefined)
      throw new Error('Cannot run linear layer: its input has no integers');
    for (const [index, segment] of this.#segments.entries()) {
      const weights = this.#blocks[index];
      for (let t = 0; t < count; t++) {
        const levels = x.levels.subarray(t * columns, (t + 1) * columns);
        const scales = x.scales.subarray(t * blocks, (t + 1) * blocks);
        const out = y.values.subarray(t * y.columns + segment.firstColumn);
        for (let row = 0; row < segment.rows; row++) out[row] = product(weights, row, levels, scales);
      }
    }
  }

  /** All rows decoded and folded once, while the process-wide bound allows. */
  #keepDecoded(): readonly Float32Array[] | undefined {
    const { columns } = this.spec;
    if (this.#decoded !== undefined) return this.#decoded;
    if (decodedValues + this.rows * columns > decodedValuesMax) return undefined;
    decodedValues += this.rows * columns;
    this.#decoded = this.#segments.map((segment) => {
      const values = new Float32Array(segment.rows * columns);
      this.#decodeFolded(segment, 0, segment.rows, values);
      return values;
    });
    return this.#decoded;
  }

  /** The weights that products use: with bf16 inputs they are rounded to bf16 too. */
  #decodeFolded(segment: Segment, row: number, rows: number, out: Float32Array): void {
    const values = out.subarray(0, rows * this.spec.columns);
    this.#decode(segment, row, rows, values);
    if (this.spec.inputs === 'bf16') roundAllToBf16(values);
  }

  #decode(segment: Segment, row: number, rows: number, out: Float32Array): void {
    const rowBytes = storedBytes(segment.type, this.spec.columns);
    decodeWeights(segment.type, segment.bytes.subarray(row * rowBytes, (row + rows) * rowBytes), out);
  }

  #segment(index: number): Segment {
    const segment = this.#segments[index];
    if (segment === undefined) throw new RangeError(`Cannot pack rows: segment ${index} of ${this.#segments.length}`);
    return segment;
  }
}

/**
 * Up to four outputs of one token: each a single chain of float64 sums, so that no output depends on its neighbours.
 */
function multiplyTile(
  w: Float32Array,
  rows: number,
  columns: number,
  x: Float32Array,
  from: number,
  y: Float32Array,
  at: number,
): void {
  let a = 0;
  let b = 0;
  let c = 0;
  let d = 0;
  if (rows === tileRows) {
    for (let i = 0; i < columns; i++) {
      const value = x[from + i];
      a += value * w[i];
      b += value * w[columns + i];
      c += value * w[2 * columns + i];
      d += value * w[3 * columns + i];
    }
    y[at] = a;
    y[at + 1] = b;
    y[at + 2] = c;
    y[at + 3] = d;
    return;
  }
  for (let row = 0; row < rows; row++) {
    let sum = 0;
    for (let i = 0; i < columns; i++) sum += x[from + i] * w[row * columns + i];
    y[at + row] = sum;
  }
}

const isInteger = (form: InputForm): boolean => form === 'int8' || form === 'i16';

/** Integer sums over groups of levels are exact; they are scaled in float64. */
function blockProduct(w: QuantisedBlocks, row: number, x: Levels, scales: Float32Array): number {
  let total = 0;
  forGroups(w, row, x, ({ scale, minimum, product, sum, block }) => {
    total += scales[block] * (scale * product + (minimum ?? 0) * sum);
  });
  return total;
}

/** The bits of the kernels: one chain of multiply-adds in float32, groups ascending, minima after their sums. */
function blockChain(w: QuantisedBlocks, row: number, x: Levels, scales: Float32Array): number {
  let total = 0;
  forGroups(w, row, x, ({ scale, minimum, product, sum, block }) => {
    const of = scales[block];
    total = fusedMultiplyAdd(Math.fround(product), Math.fround(scale * of), total);
    if (minimum !== undefined) total = fusedMultiplyAdd(minimum, Math.fround(of * sum), total);
  });
  return total;
}

/** The weights of a group that share a scale, and exact sums over it. */
interface Group {
  scale: number;
  minimum: number | undefined;
  /** Of the products of levels. */
  product: number;
  /** Of the input's levels. */
  sum: number;
  /** Block of the input. */
  block: number;
}

function forGroups(w: QuantisedBlocks, row: number, x: Levels, body: (group: Group) => void): void {
  const { levels, minimums } = w;
  const groupElements = levels.length / w.scales.length;
  const first = (row * x.length) / groupElements;
  const group: Group = { scale: 0, minimum: undefined, product: 0, sum: 0, block: 0 };
  for (let i = 0; i < x.length / groupElements; i++) {
    const from = i * groupElements;
    const at = row * x.length + from;
    group.product = 0;
    group.sum = 0;
    for (let k = 0; k < groupElements; k++) {
      group.product = (group.product + Math.imul(x[from + k], levels[at + k])) | 0;
      group.sum = (group.sum + x[from + k]) | 0;
    }
    group.scale = w.scales[first + i];
    group.minimum = minimums?.[first + i];
    group.block = Math.floor(from / blockElements);
    body(group);
  }
}
