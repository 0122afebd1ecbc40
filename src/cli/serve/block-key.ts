// The hash key of block ids, stored beside the blocks on SSD: with another key they would have other ids.
import { randomBytes } from 'node:crypto';
import { linkSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { codeOf, makeFolder } from './host/make-folder.ts';

const keyBytes = 16;
const keyPattern = /^kvasir-block-key-1 ([0-9a-f]{32})\n$/;

/** Four words, read from the key file of the folder, which is created if it does not exist. @throws Error in one line */
export function blockKeyOf(folder: string): Uint32Array {
  const path = join(folder, 'key');
  makeFolder(folder, 'blocks');
  const known = readKey(path);
  if (known !== undefined) return known;
  // An atomic write that never replaces the key of another process.
  const draft = `${path}.${process.pid}`;
  try {
    writeFileSync(draft, keyText(randomBytes(keyBytes).toString('hex')), { mode: 0o600 });
    linkSync(draft, path);
  } catch (error) {
    if (codeOf(error) !== 'EEXIST')
      throw new Error(`Cannot keep blocks at ${folder}: it cannot be written: ${codeOf(error)}`);
  } finally {
    rmSync(draft, { force: true });
  }
  const key = readKey(path);
  if (key === undefined) throw new Error(`Cannot keep blocks at ${folder}: its key file disappeared`);
  return key;
}

/** The key of the folder's blocks; undefined if it has none. @throws Error in one line */
export function storedBlockKey(folder: string): readonly number[] | undefined {
  const key = readKey(join(folder, 'key'));
  return key && [...key];
}

/** Stores the key of the folder's blocks: a cluster has chosen it. @throws Error of the file system */
export function keepBlockKey(folder: string, key: readonly number[]): void {
  makeFolder(folder, 'blocks');
  if (storedBlockKey(folder)?.every((word, i) => word === key[i]) === true) return;
  const path = join(folder, 'key');
  const draft = `${path}.${process.pid}`;
  writeFileSync(draft, keyText(key.map((word) => word.toString(16).padStart(8, '0')).join('')), { mode: 0o600 });
  renameSync(draft, path);
}

function keyText(hex: string): string {
  return `kvasir-block-key-1 ${hex}\n`;
}

function readKey(path: string): Uint32Array | undefined {
  let text: string;
  try {
    text = readFileSync(path, 'utf8');
  } catch (error) {
    if (codeOf(error) === 'ENOENT') return undefined;
    throw error;
  }
  const hex = keyPattern.exec(text)?.[1];
  if (hex === undefined)
    throw new Error(`Cannot read ${path}: it is not a block key: remove it, or use another folder`);
  return Uint32Array.from({ length: 4 }, (_, i) => Number.parseInt(hex.slice(8 * i, 8 * i + 8), 16));
}
