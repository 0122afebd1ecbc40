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
import { dequantise } from '../../../weights/quants/dequantise.ts';
import { expectTensor, type ModelFiles, rowBytes } from '../../../weights/types.ts';
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

/** What an endpoint serves of a model: `generation` has neither embeddings nor rankings. */
export type ServedTasks = 'all' | 'generation';

/** @param name model id for clients; undefined: the file or folder name */
export function createServedModel(
  files: ModelFiles,
  context: number,
  name: string | undefined,
  tasks: ServedTasks = 'all',
): ServedModel {
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
    ...(tasks === 'all' ? { ...vectorsOf(config), ...rankingOf(files, text?.tokenizer) } : onlyGeneration(config)),
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
export function vectorsOf(config: ModelConfig): Partial<ServedModel> {
  const { encoder, hiddenSize: columns, embedding = {}, ranking } = config;
  const { matryoshka, pooling: stated } = embedding;
  // A classifier has no head for tokens, or one that it was not trained with.
  if (ranking === 'label' || ranking === 'rows') return { generates: false, ranks: true };
  if (encoder === undefined)
    return { embedding: { pooling: stated ?? 'last', poolings: ['last', 'mean'], columns, matryoshka } };
  if (encoder.labels !== undefined) return { generates: false, ranks: true };
  const poolings = ['mean', 'cls'] as const;
  return { generates: false, embedding: { pooling: stated ?? 'mean', poolings, columns, matryoshka } };
}

function onlyGeneration(config: ModelConfig): Partial<ServedModel> {
  return vectorsOf(config).generates === false ? { generates: false } : {};
}

/** True if the file, its folder or its repository is called Qwen3-Reranker: no file states the use of these models. */
function isNamedReranker({ id, path }: ModelFiles): boolean {
  const [, repository = ''] = /^(?:.*\/)?models--[^/]*--([^/]+)\/snapshots\//.exec(path) ?? [];
  return [id, repository].some((name) => /qwen3-reranker/i.test(name));
}

/**
 * The row of a reranker's score.
 * @throws UsageError for a reranker without the tokens of its answers
 */
function rankingOf(files: ModelFiles, tokenizer: Tokenizer | undefined): Partial<ServedModel> {
  const { config, path } = files;
  const head = config.ranking ?? (config.architecture === 'qwen3' && isNamedReranker(files) ? 'answers' : undefined);
  if (head === undefined) return {};
  if (head === 'label') return { ranks: true, rankingRow: rowOf(files, 'score.weight', 0) };
  const [yes, no] = head === 'rows' ? [0, 1] : answerIds(tokenizer);
  if (yes === undefined || no === undefined)
    throw new UsageError(`Cannot serve ${path}: a reranker needs the tokens 'yes' and 'no'`);
  const answers = config.tieEmbeddings ? 'model.embed_tokens.weight' : 'lm_head.weight';
  const name = head === 'rows' ? 'cls.output.weight' : answers;
  const noRow = rowOf(files, name, no);
  return { ranks: true, rankingRow: rowOf(files, name, yes).map((value, i) => value - (noRow[i] as number)) };
}

function answerIds(tokenizer: Tokenizer | undefined): (number | undefined)[] {
  return ['yes', 'no'].map((text) => {
    const ids = tokenizer?.encode(text, { addSpecial: false }) ?? [];
    return ids.length === 1 ? ids[0] : undefined;
  });
}

/** @throws ModelFileError if the tensor is missing or of another width */
function rowOf(files: ModelFiles, name: string, row: number): Float32Array {
  const rows = files.tensor(name)?.shape[0] ?? row + 1;
  const info = expectTensor(files, name, [rows, files.config.hiddenSize]);
  const bytes = rowBytes(info);
  return dequantise(info.type, files.read(info, row * bytes, bytes));
}

/** All token ids that end a sequence. */
export function eosIdsOf(
  { config, generationDefaults }: ModelFiles,
  tokenizer: Tokenizer | undefined,
): readonly number[] {
  return [...new Set([...generationDefaults.eosIds, ...config.eosIds, ...(tokenizer?.eosIds ?? [])])];
}
