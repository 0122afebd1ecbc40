// Opens a model by its path: GGUF or Hugging Face.
import { existsSync, readdirSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { ModelFileError, reasonOf } from './errors.ts';
import { GgufFiles } from './gguf/gguf.ts';
import { onlyGgufModel } from './gguf/gguf-parts.ts';
import { HuggingFaceFiles } from './hugging-face/safetensors.ts';
import type { ModelFiles } from './types.ts';

/**
 * Reads the headers of a GGUF file, a Hugging Face directory, or a directory that holds a single GGUF model.
 * @param withTensors false: only text and configuration are read, and a Hugging Face directory needs no weights
 * @throws ModelFileError that names file and location; no file stays open
 */
export function openModel(path: string, withTensors = true): ModelFiles {
  if (!isDirectory(path)) {
    if (path.endsWith('.safetensors'))
      throw new ModelFileError({
        file: path,
        reason: 'give the directory of a safetensors model, not one of its files',
      });
    return new GgufFiles(path);
  }
  if (existsSync(join(path, 'config.json'))) return new HuggingFaceFiles(path, withTensors);
  const ggufs = readdirSync(path).filter((name) => name.toLowerCase().endsWith('.gguf'));
  const only = onlyGgufModel(ggufs);
  if (only === undefined) {
    throw new ModelFileError({
      file: path,
      reason: `the directory has no config.json and ${ggufs.length} GGUF files: name one`,
    });
  }
  return new GgufFiles(join(path, only));
}

function isDirectory(path: string): boolean {
  try {
    return statSync(path).isDirectory();
  } catch (error) {
    throw new ModelFileError({ file: path, reason: reasonOf(error) });
  }
}
