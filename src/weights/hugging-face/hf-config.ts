// config.json and generation_config.json of a Hugging Face directory, validated and normalised.
import type {
  Activation,
  AttentionConfig,
  EncoderConfig,
  LayerAttention,
  ModelConfig,
  RankingHead,
} from '../../util/model-config.ts';
import { extendedPositions, withoutUndefined } from '../config-limits.ts';
import { ModelFileError } from '../errors.ts';
import type { GenerationDefaults } from '../types.ts';
import { type AllowedValues, type Family, familyOf, fixedEverywhere, slidingLayers } from './hf-families.ts';
import { ropesOf } from './hf-rope.ts';
import { configSchema, generationSchema, type RawConfig } from './hf-schema.ts';
import { readOptionalJson, validate } from './json-file.ts';

const activations: ReadonlyMap<string, Activation> = new Map([
  ['silu', 'silu'],
  ['swish', 'silu'],
  ['swiglu', 'silu'],
  ['gelu', 'gelu'],
  ['gelu_new', 'gelu_tanh'],
  ['gelu_pytorch_tanh', 'gelu_tanh'],
  ['gelu_fast', 'gelu_tanh'],
  ['relu', 'relu'],
]);

export type Settings = Readonly<Record<string, unknown>>;

export const configBytesMax = 1 << 24;

/** The architecture as src/models names it; empty when the file does not state it or cannot be read. */
export function huggingFaceArchitecture(file: string): string {
  try {
    return familyOf(readSettings(file)).architecture;
  } catch (error) {
    // Names and shapes can be listed without the architecture. Reading the configuration reports the error.
    if (error instanceof ModelFileError) return '';
    throw error;
  }
}

/**
 * @param file path for error messages
 * @param settings from config.json
 * @throws ModelFileError that names the missing, invalid or unsupported key
 */
export function huggingFaceConfig(file: string, settings: Settings): ModelConfig {
  const family = familyOf(settings);
  const raw = validate(file, configSchema, { ...family.defaults, ...settings });
  const need = (key: string, ...values: readonly (number | null | undefined)[]): number =>
    values.find((value) => value !== null && value !== undefined) ?? fail(file, key, 'the value is missing');
  const hiddenSize = need('hidden_size', raw.hidden_size, raw.n_embd, raw.n_embed);
  refuseUnsupported(file, settings, { ...fixedEverywhere, ...family.fixed?.(raw) });
  const heads = need('num_attention_heads', raw.num_attention_heads, raw.n_head);
  const kvHeads = raw.num_key_value_heads ?? heads;
  if (heads % kvHeads !== 0) fail(file, 'num_key_value_heads', `${heads} heads cannot share ${kvHeads} key heads`);
  const headDim = raw.head_dim ?? hiddenSize / heads;
  if (!Number.isSafeInteger(headDim))
    fail(file, 'num_attention_heads', `${heads} heads do not divide the hidden size ${hiddenSize}`);
  const layers = need('num_hidden_layers', raw.num_hidden_layers, raw.n_layer);
  const maxPositions = need('max_position_embeddings', raw.max_position_embeddings, raw.n_positions, raw.seq_length);
  const positions = family.positions ?? ropesOf(file, raw, headDim, maxPositions);
  return {
    architecture: family.architecture,
    vocabSize: raw.vocab_size,
    hiddenSize,
    intermediateSize: feedForwardOf(file, family, raw, hiddenSize),
    layers,
    heads,
    kvHeads,
    headDim,
    maxPositions: Math.max(maxPositions, extendedPositions(positions)),
    norm: {
      eps: need('rms_norm_eps', raw.rms_norm_eps, raw.layer_norm_epsilon, raw.layer_norm_eps),
      gainOffset: family.gainOffset ?? 0,
    },
    tieEmbeddings: raw.tie_word_embeddings ?? false,
    biases: family.biases(raw),
    activation: activationOf(file, raw),
    parallelResidual: raw.use_parallel_residual ?? false,
    positions,
    attention: attentionOf(file, family, raw, headDim, layers),
    logitSoftcap: raw.final_logit_softcapping ?? undefined,
    ...(family.isEncoder ? { encoder: encoderOf(file, raw) } : rankingOf(file, raw)),
    ...matryoshkaOf(raw),
    bosId: raw.bos_token_id ?? undefined,
    eosIds: idList(raw.eos_token_id),
  };
}

/** @param json parsed generation_config.json, undefined when the directory has none */
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

/**
 * Settings of a config.json. A multimodal model keeps the settings of its text model in `text_config`; they take
 * precedence.
 * @throws ModelFileError when the file is missing or not an object
 */
export function readSettings(file: string): Settings {
  const json = readOptionalJson(file, configBytesMax);
  if (json === undefined) throw new ModelFileError({ file, reason: 'the file is missing' });
  const outer = settingsOf(file, json);
  if (outer.text_config === undefined || outer.text_config === null) return outer;
  return { ...outer, ...settingsOf(file, outer.text_config, 'text_config') };
}

function settingsOf(file: string, json: unknown, key?: string): Settings {
  if (typeof json !== 'object' || json === null || Array.isArray(json))
    throw new ModelFileError({ file, key, reason: 'an object is expected' });
  return { ...json };
}

/** Refuses settings that would change the model's output and are not supported. */
function refuseUnsupported(file: string, settings: Readonly<Record<string, unknown>>, fixed: AllowedValues): void {
  for (const [key, allowed] of Object.entries(fixed)) {
    const value = settings[key];
    if (value === undefined || allowed.includes(value)) continue;
    const excerpt = JSON.stringify(value).slice(0, 80);
    fail(
      file,
      key,
      `${excerpt} is not supported: only ${allowed.filter((other) => other !== null).join(', ') || 'none'}`,
    );
  }
}

/** @throws ModelFileError for a head other than that of a cross-encoder */
function encoderOf(file: string, raw: RawConfig): EncoderConfig {
  const tokenTypes = raw.type_vocab_size ?? 1;
  return isClassifier(file, raw, 'bert') ? { tokenTypes, labels: 1 } : { tokenTypes };
}

/** @throws ModelFileError for a classifier other than a reranker of the Qwen3 family */
function rankingOf(file: string, raw: RawConfig): { readonly ranking?: RankingHead } {
  if (isClassifier(file, raw, 'qwen3')) return { ranking: 'label' };
  const isJudge = raw.model_type === 'qwen3' && raw.classifier_from_token?.join() === 'no,yes';
  return isJudge ? { ranking: 'answers' } : {};
}

/** @throws ModelFileError for a classifier of another family, or of several labels */
function isClassifier(file: string, raw: RawConfig, family: string): boolean {
  const { architectures, num_labels: count, id2label: labels } = raw;
  const [architecture = ''] = architectures ?? [];
  if (!architecture.endsWith('ForSequenceClassification')) return false;
  const number = labels ? Object.keys(labels).length : (count ?? 2);
  if (raw.model_type === family && number === 1) return true;
  return fail(
    file,
    'architectures',
    `"${architecture}" with ${number} labels is not supported: only bert and qwen3 with one`,
  );
}

function matryoshkaOf({
  is_matryoshka: isAny,
  matryoshka_dimensions: listed,
}: RawConfig): Pick<ModelConfig, 'embedding'> {
  if (listed) return { embedding: { matryoshka: listed } };
  return isAny === true ? { embedding: { matryoshka: 'any' } } : {};
}

function feedForwardOf(file: string, family: Family, raw: RawConfig, hiddenSize: number): number {
  const size = raw.intermediate_size ?? raw.n_inner ?? raw.ffn_dim;
  if (size !== null && size !== undefined) return size;
  return family.fourfoldMlp ? 4 * hiddenSize : fail(file, 'intermediate_size', 'the value is missing');
}

function activationOf(file: string, raw: RawConfig): Activation {
  // Gemma's files write gelu in hidden_act, but the model uses hidden_activation.
  const name = raw.hidden_activation ?? raw.hidden_act ?? raw.activation_function ?? 'silu';
  return (
    activations.get(name) ??
    fail(file, 'hidden_act', `activation "${name}" is not supported: known are ${[...activations.keys()].join(', ')}`)
  );
}

function attentionOf(file: string, family: Family, raw: RawConfig, headDim: number, layers: number): AttentionConfig {
  const scale = raw.scale_attn_weights === false ? 1 : 1 / Math.sqrt(raw.query_pre_attn_scalar ?? headDim);
  const softcap = family.ignoresScoreCap ? undefined : (raw.attn_logit_softcapping ?? undefined);
  const common = { scale, softcap };
  const window = raw.use_sliding_window === false || family.slides === 'never' ? undefined : raw.sliding_window;
  if (window === undefined || window === null) return { ...common, window: undefined, layers: undefined };
  const listed = raw.layer_types;
  if (!listed) return { ...common, window, layers: slidingLayers(family, raw, layers) };
  if (listed.length !== layers) fail(file, 'layer_types', `${listed.length} entries for ${layers} layers`);
  return { ...common, window, layers: listed.map((type) => layerAttention(file, type)) };
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
