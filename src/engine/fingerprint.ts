// Names a model's weights: instances of the same weights get the same name, whatever the path.
import { createHash } from 'node:crypto';
import type { ModelFiles } from '../weights/types.ts';

/** Bytes of each tensor that count: enough to tell fine-tunes apart without reading the whole file. */
const sampleBytes = 1024;

/** 128 bits in hex, of every tensor's name, type, shape and first bytes. */
export function modelFingerprint(files: ModelFiles): string {
  const hash = createHash('sha256');
  for (const info of files.tensors()) {
    hash.update(`${info.name} ${info.type} ${info.shape.join('x')}\n`);
    hash.update(files.read(info, 0, Math.min(sampleBytes, info.byteLength)));
  }
  return hash.digest('hex').slice(0, 32);
}
