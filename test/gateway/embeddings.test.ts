// /v1/embeddings: the shape of OpenAI, forms of input, encodings, dimensions and refusals.
import { describe, expect, it } from 'vitest';
import type { GenerationEvent, GenerationRequest } from '../../src/core/protocol/ports.ts';
import { bytesOf } from './openai/byte-tokenizer.ts';
import { accepted, finished, started } from './scripted-port.ts';
import { gateway, gatewayOptions } from './world.ts';

/** The vector of a prompt starts with its length. */
const embed = ({ prompt, pooling }: GenerationRequest): readonly GenerationEvent[] => [
  accepted,
  started(0),
  ...(pooling === undefined
    ? []
    : [{ kind: 'embedding', values: Float32Array.of(prompt.length, 0, 0, prompt.length) } as const]),
  finished('length'),
];

const embedding = { pooling: 'last', poolings: ['last', 'mean'], columns: 4, matryoshka: [2] } as const;
const { model } = gatewayOptions(gateway(embed).port);

async function answer(body: object, more: Partial<typeof model> = {}) {
  const world = gateway(embed, { model: { ...model, embedding, ...more } });
  const response = await world.post('/v1/embeddings', { model: 'bytes', ...body });
  const json = (await response.json()) as { data: { index: number; embedding: number[] | string }[]; usage: object };
  return { status: response.status, body: json, requests: world.port.requests };
}

const half = Math.SQRT1_2;

describe('/v1/embeddings', () => {
  it.each([
    ['a text', 'hé', [bytesOf('hé')]],
    ['texts', ['a', 'bc'], [bytesOf('a'), bytesOf('bc')]],
    ['token ids', [1, 2, 3], [[1, 2, 3]]],
    ['lists of token ids', [[1], [2, 3]], [[1], [2, 3]]],
  ])('embeds %s', async (_, input, prompts) => {
    const { status, body, requests } = await answer({ input, user: 'u' });
    expect(status).toBe(200);
    expect(requests.map(({ prompt }) => [...prompt])).toEqual(prompts);
    expect(requests.map(({ pooling, maxTokens }) => [pooling, maxTokens])).toEqual(prompts.map(() => ['last', 0]));
    expect(body.data.map(({ index }) => index)).toEqual(prompts.map((__, i) => i));
    for (const { embedding: values } of body.data) {
      expect(values).toHaveLength(4);
      expect(values[0]).toBeCloseTo(half, 6);
    }
    const tokens = prompts.reduce((sum, { length }) => sum + length, 0);
    expect(body).toMatchObject({
      ...{ object: 'list', model: 'bytes', usage: { prompt_tokens: tokens, total_tokens: tokens } },
      data: prompts.map(() => ({ object: 'embedding' })),
    });
  });

  it('writes base64 as little-endian float32', async () => {
    const { body } = await answer({ input: 'ab', encoding_format: 'base64' });
    const bytes = Buffer.from(String(body.data[0].embedding), 'base64');
    expect([0, 4, 8, 12].map((at) => bytes.readFloatLE(at))).toEqual([half, 0, 0, half].map(Math.fround));
  });

  it('cuts vectors to Matryoshka dimensions, and normalises them again', async () => {
    expect((await answer({ input: 'ab', dimensions: 2 })).body.data[0].embedding).toEqual([1, 0]);
    expect((await answer({ input: 'ab', dimensions: 4 })).status).toBe(200);
  });

  it('pools as the request names', async () => {
    expect((await answer({ input: 'ab', pooling: 'mean' })).requests[0].pooling).toBe('mean');
  });

  it.each([
    [400, 'input', {}],
    [400, 'input', { input: [] }],
    [400, 'input', { input: '' }],
    [400, 'input.1', { input: ['a', 3] }],
    [400, 'input', { input: [300] }],
    [400, 'input', { input: 'x'.repeat(101) }],
    [400, 'encoding_format', { input: 'a', encoding_format: 'int8' }],
    [400, 'dimensions', { input: 'a', dimensions: 3 }],
    [400, 'pooling', { input: 'a', pooling: 'cls' }],
    [400, 'temperature', { input: 'a', temperature: 1 }],
    [404, 'model', { input: 'a', model: 'other' }],
  ])('refuses with %i, naming %s', async (status, param, body) => {
    expect(await answer(body)).toMatchObject({ status, body: { error: { param } } });
  });

  it('refuses dimensions and vectors that the model does not state', async () => {
    const { body } = await answer(
      { input: 'a', dimensions: 2 },
      { embedding: { ...embedding, matryoshka: undefined } },
    );
    expect(body).toMatchObject({ error: { param: 'dimensions', message: expect.stringContaining('the model has 4') } });
    expect(await answer({ input: 'a' }, { embedding: undefined })).toMatchObject({
      ...{ status: 400, body: { error: { param: 'model' } } },
    });
  });
});

describe('/v1/rerank', () => {
  /** The score of a document is its share of the pair, minus a half. */
  const score = ({ prompt, pairFrom = 0 }: GenerationRequest): readonly GenerationEvent[] => [
    accepted,
    started(0),
    { kind: 'embedding', values: Float32Array.of((prompt.length - pairFrom) / 10 - 0.5) },
    finished('length'),
  ];
  const ranked = async (body: object, more: Partial<typeof model> = {}) => {
    const world = gateway(score, { model: { ...model, generates: false, ranks: true, ...more } });
    const response = await world.post('/v1/rerank', { model: 'bytes', ...body });
    return { status: response.status, body: (await response.json()) as object, requests: world.port.requests };
  };
  const documents = ['abc', { text: 'abcdefgh' }, 'abcde'];

  it('sorts documents by the sigmoid of their scores', async () => {
    const { body, requests } = await ranked({ query: 'q', documents, top_n: 2, return_documents: true });
    const sigmoid = (tokens: number): unknown => expect.closeTo(1 / (1 + Math.exp(0.5 - tokens / 10)), 6);
    const tokens = 3 * 2 + 3 + 8 + 5;
    expect(body).toEqual({
      ...{ id: expect.stringMatching(/^rerank-/), model: 'bytes' },
      results: [
        { index: 1, relevance_score: sigmoid(9), document: { text: 'abcdefgh' } },
        { index: 2, relevance_score: sigmoid(6), document: { text: 'abcde' } },
      ],
      usage: { prompt_tokens: tokens, total_tokens: tokens },
    });
    // The last token of the query, its end token, also ends the pair.
    expect(requests.map(({ prompt }) => [...prompt])[0]).toEqual(bytesOf('qabcq'));
    expect(requests.map(({ pairFrom, pooling }) => [pairFrom, pooling])).toEqual(documents.map(() => [1, 'cls']));
  });

  it.each([
    [400, 'query', { documents }],
    [400, 'documents', { query: 'q', documents: [] }],
    [400, 'documents.0', { query: 'q', documents: [3] }],
    [400, 'documents', { query: 'q', documents: ['x'.repeat(100)] }],
    [400, 'top_n', { query: 'q', documents, top_n: 0 }],
    [404, 'model', { query: 'q', documents, model: 'other' }],
  ])('refuses with %i, naming %s', async (status, param, body) => {
    expect(await ranked(body)).toMatchObject({ status, body: { error: { param } } });
  });

  it('asks a reranker that chats for yes or no, and takes the product of its last hidden state with a row', async () => {
    const { body, requests } = await ranked(
      { query: 'q', documents, instruction: 'Find it', top_n: 1 },
      { generates: true, contextTokens: 1000, rankingRow: Float32Array.of(-2) },
    );
    const prompts = requests.map(({ prompt }) => new TextDecoder().decode(Uint8Array.from(prompt)));
    const logit = -2 * ((prompts[0]?.length ?? 0) / 10 - 0.5);
    expect(body).toMatchObject({
      results: [{ index: 0, relevance_score: expect.closeTo(1 / (1 + Math.exp(-logit)), 12) }],
    });
    expect(prompts[1]).toMatch(
      /^<\|im_start\|>system\n.*<Instruct>: Find it\n<Query>: q\n<Document>: abcdefgh<\|im_end\|>\n/s,
    );
    expect(prompts[1]).toMatch(/<\|im_start\|>assistant\n<think>\n\n<\/think>\n\n$/);
    expect(requests.map(({ pooling, salt }) => [pooling, salt])).toEqual(documents.map(() => ['last', '']));
    expect(await ranked({ query: 'q', documents, instruction: 'x' })).toMatchObject({ status: 400 });
  });

  it('refuses models that do not rank, and those that rank refuse chats, embeddings and contexts', async () => {
    expect(await ranked({ query: 'q', documents }, { ranks: false })).toMatchObject({
      ...{ status: 400, body: { error: { param: 'model', message: "Cannot rerank: model 'bytes' is no reranker" } } },
    });
    const world = gateway(score, { model: { ...model, generates: false, ranks: true } });
    for (const [path, body] of [
      ['/v1/chat/completions', { messages: [{ role: 'user', content: 'a' }] }],
      ['/v1/completions', { prompt: 'a' }],
      ['/v1/embeddings', { input: 'a' }],
      ['/v1/contexts', { prompt: 'a' }],
    ] as const) {
      const response = await world.post(path, { model: 'bytes', ...body });
      expect([response.status, await response.json()]).toMatchObject([400, { error: { param: 'model' } }]);
    }
  });
});
