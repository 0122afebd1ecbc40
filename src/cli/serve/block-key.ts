// The key of blocks' identities, kept with blocks that outlive a process: under another key they would not be known again.
import { randomBytes } from 'node:crypto';
import { linkSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { codeOf, makeFolder } from './host/make-folder.ts';

const keyBytes = 16;
const keyPattern = /^kvasir-block-key-1 ([0-9a-f]{32})\n$/;

/** Four words: those in the folder, or new ones that are put there. @throws Error in one line */
export function blockKeyOf(folder: string): Uint32Array {
  const path = join(folder, 'key');
  makeFolder(folder, 'blocks');
  const known = readKey(path);
  if (known !== undefined) return known;
  // Whole or not at all, and never over somebody else's.
  const draft = `${path}.${process.pid}`;
  try {
    writeFileSync(draft, `kvasir-block-key-1 ${randomBytes(keyBytes).toString('hex')}\n`, { mode: 0o600 });
    linkSync(draft, path);
  } catch (error) {
    if (codeOf(error) !== 'EEXIST')
      throw new Error(`Cannot keep blocks at ${folder}: it cannot be written: ${codeOf(error)}`);
  } finally {
    rmSync(draft, { force: true });
  }
  const key = readKey(path);
  if (key === undefined) throw new Error(`Cannot keep blocks at ${folder}: its key has gone`);
  return key;
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
    throw new Error(`Cannot read ${path}: it is no key of blocks: remove it, or give another folder`);
  return Uint32Array.from({ length: 4 }, (_, i) => Number.parseInt(hex.slice(8 * i, 8 * i + 8), 16));
}
