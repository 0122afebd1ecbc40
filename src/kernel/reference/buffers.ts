// Buffers of the reference backend: rows of float32, or rows rounded to an input form or to the KV type.
import type { BufferSpec, InputForm } from '../../graph/program.ts';
import { roundAllToBf16, roundTiesToEven } from '../../util/floats.ts';
import type { KvType } from '../../util/kv-type.ts';
import { blockElements } from './weights.ts';

/** Inputs as integers. */
export type Levels = Int8Array | Int16Array;

/** The largest level of each form of integers; that of i16 is 127 x 257, which splits into two signed bytes. */
const levelMax = { int8: 127, i16: 32_639 } as const;

/** `values` are the widened values that products use; rows of integers also hold levels, and one scale per block of 32. */
export interface RowBuffer {
  readonly columns: number;
  readonly rounding: InputForm;
  readonly values: Float32Array;
  readonly levels: Levels | undefined;
  readonly scales: Float32Array | undefined;
}

export function createBuffer(spec: BufferSpec, rows: number, kvType: KvType): RowBuffer {
  const rounding = spec.kind === 'input' ? spec.form : spec.kind === 'query' && kvType === 'bf16' ? 'bf16' : 'f32';
  const blocks = Math.ceil(spec.columns / blockElements);
  const isInteger = rounding === 'int8' || rounding === 'i16';
  const count = rows * spec.columns;
  return {
    columns: spec.columns,
    rounding,
    values: new Float32Array(count),
    levels: isInteger ? (rounding === 'int8' ? new Int8Array(count) : new Int16Array(count)) : undefined,
    scales: isInteger ? new Float32Array(rows * blocks) : undefined,
  };
}

/** Row `row` as a view. */
export function rowOf(buffer: RowBuffer, row: number): Float32Array {
  return buffer.values.subarray(row * buffer.columns, (row + 1) * buffer.columns);
}

/** Writes one row, rounded to the form of the buffer. */
export function writeRow(buffer: RowBuffer, row: number, values: Float32Array): void {
  const out = rowOf(buffer, row);
  out.set(values);
  finishRow(buffer, row);
}

/** Rounds a row that was written through `rowOf`. */
export function finishRow(buffer: RowBuffer, row: number): void {
  const out = rowOf(buffer, row);
  if (buffer.rounding === 'bf16') roundAllToBf16(out);
  if (buffer.levels === undefined || buffer.scales === undefined) return;
  const blocks = Math.ceil(buffer.columns / blockElements);
  const levels = buffer.levels.subarray(row * buffer.columns, (row + 1) * buffer.columns);
  for (let block = 0; block < blocks; block++) {
    const from = block * blockElements;
    const to = Math.min(from + blockElements, buffer.columns);
    buffer.scales[row * blocks + block] = quantiseBlock(out.subarray(from, to), levels.subarray(from, to));
  }
}

/** A block with a largest magnitude below this becomes zero: the inverse of the scale must stay finite. */
const tiny = 1e-30;

/**
 * Symmetric integers: scale = largest magnitude / largest level, levels rounded to nearest even. The values become
 * scale x level; a NaN or infinity makes the whole block NaN.
 */
function quantiseBlock(values: Float32Array, levels: Levels): number {
  const most = levels instanceof Int8Array ? levelMax.int8 : levelMax.i16;
  let largest = 0;
  for (const value of values) {
    const magnitude = Math.abs(value);
    if (!(magnitude <= largest)) largest = magnitude;
    if (Number.isNaN(largest)) break;
  }
  if (!Number.isFinite(largest) || largest < tiny) {
    const scale = Number.isFinite(largest) ? 0 : Number.NaN;
    levels.fill(0);
    values.fill(scale);
    return scale;
  }
  const scale = Math.fround(largest / most);
  const inverse = Math.fround(most / largest);
  for (let i = 0; i < values.length; i++) {
    levels[i] = roundTiesToEven(Math.fround(values[i] * inverse));
    values[i] = scale * levels[i];
  }
  return scale;
}
