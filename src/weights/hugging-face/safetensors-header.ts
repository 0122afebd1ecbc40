// The header of a safetensors file: its tensor directory, all of it validated.
import { decodeUtf8 } from '../byte-cursor.ts';
import { ModelFileError } from '../errors.ts';
import type { RandomAccessFile } from '../random-access-file.ts';
import { checkOverlap } from '../tensor-directory.ts';
import { storedBytes, type TensorType } from '../types.ts';
import { parseJson } from './json-file.ts';

/** The format's own limit. */
const headerBytesMax = 100_000_000;
const dimensionsMax = 16;

const dtypes: ReadonlyMap<string, TensorType> = new Map<string, TensorType>([
  ['F32', 'f32'],
  ['F16', 'f16'],
  ['BF16', 'bf16'],
]);

export interface SafetensorsEntry {
  readonly name: string;
  readonly dtype: string;
  /** undefined: the type cannot be read. */
  readonly type: TensorType | undefined;
  readonly shape: readonly number[];
  readonly byteLength: number;
  readonly offset: number;
}

export function readSafetensorsHeader(file: RandomAccessFile): SafetensorsEntry[] {
  const length = headerLength(file);
  const bytes = file.read(8, length);
  const text = decodeUtf8(bytes, 0, length);
  if (text === undefined)
    throw new ModelFileError({ file: file.path, offset: 8, reason: 'the header is not valid UTF-8' });
  const header = parseJson(file.path, text, 8);
  if (!isObject(header))
    throw new ModelFileError({ file: file.path, offset: 8, reason: 'the header is not a JSON object' });
  refuseDuplicates(file.path, text, Object.keys(header).length);
  const dataStart = 8 + length;
  const entries: SafetensorsEntry[] = [];
  for (const [name, entry] of Object.entries(header)) {
    if (name !== '__metadata__') entries.push(readEntry(file, name, entry, dataStart));
  }
  checkOverlap(file.path, entries);
  return entries;
}

function headerLength(file: RandomAccessFile): number {
  if (file.size < 8)
    throw new ModelFileError({
      file: file.path,
      offset: 0,
      reason: `the file has ${file.size} bytes: too few for a safetensors header`,
    });
  const claimed = file.read(0, 8).readBigUInt64LE(0);
  const available = file.size - 8;
  if (claimed > BigInt(available) || claimed > BigInt(headerBytesMax)) {
    const reason = `the header claims ${claimed} bytes where the file has ${available} left and at most ${headerBytesMax} are allowed`;
    throw new ModelFileError({ file: file.path, offset: 0, reason });
  }
  return Number(claimed);
}

function readEntry(file: RandomAccessFile, name: string, entry: unknown, dataStart: number): SafetensorsEntry {
  const fail = (reason: string, offset = 8): never => {
    throw new ModelFileError({ file: file.path, tensor: name, offset, reason });
  };
  if (!isObject(entry)) return fail('its directory entry is not an object');
  const { dtype, shape, data_offsets: offsets } = entry;
  if (typeof dtype !== 'string') return fail('its dtype is missing');
  if (!isSizes(shape) || shape.length > dimensionsMax)
    return fail(`its shape is not a list of at most ${dimensionsMax} sizes`);
  if (!isSizes(offsets)) return fail('its data_offsets are not two integers');
  const [begin, end] = offsets;
  if (begin === undefined || end === undefined || offsets.length !== 2 || begin > end)
    return fail('its data_offsets are not two ascending integers');
  const byteLength = end - begin;
  const offset = dataStart + begin;
  if (offset + byteLength > file.size) fail(`its ${byteLength} bytes end past the file's ${file.size} bytes`, offset);
  const type = dtypes.get(dtype);
  if (type !== undefined) {
    const expected = storedBytes(type, shape);
    if (typeof expected === 'string') return fail(expected, offset);
    if (expected !== byteLength)
      fail(`it has ${byteLength} bytes where shape [${shape.join(', ')}] in ${dtype} takes ${expected}`, offset);
  }
  return { name, dtype, type, shape, byteLength, offset };
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function isSizes(value: unknown): value is number[] {
  return Array.isArray(value) && value.every((size) => Number.isSafeInteger(size) && size >= 0);
}

/** JSON.parse keeps the last of duplicate keys, so the keys are counted in the text, which is valid JSON by now. */
function refuseDuplicates(path: string, text: string, keyCount: number): void {
  const keys = topLevelKeys(text);
  if (keys.length === keyCount) return;
  const seen = new Set<string>();
  const duplicate = keys.find((key) => seen.size === seen.add(key).size);
  throw new ModelFileError({ file: path, tensor: duplicate, offset: 8, reason: 'two tensors have this name' });
}

/**
 * Keys of the outermost object of valid JSON, duplicates included. A loop, because a corrupt string may fill the
 * header.
 */
function topLevelKeys(text: string): string[] {
  const keys: string[] = [];
  let depth = 0;
  let stringStart = 0;
  let stringEnd = 0;
  for (let at = 0; at < text.length; at++) {
    const character = text[at];
    if (character === '"') {
      stringStart = at;
      at = closingQuote(text, at);
      stringEnd = at + 1;
    } else if (character === '{' || character === '[') depth++;
    else if (character === '}' || character === ']') depth--;
    else if (character === ':' && depth === 1) keys.push(String(JSON.parse(text.slice(stringStart, stringEnd))));
  }
  return keys;
}

function closingQuote(text: string, openingQuote: number): number {
  let at = openingQuote + 1;
  while (text[at] !== '"') at += text[at] === '\\' ? 2 : 1;
  return at;
}
