// Small valid models in every file format, which the fuzz target mutates.

import { byteChars } from '../../src/text/vocabulary/byte-level.ts';
import { quantise } from '../../src/weights/quants/quantise.ts';
import type { TensorType } from '../../src/weights/types.ts';
import { asStored, configJson, type FamilyName } from '../weights/random-families.ts';
import { ggufMetadata, ggufTensors, type RandomModelSpec, randomTensors, tinySpec } from '../weights/random-model.ts';
import {
  bool,
  type GgufSpec,
  type GgufValue,
  numbers,
  text,
  texts,
  u32,
  writeSafetensors,
} from '../weights/writers.ts';

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };

/** A model of several files: JSON as values, so that mutations can change its structure, other files as bytes. */
export interface FolderSeed {
  readonly kind: 'folder';
  readonly name: string;
  readonly json: Readonly<Record<string, Json>>;
  readonly bytes: Readonly<Record<string, Uint8Array>>;
}

export interface GgufSeed {
  readonly kind: 'gguf';
  readonly name: string;
  readonly spec: GgufSpec;
}

export type Seed = FolderSeed | GgufSeed;

const vocabSize = 320;
const chatTemplate =
  "{{ bos_token }}{% for m in messages %}{{ '<|' + m['role'] + '|>' + (m['content'] | trim) }}{% endfor %}" +
  "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}";

const base: RandomModelSpec = {
  ...tinySpec,
  vocabSize,
  layers: 1,
  hiddenSize: 32,
  intermediateSize: 64,
  heads: 2,
  kvHeads: 1,
  maxPositions: 64,
};

const filler = (from: readonly string[]): string[] => [
  ...from,
  ...Array.from({ length: vocabSize - from.length }, (_, i) => `filler${i}`),
];

const letters = Array.from('abcdefghijklmnopqrstuvwxyz');
const controlType = 3;
const byteType = 6;

function sentencePieceMetadata(): (readonly [string, GgufValue])[] {
  const bytes = Array.from({ length: 256 }, (_, b) => `<0x${b.toString(16).toUpperCase().padStart(2, '0')}>`);
  const tokens = filler([
    '<unk>',
    '<s>',
    '</s>',
    ...bytes,
    '\u2581',
    ...letters,
    'he',
    'll',
    '\u2581he',
    'hell',
    'hello',
  ]);
  const types = tokens.map((token) => (/^<0x/.test(token) ? byteType : token.startsWith('<') ? controlType : 1));
  return [
    ['tokenizer.ggml.model', text('llama')],
    ['tokenizer.ggml.tokens', texts(tokens)],
    [
      'tokenizer.ggml.scores',
      numbers(
        'f32',
        tokens.map((_, id) => -id),
      ),
    ],
    ['tokenizer.ggml.token_type', numbers('i32', types)],
    ['tokenizer.ggml.bos_token_id', u32(1)],
    ['tokenizer.ggml.eos_token_id', u32(2)],
    ['tokenizer.ggml.unknown_token_id', u32(0)],
    ['tokenizer.ggml.add_bos_token', bool(true)],
    ['tokenizer.ggml.add_space_prefix', bool(true)],
    ['tokenizer.chat_template', text(chatTemplate)],
  ];
}

const merges = ['h e', 'l l', 'he ll', 'hell o', '\u0120 t', '\u0120t he'];
const bytePairTokens = filler([
  ...byteChars,
  'he',
  'll',
  'hell',
  'hello',
  '\u0120t',
  '\u0120the',
  '<|bos|>',
  '<|eos|>',
]);
const bosId = bytePairTokens.indexOf('<|bos|>');

function bytePairMetadata(): (readonly [string, GgufValue])[] {
  const types = bytePairTokens.map((token) => (token.startsWith('<|') ? controlType : 1));
  return [
    ['tokenizer.ggml.model', text('gpt2')],
    ['tokenizer.ggml.pre', text('qwen2')],
    ['tokenizer.ggml.tokens', texts(bytePairTokens)],
    ['tokenizer.ggml.token_type', numbers('i32', types)],
    ['tokenizer.ggml.merges', texts(merges)],
    ['tokenizer.ggml.bos_token_id', u32(bosId)],
    ['tokenizer.ggml.eos_token_id', u32(bosId + 1)],
    ['tokenizer.chat_template', text(chatTemplate)],
  ];
}

const sampling: readonly (readonly [string, GgufValue])[] = [
  ['general.sampling.temp', { type: 'f32', value: 0.5 }],
  ['general.sampling.top_k', u32(20)],
  ['general.sampling.penalty_repeat', { type: 'f32', value: 1.25 }],
];

function ggufSeed(
  name: string,
  spec: RandomModelSpec,
  type: TensorType,
  vocabulary: (readonly [string, GgufValue])[],
): GgufSeed {
  const metadata = ggufMetadata(spec).filter(([key]) => key !== 'tokenizer.ggml.model');
  return {
    kind: 'gguf',
    name,
    spec: { metadata: [...metadata, ...sampling, ...vocabulary], tensors: ggufTensors(spec, type), alignment: 32 },
  };
}

function tokenizerJson(): Json {
  const special = ['<|bos|>', '<|eos|>'].map((content, at) => ({
    ...{ id: bosId + at, content, single_word: false, lstrip: false, rstrip: false, normalized: false, special: true },
  }));
  const byteLevel = { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: true };
  return {
    version: '1.0',
    truncation: null,
    padding: null,
    added_tokens: special,
    normalizer: {
      type: 'Sequence',
      normalizers: [{ type: 'NFC' }, { type: 'Replace', pattern: { String: 'x' }, content: 'y' }],
    },
    pre_tokenizer: {
      type: 'Sequence',
      pretokenizers: [
        {
          type: 'Split',
          pattern: { Regex: '[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|\\s+' },
          behavior: 'Isolated',
          invert: false,
        },
        byteLevel,
      ],
    },
    post_processor: {
      type: 'TemplateProcessing',
      single: [{ SpecialToken: { id: '<|bos|>', type_id: 0 } }, { Sequence: { id: 'A', type_id: 0 } }],
      pair: [{ Sequence: { id: 'A', type_id: 0 } }, { Sequence: { id: 'B', type_id: 0 } }],
      special_tokens: { '<|bos|>': { id: '<|bos|>', ids: [bosId], tokens: ['<|bos|>'] } },
    },
    decoder: byteLevel,
    model: {
      type: 'BPE',
      dropout: null,
      unk_token: null,
      byte_fallback: false,
      vocab: Object.fromEntries(bytePairTokens.map((token, id) => [token, id])),
      merges: merges.map((merge) => merge.split(' ')),
    },
  };
}

const generation: Json = {
  temperature: 0.7,
  top_p: 0.9,
  top_k: 40,
  repetition_penalty: 1.1,
  max_new_tokens: 64,
  eos_token_id: [2, bosId + 1],
};
const tokenizerConfig: Json = {
  bos_token: '<|bos|>',
  eos_token: { content: '<|eos|>' },
  add_bos_token: true,
  chat_template: chatTemplate,
};

function folderSeed(name: string, spec: RandomModelSpec, shards: number, extra: Record<string, Json> = {}): FolderSeed {
  const tensors = randomTensors(spec).map((tensor) => {
    const { name, shape, values } = asStored(spec, tensor);
    return { name, shape, dtype: 'BF16', bytes: quantise('bf16', values) };
  });
  const fileOf = (shard: number): string =>
    shards === 1 ? 'model.safetensors' : `model-${shard + 1}-of-${shards}.safetensors`;
  const bytes: Record<string, Uint8Array> = {};
  for (let shard = 0; shard < shards; shard++)
    bytes[fileOf(shard)] = writeSafetensors(tensors.filter((_, at) => at % shards === shard));
  const index = {
    metadata: { total_size: tensors.reduce((sum, tensor) => sum + tensor.bytes.byteLength, 0) },
    weight_map: Object.fromEntries(tensors.map((tensor, at) => [tensor.name, fileOf(at % shards)])),
  };
  const config = configJson(spec) as Record<string, Json>;
  return {
    kind: 'folder',
    name,
    json: {
      'config.json': { ...config, ...extra },
      'generation_config.json': generation,
      'tokenizer.json': tokenizerJson(),
      'tokenizer_config.json': tokenizerConfig,
      'special_tokens_map.json': { bos_token: '<|bos|>' },
      ...(shards === 1 ? {} : { 'model.safetensors.index.json': index }),
    },
    bytes: { ...bytes, ...(shards === 1 ? {} : { 'chat_template.jinja': new TextEncoder().encode(chatTemplate) }) },
  };
}

const wide: RandomModelSpec = { ...base, hiddenSize: 256, intermediateSize: 256 };
const rope: Record<string, Json> = { rope_scaling: { rope_type: 'linear', factor: 2 }, architectures: ['X'] };

const families: readonly FamilyName[] = [
  ...(['mistral', 'gemma2', 'gemma3_text', 'phi3', 'gpt2', 'opt', 'bloom', 'gpt_neox'] as const),
];

/** Built once; mutations copy before a change. */
export function allSeeds(): readonly Seed[] {
  const further = families.map((architecture) =>
    folderSeed(architecture, { ...base, architecture, kvHeads: 2, layers: 2, window: 4 }, 1),
  );
  return [
    ggufSeed('gguf-q8_0', base, 'q8_0', sentencePieceMetadata()),
    ggufSeed('gguf-q4_0', { ...base, architecture: 'qwen2' }, 'q4_0', bytePairMetadata()),
    ggufSeed('gguf-q4_1', { ...base, architecture: 'qwen3', tieEmbeddings: true }, 'q4_1', sentencePieceMetadata()),
    ggufSeed('gguf-f16', base, 'f16', bytePairMetadata()),
    ggufSeed('gguf-q4_0-wide', wide, 'q4_0', sentencePieceMetadata()),
    folderSeed('folder', base, 1, rope),
    folderSeed('folder-shards', { ...base, architecture: 'qwen2' }, 3, rope),
    folderSeed('folder-tied', { ...base, architecture: 'qwen3', tieEmbeddings: true }, 1, rope),
    ...further,
  ];
}
