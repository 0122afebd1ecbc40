// Packing: stored rows move from the file through one reusable buffer to the backend, converted if a form requires it.

import { alibiSlopes } from '../graph/alibi.ts';
import type { LinearSource, VectorSource } from '../graph/compile.ts';
import { ropeTable } from '../graph/rope.ts';
import type { Backend, LinearHandle } from '../kernel/backend.ts';
import { assertNever } from '../util/assert-never.ts';
import { dequantise } from '../weights/quants/dequantise.ts';
import { quantise } from '../weights/quants/quantise.ts';
import {
  expectTensor,
  type ModelFiles,
  rowBytes,
  type TensorInfo,
  type TensorType,
  tensorLayouts,
} from '../weights/types.ts';

/** A stored matrix and its packed type. */
export interface Segment {
  readonly info: TensorInfo;
  readonly type: TensorType;
}

/**
 * Bytes of a chunk of rows, as stored or as converted float32: small against any model, large against the cost of a
 * call.
 */
const chunkBytes = 2 ** 20;

/** Reads chunks of rows of any tensor into reusable buffers. */
export class Packer {
  readonly #files: ModelFiles;
  readonly #backend: Backend;
  #stored = new Uint8Array(0);
  #packed = new Uint8Array(0);
  #values = new Float32Array(0);

  constructor(files: ModelFiles, backend: Backend) {
    this.#files = files;
    this.#backend = backend;
  }

  linear(source: LinearSource, segments: readonly Segment[]): LinearHandle {
    const linear = this.#backend.createLinear({
      columns: source.columns,
      segments: segments.map(({ info, type }) => ({ type, rows: info.shape[0] })),
      inputs: source.inputs,
    });
    try {
      for (const [index, segment] of segments.entries()) this.#packSegment(linear, index, segment);
    } catch (error) {
      this.#backend.freeLinear(linear);
      throw error;
    }
    return linear;
  }

  #packSegment(linear: LinearHandle, index: number, { info, type }: Segment): void {
    const [rows, columns] = info.shape;
    const stride = rowBytes(info);
    const widest = Math.max(stride, type === info.type ? 0 : columns * 4);
    const chunkRows = Math.max(1, Math.floor(chunkBytes / widest));
    for (let row = 0; row < rows; row += chunkRows) {
      const count = Math.min(chunkRows, rows - row);
      this.#stored = atLeast(this.#stored, count * stride, Uint8Array);
      const bytes = this.#files.read(info, row * stride, count * stride, this.#stored);
      this.#backend.packRows(linear, index, row, count, this.#converted(bytes, info.type, type, count * columns));
    }
  }

  #converted(bytes: Uint8Array, from: TensorType, to: TensorType, elements: number): Uint8Array {
    if (from === to) return bytes;
    const { blockElements, blockBytes } = tensorLayouts[to];
    this.#values = atLeast(this.#values, elements, Float32Array);
    this.#packed = atLeast(this.#packed, (elements / blockElements) * blockBytes, Uint8Array);
    return quantise(to, dequantise(from, bytes, this.#values), this.#packed);
  }
}

function atLeast<T extends { readonly length: number }>(buffer: T, length: number, make: new (length: number) => T): T {
  return buffer.length >= length ? buffer : new make(length);
}

/** Values of a vector for sequences of at most `context` tokens. */
export function vectorValues(files: ModelFiles, source: VectorSource, context: number): Float32Array {
  switch (source.kind) {
    case 'rope':
      return ropeTable(source.spec, context);
    case 'slopes':
      return alibiSlopes(source.heads);
    case 'positions':
      return positionValues(files, source, context);
    case 'tensors':
      return storedValues(files, source);
    default:
      assertNever(source);
  }
}

function positionValues(
  files: ModelFiles,
  { table, columns }: VectorSource & { kind: 'positions' },
  context: number,
): Float32Array {
  const { name, types, offset } = table;
  const firstRows = (stored: string, all: number, rows: number): Float32Array => {
    const info = expectTensor(files, stored, [all, columns]);
    return dequantise(info.type, files.read(info, 0, rows * rowBytes(info)));
  };
  const rows = Math.min(table.rows, context + offset);
  const positions = name === undefined ? new Float32Array(rows * columns) : firstRows(name, table.rows, rows);
  if (types === undefined) return positions;
  const values = new Float32Array(types.rows * positions.length);
  firstRows(types.name, types.rows, types.rows).forEach((value, at) => {
    const from = Math.floor(at / columns) * positions.length;
    for (let i = at % columns; i < positions.length; i += columns) values[from + i] = positions[i] + value;
  });
  return values;
}

function storedValues(files: ModelFiles, { parts, offset }: VectorSource & { kind: 'tensors' }): Float32Array {
  const values = new Float32Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const { name, length } of parts) {
    if (name !== undefined) {
      const info = expectTensor(files, name, [length]);
      dequantise(info.type, files.read(info, 0, info.byteLength), values.subarray(at, at + length));
    }
    at += length;
  }
  return offset === 0 ? values : values.map((value) => value + offset);
}
