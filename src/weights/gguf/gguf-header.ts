// The header of a GGUF file (versions 2 and 3, little endian): metadata and tensor directory, all of it validated.
import { ByteCursor } from '../byte-cursor.ts';
import { ModelFileError } from '../errors.ts';
import type { RandomAccessFile } from '../random-access-file.ts';
import { checkOverlap } from '../tensor-directory.ts';
import { storedBytes, type TensorType } from '../types.ts';
import { GgufMetadata, readMetadataValue, skipMetadataArray } from './gguf-metadata.ts';

const magic = 0x46554747;
const keyBytesMax = 65_535;
const nameBytesMax = 65_535;
const dimensionsMax = 4;
const alignmentMax = 1 << 20;
/**
 * Fewest bytes of an entry. Metadata: empty key, type, one byte of value. Tensor: empty name, rank, one size, type,
 * offset.
 */
const entryBytesMin = { metadata: 8 + 4 + 1, tensor: 8 + 4 + 8 + 4 + 8 };

/** ggml's tensor type numbers. `type` is set for types that can be read. */
const ggmlTypes: ReadonlyMap<number, { readonly name: string; readonly type?: TensorType }> = new Map([
  [0, { name: 'F32', type: 'f32' }],
  [1, { name: 'F16', type: 'f16' }],
  [2, { name: 'Q4_0', type: 'q4_0' }],
  [3, { name: 'Q4_1', type: 'q4_1' }],
  [6, { name: 'Q5_0', type: 'q5_0' }],
  [7, { name: 'Q5_1', type: 'q5_1' }],
  [8, { name: 'Q8_0', type: 'q8_0' }],
  [9, { name: 'Q8_1' }],
  [10, { name: 'Q2_K', type: 'q2_k' }],
  [11, { name: 'Q3_K', type: 'q3_k' }],
  [12, { name: 'Q4_K', type: 'q4_k' }],
  [13, { name: 'Q5_K', type: 'q5_k' }],
  [14, { name: 'Q6_K', type: 'q6_k' }],
  [15, { name: 'Q8_K' }],
  [16, { name: 'IQ2_XXS' }],
  [17, { name: 'IQ2_XS' }],
  [18, { name: 'IQ3_XXS' }],
  [19, { name: 'IQ1_S' }],
  [20, { name: 'IQ4_NL' }],
  [21, { name: 'IQ3_S' }],
  [22, { name: 'IQ2_S' }],
  [23, { name: 'IQ4_XS' }],
  [24, { name: 'I8' }],
  [25, { name: 'I16' }],
  [26, { name: 'I32' }],
  [27, { name: 'I64' }],
  [28, { name: 'F64' }],
  [29, { name: 'IQ1_M' }],
  [30, { name: 'BF16', type: 'bf16' }],
  [34, { name: 'TQ1_0' }],
  [35, { name: 'TQ2_0' }],
  [39, { name: 'MXFP4' }],
]);

export interface GgufTensor {
  readonly name: string;
  readonly typeName: string;
  /** undefined: the type cannot be read. */
  readonly type: TensorType | undefined;
  /** Row-major, outermost dimension first: the reverse of the file's order. */
  readonly shape: readonly number[];
  /** 0 for a type that cannot be read. */
  readonly byteLength: number;
  readonly offset: number;
}

export interface GgufHeader {
  readonly version: number;
  readonly metadata: GgufMetadata;
  readonly tensors: readonly GgufTensor[];
}

export function readGgufHeader(file: RandomAccessFile): GgufHeader {
  const cursor = new ByteCursor(file);
  if (cursor.u32('the magic number') !== magic)
    throw new ModelFileError({ file: file.path, offset: 0, reason: 'this is not a GGUF file' });
  const version = readVersion(cursor);
  const tensorCount = cursor.count(entryBytesMin.tensor, 'the tensor count');
  const metadataCount = cursor.count(entryBytesMin.metadata, 'the metadata count');
  const metadata = readMetadata(cursor, metadataCount);
  const alignment = readAlignment(metadata);
  const entries = Array.from({ length: tensorCount }, () => readTensorEntry(cursor));
  const dataStart = Math.ceil(cursor.offset / alignment) * alignment;
  const tensors = entries.map((entry) => placeTensor(file, entry, dataStart, alignment));
  checkDirectory(file, tensors);
  return { version, metadata, tensors };
}

function readVersion(cursor: ByteCursor): number {
  const version = cursor.u32('the version');
  if (version === 2 || version === 3) return version;
  const why =
    version === 0x03000000 || version === 0x02000000
      ? 'big-endian GGUF files are not supported'
      : `GGUF version ${version} is not supported`;
  throw new ModelFileError({ file: cursor.file.path, offset: 4, reason: `${why}: known are 2 and 3, little endian` });
}

function readMetadata(cursor: ByteCursor, count: number): GgufMetadata {
  const metadata = new GgufMetadata(cursor.file);
  for (let index = 0; index < count; index++) {
    const offset = cursor.offset;
    const key = cursor.string(keyBytesMax, 'a metadata key');
    const type = cursor.u32('a metadata type');
    const value = type === 9 ? skipMetadataArray(cursor, key) : readMetadataValue(cursor, type, key);
    metadata.add(key, value, offset);
  }
  return metadata;
}

function readAlignment(metadata: GgufMetadata): number {
  const key = 'general.alignment';
  const alignment = metadata.integer(key) ?? 32;
  // The format requires a power of two, at least 8.
  if (alignment < 8 || alignment > alignmentMax || (alignment & (alignment - 1)) !== 0) {
    metadata.fail(key, `the alignment ${alignment} is not a power of two from 8 to ${alignmentMax}`);
  }
  return alignment;
}

interface TensorEntry {
  readonly name: string;
  readonly shape: readonly number[];
  readonly typeId: number;
  readonly relativeOffset: bigint;
  /** Byte offset of its directory entry. */
  readonly at: number;
}

function readTensorEntry(cursor: ByteCursor): TensorEntry {
  const at = cursor.offset;
  const name = cursor.string(nameBytesMax, 'a tensor name');
  const fail = (reason: string): never => {
    throw new ModelFileError({ file: cursor.file.path, tensor: name, offset: at, reason });
  };
  const dimensions = cursor.u32('a number of dimensions');
  if (dimensions < 1 || dimensions > dimensionsMax)
    fail(`it has ${dimensions} dimensions where 1 to ${dimensionsMax} are allowed`);
  const shape: number[] = [];
  for (let axis = 0; axis < dimensions; axis++) {
    const size = cursor.u64('a dimension');
    if (size < 1n || size > BigInt(Number.MAX_SAFE_INTEGER)) fail(`dimension ${axis} is ${size}`);
    shape.unshift(Number(size));
  }
  const typeId = cursor.u32('a tensor type');
  return { name, shape, typeId, relativeOffset: cursor.u64('a tensor offset'), at };
}

function placeTensor(file: RandomAccessFile, entry: TensorEntry, dataStart: number, alignment: number): GgufTensor {
  const { name, shape, typeId, relativeOffset, at } = entry;
  const fail = (reason: string): never => {
    throw new ModelFileError({ file: file.path, tensor: name, offset: at, reason });
  };
  if (relativeOffset > BigInt(file.size))
    fail(`its data starts ${relativeOffset} bytes into the tensor data of a file of ${file.size} bytes`);
  const relative = Number(relativeOffset);
  if (relative % alignment !== 0) fail(`its data starts at ${relative}, not a multiple of the alignment ${alignment}`);
  const known = ggmlTypes.get(typeId);
  const type = known?.type;
  const bytes = type === undefined ? 0 : storedBytes(type, shape);
  const byteLength = typeof bytes === 'number' ? bytes : fail(bytes);
  const offset = dataStart + relative;
  if (offset + byteLength > file.size)
    fail(`its ${byteLength} bytes at ${offset} end past the file's ${file.size} bytes`);
  return { name, typeName: known?.name ?? `ggml type ${typeId}`, type, shape, byteLength, offset };
}

function checkDirectory(file: RandomAccessFile, tensors: readonly GgufTensor[]): void {
  const names = new Set<string>();
  for (const { name, offset } of tensors) {
    if (names.has(name))
      throw new ModelFileError({ file: file.path, tensor: name, offset, reason: 'two tensors have this name' });
    names.add(name);
  }
  checkOverlap(file.path, tensors);
}
