// The text side of a model and its limits, as the gateway wants them.
import { statSync } from 'node:fs';
import { capacityTokens } from '../../../core/kvcache/layer-groups.ts';
import { textOf } from '../../../engine/model-text.ts';
import type { ServedModel } from '../../../gateway/http/served-model.ts';
import type { ModelConfig } from '../../../util/model-config.ts';
import { type LayerGroup, pageTokens } from '../../../util/step.ts';
import type { ModelFiles } from '../../../weights/types.ts';
import type { ModelOptions } from '../../options/options.ts';
import { UsageError } from '../../usage-error.ts';

type ContextOptions = Pick<ModelOptions, 'context' | 'kvMemory' | 'inputs'>;

/** Contexts longer than this are asked for by name, because their KV memory is. */
const contextTokensDefaultMax = 8192;

/**
 * Prompt plus output that a request may have: never more than the KV memory holds.
 * @throws UsageError when more is asked for than the model's positions or the memory given
 */
export function contextTokens(files: ModelFiles, { context, kvMemory, inputs }: ContextOptions): number {
  const { config } = files;
  if (context !== undefined && context > config.maxPositions) {
    throw new UsageError(`Cannot use --context ${context}: the model has ${config.maxPositions} positions`);
  }
  const wanted = context ?? Math.min(config.maxPositions, contextTokensDefaultMax);
  if (kvMemory === undefined) return wanted;
  const valueBytes = inputs === 'f32' ? 4 : 2;
  const pageBytes = 2 * config.kvHeads * config.headDim * valueBytes * pageTokens;
  const capacity = capacityTokens(layerGroups(config), Math.floor(kvMemory / pageBytes), pageTokens);
  if (context === undefined && capacity > 0) return Math.min(wanted, capacity);
  if (capacity >= wanted) return wanted;
  throw new UsageError(`Cannot use --kv-memory ${kvMemory}: it holds ${capacity} tokens, the context is ${wanted}`);
}

/** Layers without and with a window. */
function layerGroups({ layers, attention }: ModelConfig): readonly LayerGroup[] {
  const isWhole = (layer: number): boolean => (attention.layers?.[layer] ?? 'sliding') === 'full';
  const count = Array.from({ length: layers }, (_, layer) => layer).filter(isWhole).length;
  const whole = attention.window === undefined ? layers : count;
  return [
    { layers: whole, window: undefined },
    { layers: layers - whole, window: attention.window },
  ].filter((group) => group.layers > 0);
}

/** @param name the id clients use; undefined: the file's or folder's stem */
export function createServedModel(files: ModelFiles, context: number, name: string | undefined): ServedModel {
  const text = textOf(files);
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
