// Models for the tokenizer tests.

import { existsSync } from 'node:fs';
import { resolve } from 'node:path';
import { createModelText, type ModelText } from '../../src/text/model-text.ts';
import type { GgufTokenizerData } from '../../src/text/vocabulary/gguf-tokenizer-data.ts';
import { openModel } from '../../src/weights/open-model.ts';
import type { TokenizerSource } from '../../src/weights/types.ts';

const root = resolve(import.meta.dirname, '../..');
export const embeddedModel = `${root}/models/kvasir-tiny/kvasir-tiny-q8_0.gguf`;
export const sharedModels = resolve(root, '../shared/models');
export const hasShared = existsSync(sharedModels);

function openSource(path: string): TokenizerSource {
  const files = openModel(path);
  const source = files.tokenizer;
  files.close();
  if (source === undefined) throw new Error(`Cannot read tokenizer: ${path} has none`);
  return source;
}

/** The tokenizer and template of a model on disk. */
export function openText(path: string): ModelText {
  return createModelText(openSource(path));
}

export function openVocabulary(path: string): GgufTokenizerData {
  const source = openSource(path);
  if (source.kind !== 'gguf') throw new Error(`Cannot read vocabulary: ${path} is no GGUF file`);
  return source.data;
}
