// Model configuration and generation defaults from GGUF metadata.
import type { Activation, AttentionConfig, LayerAttention, ModelConfig, Positions } from '../../util/model-config.ts';
import { extendedPositions, layersMax, withoutUndefined } from '../config-limits.ts';
import type { GenerationDefaults, ModelFiles } from '../types.ts';
import { ArchitectureKeys } from './gguf-keys.ts';
import type { GgufMetadata } from './gguf-metadata.ts';
import { ggufRope } from './gguf-rope.ts';
import { tokenId } from './gguf-tokenizer.ts';

/** What an architecture implies beyond its metadata keys. */
interface Family {
  readonly activation?: Activation;
  /** Name in src/models; default: that of the file. */
  readonly name?: string;
  /** Computes whole texts with bidirectional attention, and generates none. */
  readonly isEncoder?: true;
  /** Learned position embeddings instead of RoPE. */
  readonly learnedPositions?: true;
  /** Every n-th layer has full attention, the others a sliding window. undefined: all layers slide. */
  readonly fullEvery?: number;
  /** Defaults for keys that the file leaves out. */
  readonly window?: number;
  readonly softcap?: number;
  /** The model ignores `attn_logit_softcapping`. */
  readonly ignoresScoreCap?: true;
  readonly logitSoftcap?: number;
  /** RoPE base of the sliding-window layers when the file has none. */
  readonly slidingTheta?: number;
  /** Layer count of the model size with a query scale of hidden size / heads: no metadata key states it. */
  readonly layersOfHiddenScale?: number;
}

const families: ReadonlyMap<string, Family> = new Map<string, Family>([
  [
    'gemma2',
    {
      activation: 'gelu_tanh',
      fullEvery: 2,
      window: 4096,
      softcap: 50,
      logitSoftcap: 30,
      layersOfHiddenScale: 46,
    },
  ],
  [
    'gemma3',
    { activation: 'gelu_tanh', fullEvery: 6, ignoresScoreCap: true, slidingTheta: 10_000, layersOfHiddenScale: 62 },
  ],
  ['bert', { activation: 'gelu', learnedPositions: true, isEncoder: true }],
  ['nomic-bert', { name: 'nomic_bert', isEncoder: true }],
  ['gpt2', { activation: 'gelu_tanh', learnedPositions: true }],
]);

/** @throws ModelFileError that names the missing or invalid key */
export function ggufConfig(metadata: GgufMetadata, architecture: string, files: ModelFiles): ModelConfig {
  if (architecture === '') metadata.fail('general.architecture', 'the architecture is missing');
  const keys = new ArchitectureKeys(metadata, architecture);
  const family = families.get(architecture) ?? {};
  keys.refuse('expert_count', 'mixtures of experts are not supported');
  const hiddenSize = keys.size('embedding_length');
  const layers = keys.size('block_count', layersMax);
  const heads = keys.size('attention.head_count');
  const kvHeads = keys.optionalSize('attention.head_count_kv') ?? heads;
  if (heads % kvHeads !== 0) keys.fail('attention.head_count_kv', `${heads} heads cannot share ${kvHeads} key heads`);
  const headDim = headDimension(keys, hiddenSize, heads);
  const positions = positionsOf(keys, files, family, headDim);
  const scaleDim = layers === family.layersOfHiddenScale ? hiddenSize / heads : headDim;
  const scale = keys.positive('attention.scale') ?? 1 / Math.sqrt(scaleDim);
  const names = tensorNames(files);
  return {
    architecture: family.name ?? architecture,
    vocabSize: vocabularySize(metadata, keys, files),
    hiddenSize,
    intermediateSize: keys.size('feed_forward_length'),
    layers,
    heads,
    kvHeads,
    headDim,
    maxPositions: Math.max(keys.size('context_length'), extendedPositions(positions)),
    // GGUF files store the final gains, also where the original checkpoint stores gain - 1.
    norm: { eps: normEpsilon(keys), gainOffset: 0 },
    tieEmbeddings: !names.has('lm_head.weight'),
    biases: {
      qkv: hasAny(names, ['self_attn.q_proj.bias', 'self_attn.qkv_proj.bias', 'attn.c_attn.bias']),
      attentionOutput: hasAny(names, ['self_attn.o_proj.bias', 'attn.c_proj.bias']),
      mlp: hasAny(names, ['mlp.up_proj.bias', 'mlp.gate_up_proj.bias', 'mlp.c_fc.bias']),
    },
    activation: family.activation ?? 'silu',
    parallelResidual: false,
    positions,
    attention: {
      scale,
      ...windowsOf(keys, family, layers),
      softcap: family.ignoresScoreCap ? undefined : (keys.positive('attn_logit_softcapping') ?? family.softcap),
    },
    logitSoftcap: keys.positive('final_logit_softcapping') ?? family.logitSoftcap,
    ...(family.isEncoder && { encoder: { tokenTypes: files.tensor(tokenTypeTable)?.shape[0] ?? 1 } }),
    ...poolingOf(keys, files),
    bosId: tokenId(metadata, 'bos_token_id', undefined),
    eosIds: ggufEosIds(metadata),
  };
}

/** Head rows of "yes" and "no" in a reranker. */
const answerRows = 'cls.output.weight';
const tokenTypeTable = 'embeddings.token_type_embeddings.weight';

/** By the code of `pooling_type`; 0 states none. @throws ModelFileError for a ranking model without the rows of its answers */
function poolingOf(keys: ArchitectureKeys, files: ModelFiles): Pick<ModelConfig, 'embedding' | 'ranking'> {
  const code = keys.number('pooling_type');
  if (code === undefined || code === 0) return {};
  if (code === 4 && files.tensor(answerRows)?.shape[0] === 2) return { ranking: 'rows' };
  const pooling = ([undefined, 'mean', 'cls', 'last'] as const)[code];
  if (pooling === undefined)
    keys.fail(
      'pooling_type',
      `${code} is not supported: known are 1 (mean), 2 (cls), 3 (last), and 4 (rank) with two rows of ${answerRows}`,
    );
  return { embedding: { pooling } };
}

export function ggufGenerationDefaults(metadata: GgufMetadata): GenerationDefaults {
  const value = (name: string): number | undefined => {
    const key = `general.sampling.${name}`;
    const stored = metadata.number(key);
    if (stored !== undefined && stored < 0) metadata.fail(key, `${stored} is below 0`);
    // Values are stored as float32: 0.949999988079071 stands for 0.95.
    return stored === undefined ? undefined : Number(stored.toPrecision(7));
  };
  return withoutUndefined({
    temperature: value('temp'),
    topP: value('top_p'),
    topK: value('top_k'),
    minP: value('min_p'),
    repetitionPenalty: value('penalty_repeat'),
    maxNewTokens: undefined,
    eosIds: ggufEosIds(metadata),
  });
}

function ggufEosIds(metadata: GgufMetadata): number[] {
  const vocabSize = metadata.arrayLength('tokenizer.ggml.tokens');
  const ids = ['eos_token_id', 'eot_token_id', 'eom_token_id'].map((name) => tokenId(metadata, name, vocabSize));
  return [...new Set(ids.filter((id) => id !== undefined))];
}

function positionsOf(keys: ArchitectureKeys, files: ModelFiles, family: Family, headDim: number): Positions {
  if (family.learnedPositions) return { kind: 'learned', offset: 0 };
  return ggufRope(keys, files, headDim, family.slidingTheta);
}

function windowsOf(keys: ArchitectureKeys, family: Family, layers: number): Pick<AttentionConfig, 'window' | 'layers'> {
  const window = keys.optionalSize('attention.sliding_window') ?? family.window;
  if (window === undefined) return { window, layers: undefined };
  const key = 'attention.sliding_window_pattern';
  const listed = keys.flags(key);
  if (listed !== undefined) {
    if (listed.length < layers) keys.fail(key, `${listed.length} entries for ${layers} layers`);
    return { window, layers: layerKinds(layers, (layer) => listed[layer] === true) };
  }
  const fullEvery = keys.optionalSize(key) ?? family.fullEvery;
  if (fullEvery === undefined) return { window, layers: undefined };
  return { window, layers: layerKinds(layers, (layer) => (layer + 1) % fullEvery !== 0) };
}

function layerKinds(layers: number, slides: (layer: number) => boolean): LayerAttention[] {
  return Array.from({ length: layers }, (_, layer) => (slides(layer) ? 'sliding' : 'full'));
}

function headDimension(keys: ArchitectureKeys, hiddenSize: number, heads: number): number {
  const keyLength = keys.optionalSize('attention.key_length');
  const headDim = keyLength ?? hiddenSize / heads;
  if (!Number.isSafeInteger(headDim))
    keys.fail('attention.head_count', `${heads} heads do not divide the hidden size ${hiddenSize}`);
  const valueLength = keys.optionalSize('attention.value_length') ?? headDim;
  if (valueLength !== headDim)
    keys.fail('attention.value_length', `value size ${valueLength} with key size ${headDim} is not supported`);
  return headDim;
}

function normEpsilon(keys: ArchitectureKeys): number {
  const eps = keys.number('attention.layer_norm_rms_epsilon') ?? keys.number('attention.layer_norm_epsilon');
  if (eps === undefined || eps <= 0 || eps > 1)
    keys.fail('attention.layer_norm_rms_epsilon', `${eps ?? 'no value'} is not above 0 and at most 1`);
  return eps;
}

function vocabularySize(metadata: GgufMetadata, keys: ArchitectureKeys, files: ModelFiles): number {
  const embedding =
    files.tensor('model.embed_tokens.weight') ??
    files.tensor('transformer.wte.weight') ??
    files.tensor('embeddings.word_embeddings.weight');
  const size = keys.optionalSize('vocab_size') ?? embedding?.shape[0] ?? metadata.arrayLength('tokenizer.ggml.tokens');
  return size ?? keys.fail('vocab_size', 'the vocabulary size is missing');
}

/** Names of all tensors, those of unsupported types included. */
function tensorNames(files: ModelFiles): ReadonlySet<string> {
  return new Set([...files.tensors(), ...files.unsupportedTensors()].map(({ name }) => name));
}

/** Whether the first layer has one of these tensors. */
function hasAny(names: ReadonlySet<string>, stems: readonly string[]): boolean {
  return stems.some((stem) => names.has(`model.layers.0.${stem}`) || names.has(`transformer.h.0.${stem}`));
}
