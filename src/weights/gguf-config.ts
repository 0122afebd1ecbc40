// Model configuration and generation defaults out of GGUF metadata.
import type { ModelConfig, Rope, RopeScaling } from '../util/model-config.ts';
import { layersMax, sizeMax, withoutUndefined } from './config-limits.ts';
import { dequantise } from './dequantise.ts';
import { ModelFileError } from './errors.ts';
import type { GgufMetadata } from './gguf-metadata.ts';
import { tokenId } from './gguf-tokenizer.ts';
import { expectTensor, type GenerationDefaults, type ModelFiles, type TensorInfo } from './types.ts';

/** @throws ModelFileError naming the key that is missing or wrong */
export function ggufConfig(metadata: GgufMetadata, architecture: string, files: ModelFiles): ModelConfig {
  if (architecture === '') metadata.fail('general.architecture', 'the architecture is missing');
  const reader = new ArchitectureReader(metadata, architecture);
  reader.refuse('expert_count', 'mixtures of experts are not supported');
  const hiddenSize = reader.size('embedding_length');
  const heads = reader.size('attention.head_count');
  const kvHeads = reader.optionalSize('attention.head_count_kv') ?? heads;
  if (heads % kvHeads !== 0) reader.fail('attention.head_count_kv', `${heads} heads cannot share ${kvHeads} key heads`);
  const headDim = headDimension(reader, hiddenSize, heads);
  const has = (name: string): boolean => someTensor(files, name);
  const rotaryDim = reader.optionalSize('rope.dimension_count') ?? headDim;
  if (rotaryDim > headDim)
    reader.fail('rope.dimension_count', `${rotaryDim} rotated dimensions in heads of ${headDim}`);
  return {
    architecture,
    vocabSize: vocabularySize(metadata, reader, files),
    hiddenSize,
    intermediateSize: reader.size('feed_forward_length'),
    layers: reader.size('block_count', layersMax),
    heads,
    kvHeads,
    headDim,
    maxPositions: reader.size('context_length'),
    norm: { eps: normEpsilon(reader), gainOffset: 0 },
    tieEmbeddings: !has('lm_head.weight'),
    biases: {
      qkv: has('model.layers.0.self_attn.q_proj.bias'),
      attentionOutput: has('model.layers.0.self_attn.o_proj.bias'),
      mlp: has('model.layers.0.mlp.up_proj.bias'),
    },
    activation: 'silu',
    parallelResidual: false,
    positions: { kind: 'rope', rotaryDim, rope: ropeOf(reader, rotaryDim, files), slidingRope: undefined },
    attention: {
      scale: 1 / Math.sqrt(headDim),
      softcap: undefined,
      window: reader.optionalSize('attention.sliding_window'),
      layers: undefined,
    },
    logitSoftcap: undefined,
    bosId: tokenId(metadata, 'bos_token_id', undefined),
    eosIds: ggufEosIds(metadata),
  };
}

export function ggufGenerationDefaults(metadata: GgufMetadata): GenerationDefaults {
  const value = (name: string): number | undefined => {
    const key = `general.sampling.${name}`;
    const stored = metadata.number(key);
    if (stored !== undefined && stored < 0) metadata.fail(key, `${stored} is below 0`);
    // Stored as float32: 0.95 was meant, not 0.949999988079071.
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

/** Keys under the architecture's own prefix. */
class ArchitectureReader {
  readonly metadata: GgufMetadata;
  readonly #prefix: string;

  constructor(metadata: GgufMetadata, architecture: string) {
    this.metadata = metadata;
    this.#prefix = architecture;
  }

  /** A size or count above 0; per-layer arrays must have one value throughout. */
  optionalSize(name: string, limit = sizeMax): number | undefined {
    const values = this.metadata.numbers(this.#key(name));
    const value = values?.[0];
    if (values === undefined || value === undefined || value === 0) return undefined;
    if (values.some((other) => other !== value)) this.fail(name, 'layers with different values are not supported');
    if (!Number.isSafeInteger(value) || value < 0 || value > limit)
      this.fail(name, `${value} is not an integer from 1 to ${limit}`);
    return value;
  }

  size(name: string, limit = sizeMax): number {
    return this.optionalSize(name, limit) ?? this.fail(name, 'the value is missing or 0');
  }

  number(name: string): number | undefined {
    return this.metadata.number(this.#key(name));
  }

  string(name: string): string | undefined {
    return this.metadata.string(this.#key(name));
  }

  refuse(name: string, reason: string): void {
    if ((this.number(name) ?? 0) !== 0) this.fail(name, reason);
  }

  fail(name: string, reason: string): never {
    return this.metadata.fail(this.#key(name), reason);
  }

  #key(name: string): string {
    return `${this.#prefix}.${name}`;
  }
}

function headDimension(reader: ArchitectureReader, hiddenSize: number, heads: number): number {
  const keyLength = reader.optionalSize('attention.key_length');
  const headDim = keyLength ?? hiddenSize / heads;
  if (!Number.isSafeInteger(headDim))
    reader.fail('attention.head_count', `${heads} heads do not divide the hidden size ${hiddenSize}`);
  const valueLength = reader.optionalSize('attention.value_length') ?? headDim;
  if (valueLength !== headDim)
    reader.fail('attention.value_length', `values of ${valueLength} beside keys of ${headDim} are not supported`);
  return headDim;
}

function normEpsilon(reader: ArchitectureReader): number {
  const eps = reader.number('attention.layer_norm_rms_epsilon') ?? reader.number('attention.layer_norm_epsilon');
  if (eps === undefined || eps <= 0 || eps > 1)
    reader.fail('attention.layer_norm_rms_epsilon', `${eps ?? 'no value'} is not above 0 and at most 1`);
  return eps;
}

function vocabularySize(metadata: GgufMetadata, reader: ArchitectureReader, files: ModelFiles): number {
  const stored = reader.optionalSize('vocab_size');
  const size =
    stored ?? files.tensor('model.embed_tokens.weight')?.shape[0] ?? metadata.arrayLength('tokenizer.ggml.tokens');
  return size ?? reader.fail('vocab_size', 'the vocabulary size is missing');
}

function ropeOf(reader: ArchitectureReader, rotaryDim: number, files: ModelFiles): Rope {
  const theta = reader.number('rope.freq_base') ?? 10_000;
  if (theta <= 0) reader.fail('rope.freq_base', `${theta} is not above 0`);
  const factors = files.tensor('rope_freqs.weight');
  const scaling = ropeScaling(reader);
  if (factors === undefined) return { theta, scaling };
  if (scaling.kind !== 'none')
    reader.fail('rope.scaling.type', `${scaling.kind} scaling beside the tensor rope_freqs.weight is not supported`);
  return {
    theta,
    scaling: {
      kind: 'divisors',
      divisors: ropeDivisors(files, expectTensor(files, 'rope_freqs.weight', [rotaryDim / 2])),
    },
  };
}

function ropeScaling(reader: ArchitectureReader): RopeScaling {
  const type = reader.string('rope.scaling.type');
  const legacy = reader.number('rope.scale_linear');
  const factor = reader.number('rope.scaling.factor') ?? legacy ?? 1;
  if (type !== undefined && type !== 'none' && type !== 'linear')
    reader.fail('rope.scaling.type', `rope scaling "${type}" is not supported: known are none, linear`);
  if (type === 'none' || factor === 1 || factor === 0) return { kind: 'none' };
  if (factor < 0) reader.fail('rope.scaling.factor', `${factor} is not above 0`);
  return { kind: 'linear', factor };
}

function ropeDivisors(files: ModelFiles, info: TensorInfo): number[] {
  const divisors = Array.from(dequantise(info.type, files.read(info, 0, info.byteLength)));
  if (divisors.every((divisor) => divisor > 0 && Number.isFinite(divisor))) return divisors;
  throw new ModelFileError({
    file: info.file,
    tensor: info.name,
    offset: info.offset,
    reason: 'a rope divisor is not a finite number above 0',
  });
}

/** Whether the model has the tensor, in whatever type. */
function someTensor(files: ModelFiles, name: string): boolean {
  for (const tensor of files.unsupportedTensors()) if (tensor.name === name) return true;
  for (const tensor of files.tensors()) if (tensor.name === name) return true;
  return false;
}
