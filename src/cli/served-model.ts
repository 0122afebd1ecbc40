// The text side of a model and its limits, as the gateway wants them.
import { statSync } from 'node:fs';
import type { ServedModel } from '../gateway/served-model.ts';
import { createModelText } from '../text/model-text.ts';
import type { ModelFiles } from '../weights/types.ts';

/** Contexts longer than this are asked for by name, because their KV memory is. */
const contextTokensDefaultMax = 8192;

export function contextTokens(files: ModelFiles, asked: number | undefined): number {
  return asked ?? Math.min(files.config.maxPositions, contextTokensDefaultMax);
}

/** @param name the id clients use; undefined: the file's or folder's stem */
export function createServedModel(files: ModelFiles, context: number, name: string | undefined): ServedModel {
  const source = files.tokenizer;
  const text = source === undefined ? undefined : createModelText(source);
  const { config, generationDefaults: defaults } = files;
  const eosIds = [...new Set([...defaults.eosIds, ...config.eosIds, ...(text?.tokenizer.eosIds ?? [])])];
  return {
    id: name ?? files.id,
    createdS: Math.floor(statSync(files.path).mtimeMs / 1000),
    contextTokens: context,
    vocabSize: config.vocabSize,
    tokenizer: text?.tokenizer,
    chatTemplate: text?.chatTemplate,
    bosToken: text?.bosToken,
    eosToken: text?.eosToken,
    eosIds,
    defaults: {
      temperature: defaults.temperature ?? 1,
      topP: defaults.topP ?? 1,
      topK: defaults.topK ?? 0,
      minP: defaults.minP ?? 0,
      repetitionPenalty: defaults.repetitionPenalty ?? 1,
    },
  };
}
