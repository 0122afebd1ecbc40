// The served model of the gateway: tokenizer, template and limits.
import { statSync } from 'node:fs';
import { capacityTokens } from '../../../core/kvcache/layer-groups.ts';
import { kvTypeOf } from '../../../engine/forms.ts';
import { textOf } from '../../../engine/model-text.ts';
import type { ServedModel } from '../../../gateway/http/served-model.ts';
import type { Tokenizer } from '../../../text/tokenizer.ts';
import { kvTokenBytes } from '../../../util/kv-type.ts';
import type { ModelConfig } from '../../../util/model-config.ts';
import { type LayerGroup, pageTokens } from '../../../util/step.ts';
import type { ModelFiles } from '../../../weights/types.ts';
import type { ModelOptions } from '../../options/options.ts';
import { UsageError } from '../../usage-error.ts';

type ContextOptions = Pick<ModelOptions, 'context' | 'kvMemory' | 'inputs' | 'kvType'>;

/** Longer contexts need an explicit --context, because of their KV memory. */
const contextTokensDefaultMax = 8192;

/**
 * Limit of prompt plus output: at most the capacity of the KV memory.
 * @throws UsageError if the options exceed the positions of the model or the KV memory
 */
export function contextTokens(files: ModelFiles, options: ContextOptions): number {
  const { context, kvMemory } = options;
  const { config } = files;
  if (context !== undefined && context > config.maxPositions) {
    throw new UsageError(`Cannot use --context ${context}: the model has ${config.maxPositions} positions`);
  }
  const requested = context ?? Math.min(config.maxPositions, contextTokensDefaultMax);
  if (kvMemory === undefined) return requested;
  const pageBytes = kvTokenBytes(config, kvTypeOf(options)) * pageTokens;
  const capacity = capacityTokens(layerGroups(config), Math.floor(kvMemory / pageBytes), pageTokens);
  if (context === undefined && capacity > 0) return Math.min(requested, capacity);
  if (capacity >= requested) return requested;
  throw new UsageError(`Cannot use --kv-memory ${kvMemory}: it holds ${capacity} tokens, the context is ${requested}`);
}

/** Layers without and with a window. */
function layerGroups({ layers, attention }: ModelConfig): readonly LayerGroup[] {
  const isFull = (layer: number): boolean => (attention.layers?.[layer] ?? 'sliding') === 'full';
  const count = Array.from({ length: layers }, (_, layer) => layer).filter(isFull).length;
  const full = attention.window === undefined ? layers : count;
  return [
    { layers: full, window: undefined },
    { layers: layers - full, window: attention.window },
  ].filter((group) => group.layers > 0);
}

/** @param name model id for clients; undefined: the file or folder name */
export function createServedModel(files: ModelFiles, context: number, name: string | undefined): ServedModel {
  const text = textOf(files);
  const { config, generationDefaults: defaults } = files;
  return {
    id: name ?? files.id,
    createdS: Math.floor(statSync(files.path).mtimeMs / 1000),
    contextTokens: context,
    vocabSize: config.vocabSize,
    tokenizer: text?.tokenizer,
    chatTemplate: text?.chatTemplate,
    toolTemplate: text?.toolTemplate,
    bosToken: text?.bosToken,
    eosToken: text?.eosToken,
    eosIds: eosIdsOf(files, text?.tokenizer),
    ...vectorsOf(config),
    stated: defaults,
    defaults: {
      temperature: defaults.temperature ?? 1,
      topP: defaults.topP ?? 1,
      topK: defaults.topK ?? 0,
      minP: defaults.minP ?? 0,
      repetitionPenalty: defaults.repetitionPenalty ?? 1,
    },
  };
}

/** Embeddings of decoders and encoders, or scores of cross-encoders. */
export function vectorsOf({ encoder, hiddenSize: columns, embedding = {} }: ModelConfig): Partial<ServedModel> {
  const { matryoshka, pooling: stated } = embedding;
  if (encoder === undefined)
    return { embedding: { pooling: stated ?? 'last', poolings: ['last', 'mean'], columns, matryoshka } };
  if (encoder.labels !== undefined) return { generates: false, ranks: true };
  const poolings = ['mean', 'cls'] as const;
  return { generates: false, embedding: { pooling: stated ?? 'mean', poolings, columns, matryoshka } };
}

/** All token ids that end a sequence. */
export function eosIdsOf(
  { config, generationDefaults }: ModelFiles,
  tokenizer: Tokenizer | undefined,
): readonly number[] {
  return [...new Set([...generationDefaults.eosIds, ...config.eosIds, ...(tokenizer?.eosIds ?? [])])];
}
