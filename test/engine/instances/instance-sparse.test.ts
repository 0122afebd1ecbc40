// Instances over real engines: requests with a KV budget give the same bits in a batch, from cache and in few pages as
// alone, and requests without one those of full KV.
import { existsSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { openAttentionWorkers } from '../../../src/cli/serve/attention/attention-workers.ts';
import { openTiers } from '../../../src/cli/serve/instance-tiers.ts';
import type { InstanceSettings } from '../../../src/cli/serve/worker-settings.ts';
import type { SparsityConfig } from '../../../src/core/kvcache/sparsity/sparse-plan.ts';
import type { GenerationRequest } from '../../../src/core/protocol/ports.ts';
import { Engine } from '../../../src/engine/engine.ts';
import { greedyTokens } from '../../../src/engine/greedy.ts';
import { freeModel, loadModel } from '../../../src/engine/load-model.ts';
import type { NativeBackend } from '../../../src/kernel/native/native.ts';
import { overAttentionWorkers } from '../../../src/runtime/attention-workers/staggered-steps.ts';
import { slotPagesOfState } from '../../../src/util/step.ts';
import { baseConfig, greedy, limits, request } from '../../core/instance-world.ts';
import { type NamedBackend, nativeBackends } from '../backends.ts';
import { embeddedModel, sharedModels } from '../goldens.ts';
import { someTokens } from '../play.ts';
import { serve, tokensMax } from './serve-requests.ts';

const native = nativeBackends.at(-1);

type Rule = 'replace' | 'compact' | 'quest';

const sparsityOf = (headDim: number, rule: Rule): SparsityConfig => ({
  ...{ shape: 'pyramid', budget: 40, recent: 8, observed: 48, pooling: { kind: 'max', width: 5 }, headReduce: 'max' },
  ...{ compactEvery: rule === 'compact' ? 12 : 0, keepsFull: true },
  ...{ slotPagesOfState: slotPagesOfState(headDim, 'bf16'), pages: rule === 'quest' ? { topP: 1 } : undefined },
});

describe.skipIf(native === undefined).each(['replace', 'compact', 'quest'] as const)(
  'a model with two sparse layers, by %s',
  (rule) => {
    test('gives the bits of a single request in a batch, from cache and after preemptions', () => {
      const backend = (native as NamedBackend).create(2);
      const load = (sparseLayers?: readonly boolean[]) =>
        loadModel({ model: embeddedModel, backend, inputs: 'bf16', context: 1024, sparseLayers });
      const plain = load();
      const layers = plain.config.layers;
      const model = load(Array.from({ length: layers }, (_, layer) => layer >= layers - 2));
      const engineOf = (of: typeof model, pages: number): Engine =>
        new Engine({ model: of, backend, tokensMax, logitRowsMax: 32, kvBytes: pages * of.kv.pageBytes });
      const sparsity = sparsityOf(model.kv.headDim, rule);
      // The longest sequence fits alone.
      const [few, plenty, dense] = [
        engineOf(model, 12 * layers + 2),
        engineOf(model, 200 * layers),
        engineOf(plain, 800),
      ];

      const shared = someTokens(100, model.config.vocabSize, 3);
      const lengths = [150, 1, 70, 200];
      const requests = lengths.map((length, i): GenerationRequest => {
        const prompt = [...shared, ...someTokens(length, model.config.vocabSize, 11 + i)];
        const rest = { maxTokens: i === 3 ? 4 : 60, sampling: { ...greedy, topLogprobs: 0 }, priority: i };
        return request(`r${i}`, prompt, i === 2 ? { ...rest, kvBudget: 'full' } : rest);
      });
      const together = serve(few, requests.slice(0, 3), { sparsity }, requests.slice(3));
      for (const one of requests) {
        const alone = serve(plenty, [one], { sparsity });
        expect(together.heard.get(one.id)).toMatchObject({
          tokens: alone.heard.get(one.id)?.tokens,
          logprobs: alone.heard.get(one.id)?.logprobs,
        });
      }
      expect(together.heard.get('r2')?.tokens).toEqual(
        [...greedyTokens(dense, [...(requests[2]?.prompt ?? [])], 60)].map(({ token }) => token),
      );
      expect(together.snapshot.preemptions).toBeGreaterThan(0);
      expect(together.snapshot.cachedTokens).toBeGreaterThan(0);
      expect(together.snapshot.pages.used).toBe(0);
      for (const engine of [few, plenty, dense]) engine.close();
      for (const each of [plain, model]) freeModel(each, backend);
      backend.close();
    });
  },
);

test.skipIf(native === undefined)(
  'prompts loaded from host memory have the bits of computed ones, layer by layer',
  () => {
    const backend = (native as NamedBackend).create(2);
    const load = (sparseLayers?: readonly boolean[]) =>
      loadModel({ model: embeddedModel, backend, inputs: 'bf16', context: 1024, sparseLayers });
    const plain = load();
    const { layers } = plain.config;
    // The pages of a block do not lie in the order of computation.
    const model = load(Array.from({ length: layers }, (_, layer) => layer % 2 === 0));
    const { kv } = model;
    const [pages, hostBlocks] = [12 * layers, 40];
    const hostPages = (hostBlocks + 1) * layers;
    const engineOf = (count: number): Engine =>
      new Engine({ model, backend, tokensMax, logitRowsMax: 32, kvBytes: count * kv.pageBytes });
    const [few, plenty] = [engineOf(pages + hostPages), engineOf(200 * layers)];
    const sparsity = sparsityOf(kv.headDim, 'replace');
    const [root, hashKey, log] = [baseConfig.root, baseConfig.hashKey, () => undefined];
    const sizes = { hostBlocks, ssdBlocks: 0, pages: hostPages };
    const place = { sizes, kv, layers: few.layers, pool: few.pool, isa: backend.isa, root, hashKey, log };
    const tiers = openTiers(undefined, place, () => undefined);
    const requests = Array.from({ length: 6 }, (_, i): GenerationRequest => {
      const prompt = someTokens(200 + i, model.config.vocabSize, i % 2);
      return request(`r${i}`, prompt, { maxTokens: 12, sampling: { ...greedy, topLogprobs: 0 } });
    });
    const limited = { sparsity, pages, limits: { ...limits, tokensMax, sequencesMax: 1, logitRowsMax: 32 } };
    const { heard, snapshot } = serve(few, requests, { ...limited, ...tiers.machine }, [], tiers.live);
    for (const one of requests) {
      const alone = serve(plenty, [one], { sparsity });
      expect(heard.get(one.id)).toMatchObject({ ...alone.heard.get(one.id), cachedTokens: expect.any(Number) });
    }
    expect(snapshot.tiers?.reads.host).toBeGreaterThan(10);
    for (const engine of [few, plenty]) engine.close();
    for (const each of [plain, model]) freeModel(each, backend);
    backend.close();
  },
);

test.skipIf(native === undefined).each([
  ['heads', 2, 3, 'quest'],
  ['heads', 1, 1, 'compact'],
  ['requests', 1, 2, 'replace'],
] as const)(
  'attention workers by %s, with %i model workers and %i batches, give the bits of one instance, by %s',
  async (partition, modelWorkers, batches, rule) => {
    const backend = (native as NamedBackend).create(1) as NativeBackend;
    const load = (attention: 'pages' | 'workers', sparseLayers?: readonly boolean[]) =>
      loadModel({ model: embeddedModel, backend, inputs: 'bf16', context: 1024, attention, sparseLayers });
    const plain = load('pages');
    const { layers } = plain.config;
    const isSparse = Array.from({ length: layers }, (_, layer) => layer >= layers - 2);
    const [model, here] = [load('workers', isSparse), load('pages', isSparse)];
    const memory = { backend, tokensMax, logitRowsMax: 32 };
    const kvBytes = 80 * layers * model.kv.pageBytes;
    const attention = { partition, form: 'ranges', modelWorkers, batches, threads: 2 } as const;
    const settings = { attentionWorkers: attention, threads: 2, instances: 1, contextTokens: 1024 } as InstanceSettings;
    const workers = await openAttentionWorkers(settings, backend, model, { kvBytes, receivePages: 0 }, () => undefined);
    if (workers === undefined) throw new Error('no workers');
    const { pages, live, replicas, linked } = workers;
    const engine = new Engine({ ...memory, model, kvBytes, pagesAtWorkers: pages });
    const alone = new Engine({ ...memory, model: here, kvBytes });
    const sparsity = sparsityOf(model.kv.headDim, rule);
    const requests = [150, 260, 90, 200].map((length, i) =>
      request(`r${i}`, someTokens(length, model.config.vocabSize, 5 + i), {
        ...{ maxTokens: 24, sampling: { ...greedy, topLogprobs: 0 } },
        ...(i === 2 && { kvBudget: 'full' }),
      }),
    );
    const { run } = overAttentionWorkers(engine, live, ({ rows, keyRows }) => rows + keyRows / 100, replicas);
    const { heard } = serve({ run, pages, model }, requests, { sparsity, ...workers.machine });
    expect([...heard]).toEqual([...serve(alone, requests, { sparsity }).heard]);
    for (const worker of linked) worker.close();
    for (const each of [engine, alone]) each.close();
    for (const each of [plain, model, here]) freeModel(each, backend);
    for (const each of [...replicas, backend]) each.close();
  },
);

const windowed = `${sharedModels}/random/gemma2`;

test.skipIf(native === undefined || !existsSync(windowed))(
  'layers with a window beside full and sparse ones give the bits of a single request in a batch',
  () => {
    const backend = (native as NamedBackend).create(2);
    let noWindow = 0;
    const files = { model: windowed, backend, weights: 'bf16', inputs: 'bf16' } as const;
    const plain = loadModel(files);
    const { layers } = plain.config;
    // Layers with a window ignore the budget; the first other layer stays full.
    const isFull = (layer: number) => plain.config.attention.layers?.[layer] === 'full' && noWindow++ === 0;
    const model = loadModel({ ...files, sparseLayers: Array.from({ length: layers }, (_, layer) => !isFull(layer)) });
    expect(model.kv.groups.map(({ window, sparse }) => [window !== undefined, sparse === true]).sort()).toEqual([
      [false, false],
      [false, true],
      [true, false],
    ]);
    const engineOf = (pages: number): Engine =>
      new Engine({ model, backend, tokensMax, logitRowsMax: 32, kvBytes: pages * model.kv.pageBytes });
    const [few, plenty] = [engineOf(22 * layers), engineOf(100 * layers)];
    const sparsity = sparsityOf(model.kv.headDim, 'replace');
    const shared = someTokens(100, model.config.vocabSize, 3);
    const requests = [150, 1, 200].map((length, i) => {
      const prompt = [...shared, ...someTokens(length, model.config.vocabSize, 11 + i)];
      return request(`r${i}`, prompt, { maxTokens: 50, sampling: { ...greedy, topLogprobs: 0 }, priority: i });
    });
    const { heard, snapshot } = serve(few, requests.slice(0, 2), { sparsity }, requests.slice(2));
    for (const one of requests) {
      const { cachedTokens: _, ...alone } = serve(plenty, [one], { sparsity }).heard.get(one.id) ?? {};
      expect(heard.get(one.id)).toMatchObject(alone);
    }
    expect(snapshot.pages.used).toBe(0);
    expect(snapshot.sparse?.selections).toBeGreaterThanOrEqual(3);
    for (const engine of [few, plenty]) engine.close();
    for (const each of [plain, model]) freeModel(each, backend);
    backend.close();
  },
);
