// Buffers of the reference backend: rows of float32, or rows rounded to an input form or to the KV type.
import type { BufferSpec, InputForm, KvType } from '../../graph/program.ts';
import { roundAllToBf16, roundTiesToEven } from '../../util/floats.ts';
import { blockElements } from './weights.ts';

/** `values` are the widened values that products use; int8 rows also hold levels, and one scale per block of 32. */
export interface RowBuffer {
  readonly columns: number;
  readonly rounding: InputForm;
  readonly values: Float32Array;
  readonly levels: Int8Array | undefined;
  readonly scales: Float32Array | undefined;
}

export function createBuffer(spec: BufferSpec, rows: number, kvType: KvType): RowBuffer {
  const rounding = spec.kind === 'input' ? spec.form : spec.kind === 'query' ? kvType : 'f32';
  const blocks = Math.ceil(spec.columns / blockElements);
  const int8 = rounding === 'int8';
  return {
    columns: spec.columns,
    rounding,
    values: new Float32Array(rows * spec.columns),
    levels: int8 ? new Int8Array(rows * spec.columns) : undefined,
    scales: int8 ? new Float32Array(rows * blocks) : undefined,
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

/** A block with a largest magnitude below this becomes zero: 127 / magnitude must stay finite. */
const tiny = 1e-30;

/**
 * Symmetric int8: scale = largest magnitude / 127, levels rounded to nearest even. The values become scale x level; a
 * NaN or infinity makes the whole block NaN.
 */
function quantiseBlock(values: Float32Array, levels: Int8Array): number {
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
  const scale = Math.fround(largest / 127);
  const inverse = Math.fround(127 / largest);
  for (let i = 0; i < values.length; i++) {
    levels[i] = roundTiesToEven(Math.fround(values[i] * inverse));
    values[i] = scale * levels[i];
  }
  return scale;
}
