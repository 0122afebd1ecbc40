// JSON files of a model directory: limited in size and depth, and validated with errors that name file and key.
import { existsSync } from 'node:fs';
import type { z } from 'zod';
import { decodeUtf8 } from '../byte-cursor.ts';
import { ModelFileError, reasonOf } from '../errors.ts';
import { RandomAccessFile } from '../random-access-file.ts';

/** The text of a file of at most `bytesMax` bytes, or undefined when the file does not exist. */
export function readOptionalText(path: string, bytesMax: number): string | undefined {
  if (!existsSync(path)) return undefined;
  const file = new RandomAccessFile(path);
  try {
    if (file.size > bytesMax)
      throw new ModelFileError({
        file: path,
        reason: `the file has ${file.size} bytes, more than the ${bytesMax} allowed`,
      });
    const text = decodeUtf8(file.read(0, file.size), 0, file.size);
    if (text === undefined) throw new ModelFileError({ file: path, reason: 'the file is not valid UTF-8' });
    return text;
  } finally {
    file.close();
  }
}

export function readOptionalJson(path: string, bytesMax: number): unknown {
  const text = readOptionalText(path, bytesMax);
  return text === undefined ? undefined : parseJson(path, text);
}

/** @param offset of the text in the file, for errors */
export function parseJson(path: string, text: string, offset?: number): unknown {
  let json: unknown;
  try {
    json = JSON.parse(text);
  } catch (error) {
    throw new ModelFileError({ file: path, offset, reason: `invalid JSON: ${reasonOf(error)}` });
  }
  if (isDeeper(json, depthMax))
    throw new ModelFileError({ file: path, offset, reason: `the JSON is nested more than ${depthMax} levels deep` });
  return json;
}

/** Deeper than any real file; code that reads the values may recurse. */
const depthMax = 100;

function isDeeper(json: unknown, levels: number): boolean {
  let level: unknown[] = [json];
  for (let depth = 0; depth <= levels; depth++) {
    const inner: unknown[] = [];
    for (const value of level) {
      if (typeof value !== 'object' || value === null) continue;
      for (const member of Object.values(value)) if (typeof member === 'object' && member !== null) inner.push(member);
    }
    if (inner.length === 0) return false;
    level = inner;
  }
  return true;
}

/** @param prefix key of the value, for errors */
export function validate<T>(path: string, schema: z.ZodType<T>, json: unknown, prefix?: string): T {
  const result = schema.safeParse(json);
  if (result.success) return result.data;
  const issue = result.error.issues[0];
  const keys = [...(prefix === undefined ? [] : [prefix]), ...(issue?.path ?? [])];
  const key = keys.length > 0 ? keys.map(String).join('.') : undefined;
  throw new ModelFileError({ file: path, key, reason: issue?.message ?? 'the value is invalid' });
}
