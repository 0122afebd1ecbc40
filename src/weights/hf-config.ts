// config.json and generation_config.json of a Hugging Face directory, validated and normalised.
import { z } from 'zod';
import type { Activation, LayerAttention, ModelConfig } from '../util/model-config.ts';
import { layersMax, sizeMax, withoutUndefined } from './config-limits.ts';
import { ModelFileError } from './errors.ts';
import { ropesOf } from './hf-rope.ts';
import { validate } from './json-file.ts';
import type { GenerationDefaults } from './types.ts';

const size = z.int().min(1).max(sizeMax);
const tokenId = z.int().min(0).max(sizeMax);
const flag = z.boolean().nullish();

const configSchema = z.object({
  model_type: z.string().min(1).max(100),
  vocab_size: size,
  hidden_size: size.nullish(),
  n_embd: size.nullish(),
  intermediate_size: size.nullish(),
  n_inner: size.nullish(),
  ffn_dim: size.nullish(),
  num_hidden_layers: size.max(layersMax).nullish(),
  n_layer: size.max(layersMax).nullish(),
  num_attention_heads: size.nullish(),
  n_head: size.nullish(),
  num_key_value_heads: size.nullish(),
  head_dim: size.nullish(),
  max_position_embeddings: size.nullish(),
  n_positions: size.nullish(),
  rms_norm_eps: z.number().positive().max(1).nullish(),
  layer_norm_epsilon: z.number().positive().max(1).nullish(),
  layer_norm_eps: z.number().positive().max(1).nullish(),
  tie_word_embeddings: flag,
  attention_bias: flag,
  qkv_bias: flag,
  mlp_bias: flag,
  hidden_act: z.string().nullish(),
  hidden_activation: z.string().nullish(),
  activation_function: z.string().nullish(),
  rope_theta: z.unknown().optional(),
  rotary_emb_base: z.unknown().optional(),
  rope_scaling: z.unknown().optional(),
  rope_parameters: z.unknown().optional(),
  rope_local_base_freq: z.unknown().optional(),
  partial_rotary_factor: z.number().positive().max(1).nullish(),
  rotary_pct: z.number().positive().max(1).nullish(),
  sliding_window: size.nullish(),
  use_sliding_window: flag,
  max_window_layers: z.int().min(0).max(sizeMax).nullish(),
  layer_types: z.array(z.string()).nullish(),
  bos_token_id: tokenId.nullish(),
  eos_token_id: z.union([tokenId, z.array(tokenId)]).nullish(),
});

export type RawConfig = z.infer<typeof configSchema>;

const generationSchema = z.object({
  temperature: z.number().min(0).nullish(),
  top_p: z.number().min(0).max(1).nullish(),
  top_k: z.int().min(0).nullish(),
  min_p: z.number().min(0).max(1).nullish(),
  repetition_penalty: z.number().positive().nullish(),
  max_new_tokens: z.int().min(1).nullish(),
  eos_token_id: z.union([tokenId, z.array(tokenId)]).nullish(),
});

/** What a model type means when its configuration does not say (the defaults of its Hugging Face class). */
interface TypeDefaults {
  readonly tieEmbeddings?: boolean;
  readonly qkvBias?: boolean;
  readonly outputBias?: boolean;
  readonly mlpBias?: boolean;
  readonly headDim?: number;
  readonly activation?: Activation;
  readonly maxPositions?: number;
  readonly normEps?: number;
}

const biased: TypeDefaults = { qkvBias: true, outputBias: true, mlpBias: true };
const typeDefaults: ReadonlyMap<string, TypeDefaults> = new Map<string, TypeDefaults>([
  ['qwen2', { qkvBias: true }],
  ['qwen3', { headDim: 128 }],
  ['gemma2', { tieEmbeddings: true, headDim: 256 }],
  ['gemma3_text', { tieEmbeddings: true, headDim: 256 }],
  ['gpt2', { ...biased, tieEmbeddings: true }],
  ['opt', { ...biased, tieEmbeddings: true, normEps: 1e-5 }],
  ['bloom', { ...biased, tieEmbeddings: true, activation: 'gelu_tanh', maxPositions: 2048 }],
  ['gpt_neox', { ...biased }],
]);

const activations: ReadonlyMap<string, Activation> = new Map([
  ['silu', 'silu'],
  ['swish', 'silu'],
  ['gelu', 'gelu'],
  ['gelu_new', 'gelu_tanh'],
  ['gelu_pytorch_tanh', 'gelu_tanh'],
  ['gelu_fast', 'gelu_tanh'],
  ['relu', 'relu'],
]);

/**
 * @param file path for error messages
 * @param json parsed config.json
 * @throws ModelFileError naming the key that is missing or wrong
 */
export function huggingFaceConfig(file: string, json: unknown): ModelConfig {
  const raw = validate(file, configSchema, json);
  const defaults = typeDefaults.get(raw.model_type) ?? {};
  const need = (key: string, ...values: readonly (number | null | undefined)[]): number =>
    values.find((value) => value !== null && value !== undefined) ?? fail(file, key, 'the value is missing');
  const hiddenSize = need('hidden_size', raw.hidden_size, raw.n_embd);
  const heads = need('num_attention_heads', raw.num_attention_heads, raw.n_head);
  const kvHeads = raw.num_key_value_heads ?? heads;
  if (heads % kvHeads !== 0) fail(file, 'num_key_value_heads', `${heads} heads cannot share ${kvHeads} key heads`);
  const headDim = raw.head_dim ?? defaults.headDim ?? hiddenSize / heads;
  if (!Number.isSafeInteger(headDim))
    fail(file, 'num_attention_heads', `${heads} heads do not divide the hidden size ${hiddenSize}`);
  const layers = need('num_hidden_layers', raw.num_hidden_layers, raw.n_layer);
  const ropes = ropesOf(file, raw, headDim);
  const qkvBias = raw.attention_bias ?? raw.qkv_bias ?? defaults.qkvBias ?? false;
  return {
    architecture: raw.model_type,
    vocabSize: raw.vocab_size,
    hiddenSize,
    intermediateSize:
      raw.intermediate_size ?? raw.n_inner ?? raw.ffn_dim ?? feedForwardOf(file, raw.model_type, hiddenSize),
    layers,
    heads,
    kvHeads,
    headDim,
    ...ropes,
    maxPositions: need('max_position_embeddings', raw.max_position_embeddings, raw.n_positions, defaults.maxPositions),
    normEps: need('rms_norm_eps', raw.rms_norm_eps, raw.layer_norm_epsilon, raw.layer_norm_eps, defaults.normEps),
    tieEmbeddings: raw.tie_word_embeddings ?? defaults.tieEmbeddings ?? false,
    attentionBias: qkvBias,
    attentionOutputBias: raw.attention_bias ?? defaults.outputBias ?? false,
    mlpBias: raw.mlp_bias ?? defaults.mlpBias ?? false,
    activation: activationOf(file, raw, defaults.activation),
    ...windowOf(file, raw, layers),
    bosId: raw.bos_token_id ?? undefined,
    eosIds: idList(raw.eos_token_id),
  };
}

/** @param json parsed generation_config.json, undefined when there is none */
export function huggingFaceDefaults(file: string, json: unknown, config: ModelConfig): GenerationDefaults {
  const raw = json === undefined ? {} : validate(file, generationSchema, json);
  return withoutUndefined({
    temperature: raw.temperature ?? undefined,
    topP: raw.top_p ?? undefined,
    topK: raw.top_k ?? undefined,
    minP: raw.min_p ?? undefined,
    repetitionPenalty: raw.repetition_penalty ?? undefined,
    maxNewTokens: raw.max_new_tokens ?? undefined,
    eosIds: [...new Set([...idList(raw.eos_token_id), ...config.eosIds])],
  });
}

function feedForwardOf(file: string, modelType: string, hiddenSize: number): number {
  if (modelType === 'gpt2' || modelType === 'bloom') return 4 * hiddenSize;
  return fail(file, 'intermediate_size', 'the value is missing');
}

function activationOf(file: string, raw: RawConfig, fallback: Activation | undefined): Activation {
  // Gemma's files say gelu in hidden_act and mean what hidden_activation says.
  const name = raw.hidden_activation ?? raw.hidden_act ?? raw.activation_function;
  if (name === null || name === undefined) return fallback ?? 'silu';
  return (
    activations.get(name) ??
    fail(file, 'hidden_act', `activation "${name}" is not supported: known are ${[...activations.keys()].join(', ')}`)
  );
}

function windowOf(file: string, raw: RawConfig, layers: number): Pick<ModelConfig, 'slidingWindow' | 'layerAttention'> {
  const slidingWindow = raw.use_sliding_window === false ? undefined : (raw.sliding_window ?? undefined);
  if (slidingWindow === undefined) return { slidingWindow, layerAttention: undefined };
  if (raw.layer_types) {
    if (raw.layer_types.length !== layers)
      fail(file, 'layer_types', `${raw.layer_types.length} entries for ${layers} layers`);
    return { slidingWindow, layerAttention: raw.layer_types.map((type) => layerAttention(file, type)) };
  }
  const firstSliding = raw.model_type.startsWith('qwen') ? (raw.max_window_layers ?? 0) : 0;
  if (firstSliding === 0) return { slidingWindow, layerAttention: undefined };
  const kinds = Array.from(
    { length: layers },
    (_, layer): LayerAttention => (layer < firstSliding ? 'full' : 'sliding'),
  );
  return { slidingWindow, layerAttention: kinds };
}

function layerAttention(file: string, type: string): LayerAttention {
  if (type === 'full_attention') return 'full';
  if (type === 'sliding_attention') return 'sliding';
  return fail(
    file,
    'layer_types',
    `layer type "${type}" is not supported: known are full_attention, sliding_attention`,
  );
}

function idList(ids: number | readonly number[] | null | undefined): number[] {
  if (ids === null || ids === undefined) return [];
  return typeof ids === 'number' ? [ids] : [...new Set(ids)];
}

function fail(file: string, key: string, reason: string): never {
  throw new ModelFileError({ file, key, reason });
}
