// Reads tensors that a checkpoint stores in another order than models use. The file itself is unchanged.
import { ModelFileError } from './errors.ts';
import type { RandomAccessFile } from './random-access-file.ts';
import { type TensorInfo, tensorLayouts } from './types.ts';

export type StoredOrder =
  /** Stored (in, out), read as (out, in): GPT-2's projections. */
  | 'transposed'
  /** Stored (heads, 3, head rows), read as (3, heads, head rows): BLOOM and GPT-NeoX interleave q, k and v by head. */
  | 'head-wise';

const fused = /\.query_key_value\.(weight|bias)$/;
const transposed = /\.(c_attn|c_proj|c_fc)\.weight$/;

/** Storage order of an architecture's tensor; undefined: the order that models use. */
export function storedOrder(architecture: string, name: string, shape: readonly number[]): StoredOrder | undefined {
  if (architecture === 'gpt2' && shape.length === 2 && transposed.test(name)) return 'transposed';
  if ((architecture === 'bloom' || architecture === 'gpt_neox') && fused.test(name)) return 'head-wise';
  return undefined;
}

/**
 * Reads bytes of a head-wise tensor, one run of a head's rows at a time.
 * @param into receives bytes [byteStart, byteStart + into.byteLength) of the tensor in reading order
 */
export function readHeadWise(
  file: RandomAccessFile,
  info: TensorInfo,
  heads: number,
  byteStart: number,
  into: Uint8Array,
): void {
  const rows = info.shape[0] ?? 0;
  if (rows % (3 * heads) !== 0) {
    const reason = `${rows} rows are not q, k and v of ${heads} heads`;
    throw new ModelFileError({ file: info.file, tensor: info.name, offset: info.offset, reason });
  }
  const runBytes = info.byteLength / heads / 3;
  const byteEnd = byteStart + into.byteLength;
  for (let run = Math.floor(byteStart / runBytes); run * runBytes < byteEnd; run++) {
    const from = Math.max(run * runBytes, byteStart);
    const to = Math.min((run + 1) * runBytes, byteEnd);
    const stored = (run % heads) * 3 + Math.floor(run / heads);
    const source = info.offset + stored * runBytes + (from - run * runBytes);
    file.readInto(source, into.subarray(from - byteStart, to - byteStart));
  }
}

/** Columns transposed at a time: both the bytes read and the bytes written fit in a CPU cache. */
const blockColumns = 64;

/** All bytes of a transposed matrix, in the order (rows, columns) of its shape. */
export function readTransposed(file: RandomAccessFile, info: TensorInfo): Uint8Array {
  const [rows, columns] = info.shape;
  const elementBytes = tensorLayouts[info.type].blockBytes;
  const elements = elementBytes === 4 ? Uint32Array : Uint16Array;
  const out = new elements(rows * columns);
  const block = new elements(rows * Math.min(blockColumns, columns));
  for (let first = 0; first < columns; first += blockColumns) {
    const count = Math.min(blockColumns, columns - first);
    const stored = block.subarray(0, count * rows);
    file.readInto(info.offset + first * rows * elementBytes, bytesOf(stored));
    for (let row = 0; row < rows; row++) {
      const to = row * columns + first;
      for (let i = 0; i < count; i++) out[to + i] = stored[i * rows + row];
    }
  }
  return bytesOf(out);
}

function bytesOf(values: Uint16Array | Uint32Array): Uint8Array {
  return new Uint8Array(values.buffer, values.byteOffset, values.byteLength);
}

/** How a tensor's rows are paired inside each head. */
export interface PairedRows {
  readonly headRows: number;
  readonly rowBytes: number;
}

/**
 * Reads q or k of a llama GGUF file with rows reordered by the converter, in rotate-half order.
 * Row h*d + s*(d/2) + j (half s, pair j of head h, d rows a head) is stored as row h*d + 2j + s.
 * @param offset of the tensor in the file
 * @param into receives bytes [byteStart, byteStart + into.byteLength) of the reordered tensor
 */
export function readPairedRows(
  file: RandomAccessFile,
  offset: number,
  paired: PairedRows,
  byteStart: number,
  into: Uint8Array,
): void {
  const { headRows, rowBytes } = paired;
  const headBytes = headRows * rowBytes;
  const byteEnd = byteStart + into.byteLength;
  // One head at a time: a few hundred kilobytes, whatever the tensor's size.
  const stored = new Uint8Array(into.byteLength > 0 ? headBytes : 0);
  for (let head = Math.floor(byteStart / headBytes); head * headBytes < byteEnd; head++) {
    const headStart = head * headBytes;
    file.readInto(offset + headStart, stored);
    for (let row = 0; row < headRows; row++) {
      const rowStart = headStart + row * rowBytes;
      const from = Math.max(rowStart, byteStart);
      const to = Math.min(rowStart + rowBytes, byteEnd);
      if (from >= to) continue;
      const source = storedRow(row, headRows) * rowBytes - rowStart;
      into.set(stored.subarray(source + from, source + to), from - byteStart);
    }
  }
}

function storedRow(row: number, headRows: number): number {
  const half = headRows / 2;
  return row < half ? 2 * row : 2 * (row - half) + 1;
}
