// Metadata of a GGUF file: scalars are read at once, arrays are indexed by offset and read on demand.
import { type ByteCursor, decodeUtf8 } from '../byte-cursor.ts';
import { ModelFileError } from '../errors.ts';
import type { RandomAccessFile } from '../random-access-file.ts';

const stringBytesMax = 1 << 26;
const arrayBytesMax = 1 << 29;
const numbersMax = 1 << 16;
const nestingMax = 4;

interface ScalarType {
  readonly name: string;
  readonly bytes: number;
  readonly read: (cursor: ByteCursor, what: string) => number | bigint | boolean;
}

/** By GGUF type number; 8 is a string, 9 an array. */
const scalarTypes: ReadonlyMap<number, ScalarType> = new Map<number, ScalarType>([
  [0, { name: 'u8', bytes: 1, read: (cursor, what) => cursor.u8(what) }],
  [1, { name: 'i8', bytes: 1, read: (cursor, what) => cursor.i8(what) }],
  [2, { name: 'u16', bytes: 2, read: (cursor, what) => cursor.u16(what) }],
  [3, { name: 'i16', bytes: 2, read: (cursor, what) => cursor.i16(what) }],
  [4, { name: 'u32', bytes: 4, read: (cursor, what) => cursor.u32(what) }],
  [5, { name: 'i32', bytes: 4, read: (cursor, what) => cursor.i32(what) }],
  [6, { name: 'f32', bytes: 4, read: (cursor, what) => cursor.f32(what) }],
  [7, { name: 'bool', bytes: 1, read: (cursor, what) => cursor.u8(what) !== 0 }],
  [10, { name: 'u64', bytes: 8, read: (cursor, what) => safeOrBig(cursor.u64(what)) }],
  [11, { name: 'i64', bytes: 8, read: (cursor, what) => safeOrBig(cursor.i64(what)) }],
  [12, { name: 'f64', bytes: 8, read: (cursor, what) => cursor.f64(what) }],
]);

function safeOrBig(value: bigint): number | bigint {
  return value >= BigInt(Number.MIN_SAFE_INTEGER) && value <= BigInt(Number.MAX_SAFE_INTEGER) ? Number(value) : value;
}

/** Location of an array: the offset of its first item and the end of its last. */
export interface MetadataArray {
  readonly itemType: number;
  readonly count: number;
  readonly start: number;
  readonly end: number;
}

export type MetadataValue = number | bigint | boolean | string | MetadataArray;

export function readMetadataValue(cursor: ByteCursor, type: number, key: string): number | bigint | boolean | string {
  if (type === 8) return cursor.string(stringBytesMax, 'a metadata string');
  const scalar = scalarTypes.get(type);
  if (scalar === undefined) {
    throw new ModelFileError({
      file: cursor.file.path,
      key,
      offset: cursor.offset,
      reason: `unknown metadata type ${type}`,
    });
  }
  return scalar.read(cursor, 'a metadata value');
}

/** Validates an array's items and skips them. */
export function skipMetadataArray(cursor: ByteCursor, key: string, depth = 1): MetadataArray {
  const itemType = cursor.u32('an array type');
  const scalar = scalarTypes.get(itemType);
  if (scalar !== undefined) {
    const count = cursor.count(scalar.bytes, `the array ${key}`);
    const start = cursor.offset;
    cursor.skip(count * scalar.bytes, 'an array');
    return { itemType, count, start, end: cursor.offset };
  }
  if ((itemType !== 8 && itemType !== 9) || depth > nestingMax) {
    const reason = itemType === 9 ? `arrays are nested more than ${nestingMax} deep` : `unknown array type ${itemType}`;
    throw new ModelFileError({ file: cursor.file.path, key, offset: cursor.offset, reason });
  }
  const count = cursor.count(itemType === 8 ? 8 : 12, `the array ${key}`);
  const start = cursor.offset;
  for (let index = 0; index < count; index++) {
    if (itemType === 8) cursor.skip(cursor.count(1, 'a string'), 'a string');
    else skipMetadataArray(cursor, key, depth + 1);
  }
  return { itemType, count, start, end: cursor.offset };
}

/** Typed access by key. A value of another type is an error that names file, key and offset. */
export class GgufMetadata {
  readonly file: RandomAccessFile;
  readonly #entries = new Map<string, { readonly value: MetadataValue; readonly offset: number }>();

  constructor(file: RandomAccessFile) {
    this.file = file;
  }

  add(key: string, value: MetadataValue, offset: number): void {
    if (this.#entries.has(key))
      throw new ModelFileError({ file: this.file.path, key, offset, reason: 'two metadata entries have this key' });
    this.#entries.set(key, { value, offset });
  }

  has(key: string): boolean {
    return this.#entries.has(key);
  }

  fail(key: string, reason: string): never {
    throw new ModelFileError({ file: this.file.path, key, offset: this.#entries.get(key)?.offset, reason });
  }

  string(key: string): string | undefined {
    const value = this.#entries.get(key)?.value;
    return value === undefined || typeof value === 'string' ? value : this.fail(key, 'a string was expected');
  }

  boolean(key: string): boolean | undefined {
    const value = this.#entries.get(key)?.value;
    return value === undefined || typeof value === 'boolean' ? value : this.fail(key, 'a boolean was expected');
  }

  number(key: string): number | undefined {
    const value = this.#entries.get(key)?.value;
    if (value === undefined) return undefined;
    if (typeof value !== 'number' || !Number.isFinite(value))
      this.fail(key, `a finite number was expected, not ${describe(value)}`);
    return value;
  }

  integer(key: string): number | undefined {
    const value = this.number(key);
    return value === undefined || Number.isSafeInteger(value)
      ? value
      : this.fail(key, `an integer was expected, not ${value}`);
  }

  /** Numbers of an array; a single number counts as an array of one. */
  numbers(key: string): readonly number[] | undefined {
    const value = this.#entries.get(key)?.value;
    if (value === undefined || typeof value !== 'object') {
      const single = this.number(key);
      return single === undefined ? undefined : [single];
    }
    if (value.count > numbersMax)
      this.fail(key, `the array has ${value.count} numbers, more than the ${numbersMax} allowed`);
    const bytes = this.#arrayBytes(key, value, [0, 1, 2, 3, 4, 5, 6]);
    const size = bytes.byteLength / Math.max(value.count, 1);
    return Array.from({ length: value.count }, (_, index) => readNumber(bytes, index * size, value.itemType));
  }

  /** undefined when the key is missing or holds no list of booleans. */
  booleans(key: string): readonly boolean[] | undefined {
    const value = this.#entries.get(key)?.value;
    if (typeof value !== 'object' || value.itemType !== 7) return undefined;
    if (value.count > numbersMax)
      this.fail(key, `the array has ${value.count} booleans, more than the ${numbersMax} allowed`);
    return Array.from(this.#arrayBytes(key, value, [7]), (byte) => byte !== 0);
  }

  int32Array(key: string): Int32Array | undefined {
    const array = this.#array(key);
    if (array === undefined) return undefined;
    const bytes = this.#arrayBytes(key, array, [4, 5]);
    return Int32Array.from({ length: array.count }, (_, index) => bytes.readInt32LE(index * 4));
  }

  float32Array(key: string): Float32Array | undefined {
    const array = this.#array(key);
    if (array === undefined) return undefined;
    const bytes = this.#arrayBytes(key, array, [6]);
    return Float32Array.from({ length: array.count }, (_, index) => bytes.readFloatLE(index * 4));
  }

  strings(key: string): string[] | undefined {
    const array = this.#array(key);
    if (array === undefined) return undefined;
    const bytes = this.#arrayBytes(key, array, [8]);
    const texts: string[] = [];
    for (let at = 0; at < bytes.byteLength; ) {
      const start = at + 8;
      // Every length was checked when the file was opened: this fails only if the file has changed since.
      const length = start <= bytes.byteLength ? Number(bytes.readBigUInt64LE(at)) : Number.POSITIVE_INFINITY;
      if (start + length > bytes.byteLength)
        this.fail(key, `string ${texts.length} ends past the array: the file changed while it was read`);
      at = start + length;
      const text = decodeUtf8(bytes, start, at);
      if (text === undefined) {
        const reason = `string ${texts.length} is not valid UTF-8`;
        throw new ModelFileError({ file: this.file.path, key, offset: array.start + start, reason });
      }
      texts.push(text);
    }
    return texts;
  }

  arrayLength(key: string): number | undefined {
    return this.#array(key)?.count;
  }

  #array(key: string): MetadataArray | undefined {
    const value = this.#entries.get(key)?.value;
    return value === undefined || typeof value === 'object' ? value : this.fail(key, 'an array was expected');
  }

  #arrayBytes(key: string, array: MetadataArray, itemTypes: readonly number[]): Buffer {
    if (!itemTypes.includes(array.itemType))
      this.fail(key, `an array of another type was expected, not of type ${array.itemType}`);
    const byteLength = array.end - array.start;
    if (byteLength > arrayBytesMax)
      this.fail(key, `the array has ${byteLength} bytes, more than the ${arrayBytesMax} allowed`);
    return this.file.read(array.start, byteLength);
  }
}

function readNumber(bytes: Buffer, at: number, type: number): number {
  switch (type) {
    case 0:
      return bytes.readUInt8(at);
    case 1:
      return bytes.readInt8(at);
    case 2:
      return bytes.readUInt16LE(at);
    case 3:
      return bytes.readInt16LE(at);
    case 4:
      return bytes.readUInt32LE(at);
    case 5:
      return bytes.readInt32LE(at);
    default:
      return bytes.readFloatLE(at);
  }
}

function describe(value: MetadataValue): string {
  return typeof value === 'object' ? 'an array' : typeof value === 'string' ? 'a string' : String(value);
}
