// Writes GGUF files (version 3, little endian).
import { closeSync, openSync, writeSync } from 'node:fs';

const alignment = 32;
const ids = { u32: 4, i32: 5, f32: 6, bool: 7, string: 8, array: 9 };

/**
 * @typedef {{ type: 'u32' | 'i32' | 'f32', value: number } | { type: 'bool', value: boolean } | { type: 'string', value: string }
 *   | { type: 'array', itemType: 'u32' | 'i32' | 'f32' | 'bool' | 'string', values: readonly (number | boolean | string)[] }} Value
 * @typedef {{ name: string, typeId: number, shape: readonly number[], bytes: Uint8Array }} Tensor shape row-major, outermost first;
 *   typeId as ggml numbers it
 */

export const u32 = (/** @type {number} */ value) => /** @type {Value} */ ({ type: 'u32', value });
export const f32 = (/** @type {number} */ value) => /** @type {Value} */ ({ type: 'f32', value });
export const bool = (/** @type {boolean} */ value) => /** @type {Value} */ ({ type: 'bool', value });
export const string = (/** @type {string} */ value) => /** @type {Value} */ ({ type: 'string', value });
/** @returns {Value} */
export const array = (/** @type {'u32' | 'i32' | 'f32' | 'bool' | 'string'} */ itemType, /** @type {readonly (number | boolean | string)[]} */ values) =>
  ({ type: 'array', itemType, values });

/**
 * @param {string} path
 * @param {readonly (readonly [string, Value])[]} metadata
 * @param {readonly Tensor[]} tensors
 */
export function writeGgufFile(path, metadata, tensors) {
  const file = openSync(path, 'w');
  try {
    writeSync(file, headerOf(metadata, tensors));
    for (const { bytes } of tensors) writeSync(file, padded(bytes));
  } finally {
    closeSync(file);
  }
}

function headerOf(metadata, tensors) {
  const entries = metadata.map(([key, value]) => Buffer.concat([text(key), number('u32', ids[value.type]), encode(value)]));
  let place = 0;
  const infos = tensors.map(({ name, typeId, shape, bytes }) => {
    const dims = [...shape].reverse().map(u64);
    const info = Buffer.concat([text(name), number('u32', shape.length), ...dims, number('u32', typeId), u64(place)]);
    place += bytes.byteLength + gap(bytes.byteLength);
    return info;
  });
  return padded(Buffer.concat([Buffer.from('GGUF'), number('u32', 3), u64(tensors.length), u64(metadata.length), ...entries, ...infos]));
}

function encode(value) {
  if (value.type === 'string') return text(value.value);
  if (value.type !== 'array') return number(value.type, value.value);
  const items = value.values.map((item) => (value.itemType === 'string' ? text(item) : number(value.itemType, item)));
  return Buffer.concat([number('u32', ids[value.itemType]), u64(items.length), ...items]);
}

function number(type, value) {
  const bytes = Buffer.alloc(type === 'bool' ? 1 : 4);
  if (type === 'f32') bytes.writeFloatLE(value);
  else if (type === 'i32') bytes.writeInt32LE(value);
  else if (type === 'bool') bytes.writeUInt8(value ? 1 : 0);
  else bytes.writeUInt32LE(value);
  return bytes;
}

function u64(value) {
  const bytes = Buffer.alloc(8);
  bytes.writeBigUInt64LE(BigInt(value));
  return bytes;
}

const text = (value) => Buffer.concat([u64(Buffer.byteLength(value)), Buffer.from(value)]);
const gap = (length) => (alignment - (length % alignment)) % alignment;
const padded = (bytes) => Buffer.concat([bytes, Buffer.alloc(gap(bytes.byteLength))]);
