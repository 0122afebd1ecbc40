// Tensors whose stored order is not the one that models ask for: read as if it were, stored bytes untouched.
import { ModelFileError } from './errors.ts';
import type { RandomAccessFile } from './random-access-file.ts';
import { type TensorInfo, tensorLayouts } from './types.ts';

export type StoredOrder =
  /** Stored (in, out), read as (out, in): GPT-2's projections. */
  | 'transposed'
  /** Stored (heads, 3, head rows), read as (3, heads, head rows): q, k and v of each head stand together (BLOOM, GPT-NeoX). */
  | 'head-wise';

const fused = /\.query_key_value\.(weight|bias)$/;
const transposed = /\.(c_attn|c_proj|c_fc)\.weight$/;

/** How an architecture's checkpoint stores a tensor; undefined: as models ask for it. */
export function storedOrder(architecture: string, name: string, shape: readonly number[]): StoredOrder | undefined {
  if (architecture === 'gpt2' && shape.length === 2 && transposed.test(name)) return 'transposed';
  if ((architecture === 'bloom' || architecture === 'gpt_neox') && fused.test(name)) return 'head-wise';
  return undefined;
}

/**
 * Reads bytes of a head-wise tensor: runs of a head's rows, straight from the file.
 * @param into receives bytes [byteStart, byteStart + into.byteLength) of the tensor as it is read
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

/** Stored rows that are turned at a time: what is read and what is written both stay in a cache. */
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
