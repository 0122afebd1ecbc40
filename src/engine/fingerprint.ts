// Identifies a model's weights: equal weights have equal fingerprints, whatever their path.
import { createHash } from 'node:crypto';
import type { ModelFiles } from '../weights/types.ts';

/** Bytes hashed of each tensor: enough to distinguish fine-tuned models without reading whole files. */
const sampleBytes = 1024;

/** 128 bits in hex over every tensor's name, type, shape and first bytes. */
export function modelFingerprint(files: ModelFiles): string {
  const hash = createHash('sha256');
  for (const info of files.tensors()) {
    hash.update(`${info.name} ${info.type} ${info.shape.join('x')}\n`);
    hash.update(files.read(info, 0, Math.min(sampleBytes, info.byteLength)));
  }
  return hash.digest('hex').slice(0, 32);
}
