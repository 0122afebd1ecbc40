// Encoders over an instance: embeddings and scores of recorded references, from safetensors and GGUF.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { createServedModel } from '../../../src/cli/serve/model/served-model.ts';
import type { GenerationRequest } from '../../../src/core/protocol/ports.ts';
import { encoderLimits } from '../../../src/core/scheduler/executor/token-limits.ts';
import { Engine } from '../../../src/engine/engine.ts';
import { loadModel } from '../../../src/engine/load-model.ts';
import { textOf } from '../../../src/engine/model-text.ts';
import { rankingChat } from '../../../src/gateway/embeddings/rerank.ts';
import { ReferenceBackend } from '../../../src/kernel/reference/reference.ts';
import type { Pooling } from '../../../src/util/model-config.ts';
import { openModel } from '../../../src/weights/open-model.ts';
import type { ModelFiles } from '../../../src/weights/types.ts';
import { limits, request } from '../../core/instance-world.ts';
import { temporaryFolder } from '../../weights/temporary.ts';
import { f32, type GgufValue, numbers, text, texts, u32, writeGguf } from '../../weights/writers.ts';
import { nativeBackends } from '../backends.ts';
import { serve, tokensMax } from './serve-requests.ts';

interface Case {
  readonly text: string;
  readonly ids: readonly number[];
  readonly mean: readonly number[];
  readonly cls: readonly number[];
}

const data = join(import.meta.dirname, '../../data/encoders');
const recorded = (name: string): { readonly cases: readonly Case[] } =>
  JSON.parse(readFileSync(join(data, name, 'golden.json'), 'utf8'));

/** The vectors of all requests, in one batch; limits of 128 rows cut it into steps. */
function run(
  files: ModelFiles,
  requests: readonly GenerationRequest[],
  native: boolean,
): readonly (readonly number[])[] {
  const backend = native ? nativeBackends.at(-1)?.create(2) : new ReferenceBackend();
  if (backend === undefined) throw new Error('Cannot embed: there are no native kernels');
  const model = loadModel({ model: files, backend, inputs: 'f32' });
  const decoder = { ...limits, tokensMax, logitRowsMax: 32, sequencesMax: 6 };
  const encodes = files.config.encoder !== undefined;
  const step = encodes ? { ...encoderLimits(decoder, 64), tokensMax, scoredRows: 64 } : decoder;
  const rows = {
    tokensMax: encodes ? encoderLimits(decoder, 64).tokensMax : tokensMax,
    logitRowsMax: step.logitRowsMax,
  };
  const engine = new Engine({ model, backend, ...rows, kvBytes: 24 * model.kv.pageBytes });
  const { heard } = serve(engine, requests, { limits: step, encodes });
  engine.close();
  backend.close();
  return requests.map(({ id }) => heard.get(id)?.embedding ?? []);
}

function expectRecorded(files: ModelFiles, name: string, native = false): void {
  const { cases } = recorded(name);
  const poolings: readonly Pooling[] = ['mean', 'cls'];
  const requests = cases.flatMap(({ ids }, i) =>
    poolings.map((pooling) => request(`${pooling}-${i}`, ids, { pooling, maxTokens: 0 })),
  );
  const vectors = run(files, requests, native);
  cases.forEach(({ mean, cls }, i) => {
    for (const [got, wanted] of [
      [vectors[2 * i], mean],
      [vectors[2 * i + 1], cls],
    ]) {
      expect(got).toHaveLength(wanted.length);
      for (const [at, value] of wanted.entries()) expect(Math.abs(got[at] - value)).toBeLessThan(2e-4);
    }
  });
}

/** The folder as a GGUF file with the names and keys of llama.cpp. */
function asGguf(name: string, architecture: string, stems: readonly (readonly [RegExp, string])[]): ModelFiles {
  const folder = openModel(join(data, name));
  const json = readFileSync(join(data, name, 'tokenizer.json'), 'utf8');
  const { model } = JSON.parse(json) as { model: { vocab: Readonly<Record<string, number>> } };
  const pieces: string[] = [];
  for (const [piece, id] of Object.entries(model.vocab)) pieces[id] = piece;
  const isSpecial = (piece: string): boolean => /^\[(PAD|UNK|CLS|SEP|MASK)\]$/.test(piece);
  const { config } = folder;
  const metadata: Record<string, GgufValue> = {
    'general.architecture': text(architecture),
    [`${architecture}.block_count`]: u32(config.layers),
    [`${architecture}.context_length`]: u32(config.maxPositions),
    [`${architecture}.embedding_length`]: u32(config.hiddenSize),
    [`${architecture}.feed_forward_length`]: u32(config.intermediateSize),
    [`${architecture}.attention.head_count`]: u32(config.heads),
    [`${architecture}.attention.layer_norm_epsilon`]: f32(1e-12),
    [`${architecture}.pooling_type`]: u32(2),
    [`${architecture}.rope.freq_base`]: f32(1000),
    'tokenizer.ggml.model': text('bert'),
    'tokenizer.ggml.tokens': texts(
      pieces.map((piece) => (isSpecial(piece) ? piece : piece.startsWith('##') ? piece.slice(2) : `\u2581${piece}`)),
    ),
    'tokenizer.ggml.token_type': numbers(
      'i32',
      pieces.map((piece) => (isSpecial(piece) ? 3 : 1)),
    ),
    'tokenizer.ggml.cls_token_id': u32(2),
    'tokenizer.ggml.seperator_token_id': u32(3),
    'tokenizer.ggml.unknown_token_id': u32(1),
  };
  const tensors = [...folder.tensors()].map((info) => ({
    name: stems.reduce((found, [from, to]) => found.replace(from, to), info.name),
    type: info.type,
    shape: info.shape,
    bytes: folder.read(info, 0, info.byteLength),
  }));
  folder.close();
  return openModel(temporaryFolder().write(`${name}.gguf`, writeGguf({ metadata: Object.entries(metadata), tensors })));
}

const ggufStems: Readonly<Record<string, readonly (readonly [RegExp, string])[]>> = {
  bert: [
    [/^embeddings\.word_embeddings/, 'token_embd'],
    [/^embeddings\.position_embeddings/, 'position_embd'],
    [/^embeddings\.token_type_embeddings/, 'token_types'],
    [/^embeddings\.LayerNorm/, 'token_embd_norm'],
    [/^encoder\.layer\.(\d+)\./, 'blk.$1.'],
    [/attention\.self\.(q|k|v)[a-z]+/, 'attn_$1'],
    [/attention\.output\.dense/, 'attn_output'],
    [/attention\.output\.LayerNorm/, 'attn_output_norm'],
    [/intermediate\.dense/, 'ffn_up'],
    [/\.output\.dense/, '.ffn_down'],
    [/\.output\.LayerNorm/, '.layer_output_norm'],
  ],
  'nomic-bert': [
    [/^embeddings\.word_embeddings/, 'token_embd'],
    [/^embeddings\.token_type_embeddings/, 'token_types'],
    [/^emb_ln/, 'token_embd_norm'],
    [/^encoder\.layers\.(\d+)\./, 'blk.$1.'],
    [/attn\.Wqkv/, 'attn_qkv'],
    [/attn\.out_proj/, 'attn_output'],
    [/norm1/, 'attn_output_norm'],
    [/norm2/, 'layer_output_norm'],
    [/mlp\.fc12/, 'ffn_gate'],
    [/mlp\.fc11/, 'ffn_up'],
    [/mlp\.fc2/, 'ffn_down'],
  ],
};

describe.each(['bert', 'nomic-bert'])('%s', (name) => {
  test.each([false, true])('has the recorded embeddings and token ids, native kernels: %s', (native) => {
    if (native && nativeBackends.length === 0) return;
    const files = openModel(join(data, name));
    const tokenizer = textOf(files)?.tokenizer;
    for (const { text: input, ids } of recorded(name).cases) expect(tokenizer?.encode(input)).toEqual(ids);
    expectRecorded(files, name, native);
    files.close();
  });

  test('has the same embeddings and token ids as a GGUF file', () => {
    const files = asGguf(name, name, ggufStems[name]);
    const tokenizer = textOf(files)?.tokenizer;
    for (const { text: input, ids } of recorded(name).cases) expect(tokenizer?.encode(input)).toEqual(ids);
    expect(files.config.embedding).toEqual({ pooling: 'cls' });
    expectRecorded(files, name);
    files.close();
  });
});

describe('Qwen3-Embedding and Qwen3-Reranker', () => {
  const golden = JSON.parse(readFileSync(join(data, 'qwen3', 'golden.json'), 'utf8')) as {
    readonly embeddings: readonly { readonly text: string; readonly ids: readonly number[]; vector: number[] }[];
    readonly query: string;
    readonly rankings: readonly { readonly document: string; readonly ids: readonly number[]; score: number }[];
  };
  const vectorsOfLast = (files: ModelFiles, prompts: readonly (readonly number[])[], native: boolean) =>
    run(
      files,
      prompts.map((ids, i) => request(`${i}`, ids, { pooling: 'last', maxTokens: 0 })),
      native,
    );

  test.each([false, true])('have the recorded token ids and embeddings, native kernels: %s', (native) => {
    if (native && nativeBackends.length === 0) return;
    const files = openModel(join(data, 'qwen3'));
    expect(files.config.embedding).toEqual({ pooling: 'last' });
    const tokenizer = textOf(files)?.tokenizer;
    for (const { text: input, ids } of golden.embeddings) expect(tokenizer?.encode(input)).toEqual(ids);
    const vectors = vectorsOfLast(
      files,
      golden.embeddings.map(({ ids }) => ids),
      native,
    );
    for (const [i, { vector }] of golden.embeddings.entries()) {
      const length = Math.hypot(...(vectors[i] ?? []));
      for (const [at, value] of vector.entries())
        expect(Math.abs((vectors[i]?.[at] ?? 0) / length - value)).toBeLessThan(1e-4);
    }
    files.close();
  });

  test('rank as recorded, from yes and no of the head', () => {
    const files = openModel(join(data, 'qwen3'));
    const { ranks, rankingRow = new Float32Array(), tokenizer, embedding } = createServedModel(files, 512, undefined);
    expect([ranks, embedding?.pooling]).toEqual([true, 'last']);
    // The prompt of the endpoint is that of the model card.
    for (const { document, ids } of golden.rankings)
      expect(tokenizer?.encode(rankingChat(golden, document), { addSpecial: false })).toEqual(ids);
    const vectors = vectorsOfLast(
      files,
      golden.rankings.map((each) => each.ids),
      nativeBackends.length > 0,
    );
    for (const [i, { score }] of golden.rankings.entries()) {
      const logit = (vectors[i] ?? []).reduce((sum, value, at) => sum + value * (rankingRow[at] ?? 0), 0);
      expect(Math.abs(1 / (1 + Math.exp(-logit)) - score)).toBeLessThan(1e-4);
    }
    files.close();
  });
});

test('states the pooling of modules.json, and Matryoshka dimensions', () => {
  const stated = (name: string) => openModel(join(data, name)).config.embedding;
  expect(stated('bert')).toEqual({ pooling: 'mean' });
  expect(stated('nomic-bert')).toEqual({ matryoshka: [16, 8] });
});

test('a cross-encoder has the recorded scores of pairs, which have two token types', () => {
  const { cases } = JSON.parse(readFileSync(join(data, 'bert-reranker', 'golden.json'), 'utf8')) as {
    readonly cases: readonly { readonly ids: readonly number[]; readonly types: readonly number[]; logit: number }[];
  };
  const files = openModel(join(data, 'bert-reranker'));
  expect(files.config.encoder).toEqual({ tokenTypes: 2, labels: 1 });
  const requests = cases.map(({ ids, types }, i) =>
    request(`${i}`, ids, { pooling: 'cls', maxTokens: 0, pairFrom: types.indexOf(1) }),
  );
  const scores = run(files, requests, nativeBackends.length > 0);
  for (const [i, { logit }] of cases.entries()) {
    expect(scores[i]).toHaveLength(1);
    expect(Math.abs(scores[i][0] - logit)).toBeLessThan(2e-4);
  }
  files.close();
});
