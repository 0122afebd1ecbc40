// Benches of sparse KV on requests and steps: closed loops over a scripted instance, and decode steps of the embedded model.
import { afterAll, expect, test } from 'vitest';
import { benchSparseDecode, decodeMethods } from '../../../src/bench/sparsity/decode.ts';
import { benchSparseServing } from '../../../src/bench/sparsity/serving.ts';
import type { GenerationEvent, GenerationRequest, InferencePort } from '../../../src/core/protocol/ports.ts';
import { emptySnapshot } from '../../../src/runtime/snapshots/metric-snapshots.ts';
import { openModel } from '../../../src/weights/open-model.ts';
import { backends } from '../../engine/backends.ts';
import { embeddedModel } from '../../engine/goldens.ts';

const [fastest] = backends.slice(-1);
const backend = fastest.create(2);
const files = openModel(`${embeddedModel}/kvasir-tiny-q8_0.gguf`);
afterAll(() => {
  backend.close();
  files.close();
});

/** Answers a token of each running request in every turn of the event loop. */
function scriptedPort(sent: GenerationRequest[]): InferencePort {
  const running = new Map<string, { left: number; sink: (event: GenerationEvent) => void }>();
  const turn = (): void => {
    for (const [id, request] of [...running]) {
      request.left--;
      if (request.left === 0) running.delete(id);
      request.sink({ kind: 'tokens', tokens: Int32Array.of(1), logprobs: undefined });
      if (request.left === 0) request.sink({ kind: 'finished', reason: 'length' });
    }
    if (running.size > 0) setImmediate(turn);
  };
  const snapshot = () => ({
    ...emptySnapshot,
    running: running.size,
    pages: { total: 10, used: running.size, cached: 0, free: 10 - running.size },
  });
  return {
    submit(request, sink) {
      sent.push(request);
      const { kvBudget } = request;
      sink({ kind: 'accepted' });
      sink({ kind: 'started', cachedTokens: 0, ...(typeof kvBudget === 'number' && { keptTokens: kvBudget }) });
      running.set(request.id, { left: request.maxTokens, sink });
      if (running.size === 1) setImmediate(turn);
    },
    cancel: (id) => void running.delete(id),
    overload: () => undefined,
    readiness: () => ({ kind: 'ready' }),
    snapshot,
    instances: () => [snapshot()],
    drain: async () => {},
  };
}

test('closed loops send new prompts, and count the tokens of all clients in the window', async () => {
  const sent: GenerationRequest[] = [];
  const { rows, pages } = await benchSparseServing({
    ...{ port: scriptedPort(sent), vocabSize: 100_000, promptTokens: 20, outputTokens: 8, requests: 2, rounds: 2 },
    loops: [
      { budget: 'full', clients: 2 },
      { budget: 6, clients: 4 },
    ],
    onProgress: () => {},
  });
  expect(pages).toBe(10);
  expect(rows).toMatchObject([
    { budget: 'full', clients: 2, timesFirst: 1, keptTokens: 20 },
    { budget: 6, clients: 4, keptTokens: 6 },
  ]);
  for (const { tokensPerSecond } of rows) expect(tokensPerSecond).toBeGreaterThan(0);
  expect(new Set(sent.map(({ prompt }) => prompt.join())).size).toBe(sent.length);
  // Clients start with outputs of different lengths.
  const starts = sent.filter(({ kvBudget, maxTokens }) => kvBudget === 6 && maxTokens < 8);
  expect(new Set(starts.map(({ maxTokens }) => maxTokens))).toEqual(new Set([2, 4, 6]));
});

test('a decode step of each method reads its share of the keys', () => {
  const sizes = { contexts: [2100], batch: 2, budget: 64, repeats: 1 };
  const forms = { weights: 'native', inputs: 'bf16' } as const;
  const report = benchSparseDecode(backend, {
    files,
    ...forms,
    ...sizes,
    methods: decodeMethods,
    onProgress: () => {},
  });
  const { layers, kvHeads, headDim } = files.config;
  const tokenMb = (2 * kvHeads * headDim * 2) / 1e6;
  const share = (tokens: number) => expect.closeTo(2 * tokens * tokenMb, 2);
  expect(report.rows).toMatchObject([
    { method: 'full', kvMb: share(layers * 2100), addedMb: 0 },
    { method: 'uniform', kvMb: share(layers * 64) },
    { method: 'pyramid', kvMb: share(layers * 64) },
    { method: 'quest', kvMb: share(2 * 2100 + (layers - 2) * 64), addedMb: share((layers - 2) * 66) },
  ]);
});
