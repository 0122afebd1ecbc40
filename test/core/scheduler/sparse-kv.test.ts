// Requests with a KV budget: kept tokens, pages, chunks and prefix hits, and the same outputs as alone.
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import type { SparsityConfig } from '../../../src/core/kvcache/sparsity/sparse-plan.ts';
import type { GenerationRequest } from '../../../src/core/protocol/ports.ts';
import type { LayerGroup } from '../../../src/util/step.ts';
import { expectComplete, limits, promptOf, request, World } from '../instance-world.ts';
import { alone, groups, type Settings, slotPages, sparsity } from './sparse-world.ts';

const besideWindow: readonly LayerGroup[] = [{ layers: 1, window: 50 }, ...groups];
const sparseOnly: readonly LayerGroup[] = [{ layers: 3, window: undefined, sparse: true }];

describe('pages', () => {
  test('decoding holds blocks of the full layers and slots, and the prompt stays as prefix cache', () => {
    const world = new World({ groups, sparsity });
    const one = request('a', promptOf(1, 200), { maxTokens: 100 });
    world.submit(one);
    while (world.of('a').tokens.length === 0) world.finishStep();
    // The prompt has 7 blocks, 6 of them full and cached.
    expect(world.instance.snapshot().pages).toMatchObject({ used: 7 + slotPages, cached: 6 * 2 });
    world.finishAll();
    // 299 tokens have keys and values in the full layer.
    expect(world.usedPagesMax).toBe(7 * 3 + slotPages);
    expect(world.of('a').tokens).toHaveLength(100);
    expect(world.instance.snapshot()).toMatchObject({
      pages: { used: 0 },
      sparse: { sequences: 0, slotPages: 0, selections: 1, promptTokens: 2 * 200, keptTokens: 2 * 64 },
    });
  });

  test('blocks of sparse layers leave the cache with the prompt if full KV is not kept', () => {
    const world = new World({ groups, sparsity: { ...sparsity, keepsFull: false } });
    world.submit(request('a', promptOf(1, 200)));
    while (world.of('a').tokens.length === 0) world.finishStep();
    expect(world.instance.snapshot().pages).toMatchObject({ used: 7 + slotPages, cached: 0 });
    world.finishAll();
  });

  test('a model of sparse layers alone decodes in its slots, however long the output is', () => {
    const world = new World({ groups: sparseOnly, sparsity, pages: 7 * 3 + 12 });
    world.submit(request('a', promptOf(1, 200), { maxTokens: 500 }));
    while (world.of('a').tokens.length === 0) world.finishStep();
    const held = new Set<number>();
    while (world.running !== undefined) {
      held.add(world.instance.snapshot().pages.used);
      world.finishStep();
    }
    expect(world.of('a').tokens).toHaveLength(500);
    expect([...held]).toEqual([12]);
    expect(world.usedPagesMax).toBe(7 * 3 + 12);
  });

  test('refuses a prompt whose blocks and slots exceed the pages', () => {
    const world = new World({ groups: sparseOnly, sparsity, pages: 7 * 3 + 11 });
    world.submit(request('a', promptOf(1, 200)), request('b', promptOf(2, 192)));
    expect(world.lastOf('a')).toMatchObject({ code: 'CONTEXT_TOO_LONG' });
    world.finishAll();
    expect(world.lastOf('b')?.kind).toBe('finished');
  });
});

describe('host memory', () => {
  const tiers: Settings = {
    groups,
    pages: 40,
    tiers: { hostBlocks: 40, ssdBlocks: 0 },
    contents: { onSsd: undefined },
  };

  test('holds blocks of full and sparse layers together, from which the same tokens are kept', () => {
    const world = new World({ ...tiers, sparsity });
    const one = request('a', promptOf(1, 200), { maxTokens: 30 });
    // The second prompt evicts the first one.
    world.submit(one, request('b', promptOf(2, 260)));
    world.finishAll();
    world.submit({ ...one, id: 'again' });
    expect(world.of('again').events[1]).toEqual({ kind: 'started', cachedTokens: 160, keptTokens: 64 });
    world.finishAll();
    expect(world.instance.snapshot().tiers?.reads.host).toBeGreaterThan(0);
    for (const id of ['a', 'again']) expect(world.of(id).tokens).toEqual(alone(one, { sparsity }));
  });

  test('serves prompts in turns where others evict them', () => {
    const world = new World({ ...tiers, pages: 50, tiers: { hostBlocks: 16, ssdBlocks: 0 }, sparsity });
    const requests = Array.from({ length: 9 }, (_, i) =>
      request(`r${i}`, promptOf(i % 3, 160 + 16 * (i % 4)), {
        ...{ maxTokens: 20 + 9 * i, priority: i % 5 },
        ...(i % 4 === 0 && { kvBudget: 'full' }),
      }),
    );
    for (const one of requests) {
      world.submit(one);
      for (let i = 0; i < 9 && world.running !== undefined; i++) world.finishStep();
    }
    world.finishAll();
    for (const one of requests) expect(world.of(one.id).tokens).toEqual(alone(one, { sparsity }));
    const { preemptions, tiers: moved, pages } = world.instance.snapshot();
    expect(preemptions).toBeGreaterThan(0);
    expect(moved?.reads.host).toBeGreaterThan(0);
    expect(pages.used).toBe(0);
  });

  test('loses the prompt too if full KV is not kept', () => {
    const world = new World({ ...tiers, sparsity: { ...sparsity, keepsFull: false } });
    world.submit(request('a', promptOf(1, 200)));
    world.finishAll();
    expect(world.instance.snapshot().tiers?.host.blocks).toBe(0);
  });
});

describe('kept tokens', () => {
  test('are the same with a prefix hit, in chunks, and beside other requests', () => {
    const one = request('a', promptOf(1, 300), { maxTokens: 90 });
    const expected = alone(one, {});
    for (const tokensMax of [57, 100, 256]) {
      const world = new World({ groups, sparsity, limits: { ...limits, tokensMax } });
      world.submit(request('first', promptOf(1, 280)), request('dense', promptOf(3, 70), { kvBudget: 'full' }));
      world.finishStep();
      world.submit(one);
      world.finishAll();
      expect(world.of('a').tokens).toEqual(expected);
      // A hit leaves 40 rows to compute.
      expect(world.of('a').events[1]).toEqual({ kind: 'started', cachedTokens: 256, keptTokens: 64 });
      world.submit(request('next', promptOf(1, 297)));
      expect(world.of('next').events[1]).toMatchObject({ cachedTokens: 256 });
      world.finishAll();
    }
  });

  test('change the output, and requests without a budget have the output of full KV', () => {
    const world = new World({ groups, sparsity: { ...sparsity, budget: undefined } });
    const full = request('full', promptOf(1, 300), { maxTokens: 50 });
    world.submit(full, { ...full, id: 'sparse', kvBudget: 64 }, { ...full, id: 'all', kvBudget: 1000 });
    world.finishAll();
    expectComplete(world, full);
    expect(world.of('sparse').tokens).not.toEqual(world.of('full').tokens);
    expect(world.of('sparse').events[1]).toMatchObject({ keptTokens: 64 });
    expect(world.of('all').events[1]).toMatchObject({ keptTokens: 300 });
  });

  test('tokens computed from kept ones are no prefix of another request', () => {
    const world = new World({ groups, sparsity });
    const one = request('a', promptOf(1, 128), { maxTokens: 70 });
    world.submit(one);
    world.finishAll();
    const next = request('next', [...one.prompt, ...world.of('a').tokens, ...promptOf(2, 60)]);
    world.submit(next);
    expect(world.of('next').events[1]).toMatchObject({ cachedTokens: 128 });
    world.finishAll();
    expect(world.of('next').tokens).toEqual(alone(next, {}));
  });

  test('a preempted sequence has the same kept tokens after it is rebuilt', () => {
    const requests = Array.from({ length: 4 }, (_, i) => request(`r${i}`, promptOf(i, 100), { maxTokens: 400 }));
    for (const compactEvery of [0, 16]) {
      const settings = { groups, sparsity: { ...sparsity, compactEvery } };
      const world = new World({ ...settings, pages: 70 });
      world.submit(...requests);
      world.finishAll();
      expect(world.instance.snapshot().preemptions).toBeGreaterThan(0);
      for (const one of requests) expect(world.of(one.id).tokens).toEqual(alone(one, settings));
    }
  });
});

test('a step that evicts kept tokens is not aborted for one of its requests', () => {
  const world = new World({ groups, sparsity });
  world.submit(request('a', promptOf(1, 100), { maxTokens: 30 }));
  while (world.of('a').tokens.length === 0) world.finishStep();
  world.submit(request('b', promptOf(2, 200)));
  world.finishStep();
  expect(world.running?.plan.sparse).toHaveLength(1);
  world.cancel('b');
  expect(world.abortRequests).toBe(0);
  world.finishAll();
  expect(world.instance.snapshot().pages.used).toBe(0);
});

test('requires steps that hold the rows of a selection', () => {
  expect(() => new World({ groups, sparsity: { ...sparsity, observed: 241 } })).toThrow('a step has 240 for them');
  expect(() => new World({ groups: [{ layers: 3, window: undefined }], sparsity })).toThrow('found 0');
});

describe('chosen pages', () => {
  const quest: Settings = { groups, sparsity: { ...sparsity, pages: { topP: 1 } } };

  test('a sequence holds its blocks and their bounds, and only its prompt is a prefix of another request', () => {
    const world = new World(quest);
    world.submit(request('a', promptOf(1, 200), { maxTokens: 100 }));
    while (world.of('a').tokens.length < 2) world.finishStep();
    expect(world.running?.plan.pageSelections).toMatchObject([{ group: 1, bounded: 6, budget: 2, topP: 1 }]);
    world.finishAll();
    // 10 blocks of 3 layers, and a page of bounds for each of two layers.
    expect(world.usedPagesMax).toBe(10 * 3 + 2);
    world.submit(request('next', [...promptOf(1, 200), ...world.of('a').tokens]));
    expect(world.of('next').events[1]).toEqual({ kind: 'started', cachedTokens: 192 });
    world.finishAll();
  });

  test('every request ends and nothing leaks where pages run out', () => {
    const world = new World({ ...quest, pages: 90 });
    const requests = Array.from({ length: 4 }, (_, i) =>
      request(`r${i}`, promptOf(i, 100), { maxTokens: 300, ...(i === 2 && { kvBudget: 'full' }) }),
    );
    world.submit(...requests, request('long', promptOf(9, 920)), request('longer', promptOf(8, 940)));
    world.finishAll();
    expect(world.lastOf('longer')).toMatchObject({ code: 'CONTEXT_TOO_LONG' });
    expect(world.lastOf('long')?.kind).toBe('finished');
    for (const one of requests) expectComplete(world, one);
    const { preemptions, pages } = world.instance.snapshot();
    expect(preemptions).toBeGreaterThan(0);
    expect(pages.used).toBe(0);
  });
});

const arbitraryAction = fc.record({
  kind: fc.constantFrom('submit', 'submit', 'finish', 'finish', 'finish', 'cancel', 'abort'),
  prompt: fc.constantFrom(1, 1, 2, 3),
  length: fc.integer({ min: 1, max: 150 }),
  maxTokens: fc.constantFrom(0, 1, 3, 40, 90),
  budget: fc.constantFrom<GenerationRequest['kvBudget']>(undefined, undefined, 30, 'full'),
  priority: fc.constantFrom(0, 0, 1),
  batch: fc.constantFrom(false, false, true),
  n: fc.nat(12),
});

const arbitrarySettings = fc.record({
  spare: fc.constantFrom(0, 7, 40),
  tokensMax: fc.constantFrom(52, 90, 256),
  all: fc.boolean(),
  shape: fc.constantFrom<SparsityConfig['shape']>('uniform', 'pyramid', [20, 70]),
  compactEvery: fc.constantFrom(0, 8),
  keepsFull: fc.boolean(),
  window: fc.constantFrom(false, false, true),
  hostBlocks: fc.constantFrom(0, 5, 30),
});

test('in random histories every request ends with the output that it gets alone, and nothing leaks', () => {
  let preempted = 0;
  fc.assert(
    fc.property(arbitrarySettings, fc.array(arbitraryAction, { minLength: 5, maxLength: 50 }), (drawn, actions) => {
      const { spare, tokensMax, all, shape, compactEvery, keepsFull, window, hostBlocks } = drawn;
      const settings: Settings = {
        groups: window ? besideWindow : all && shape === 'uniform' ? sparseOnly : groups,
        sparsity: { ...sparsity, shape, budget: typeof shape === 'string' ? 40 : undefined, compactEvery, keepsFull },
      };
      const usPerStep = { stepUsDecoding: 20_000, stepUsPrefill: 20_000 };
      const world = new World({
        ...settings,
        pages: 8 * (window ? 4 : 3) + 3 * 8 + spare,
        limits: { ...limits, tokensMax, sequencesMax: 5, logitRowsMax: 10, ...usPerStep },
        ...(hostBlocks > 0 && { tiers: { hostBlocks, ssdBlocks: 0 }, contents: { onSsd: undefined } }),
      });
      const requests: GenerationRequest[] = [];
      const cancelled = new Set<string>();
      for (const { kind, prompt, length, maxTokens, budget, priority, batch, n } of actions) {
        if (kind === 'submit') {
          const kvBudget = typeof shape === 'string' || budget === 'full' ? budget : undefined;
          const rest = { maxTokens, priority, batch, ...(kvBudget !== undefined && { kvBudget }) };
          requests.push(request(`r${requests.length}`, promptOf(prompt, length), rest));
          world.submit(requests[requests.length - 1] as GenerationRequest);
        } else if (kind === 'cancel') {
          if (requests.length > 0) {
            const { id } = requests[n % requests.length] as GenerationRequest;
            world.cancel(id);
            cancelled.add(id);
          }
        } else if (kind === 'finish') for (let i = 0; i < n && world.running !== undefined; i++) world.finishStep();
        else if (world.running !== undefined) world.abortStep(n);
      }
      world.finishAll(5_000);
      for (const one of requests) {
        if (cancelled.has(one.id)) continue;
        expect(world.lastOf(one.id)?.kind).toBe('finished');
        expect(world.of(one.id).tokens).toEqual(alone(one, settings));
      }
      const { waiting, running, pages, preemptions } = world.instance.snapshot();
      expect([waiting, running, pages.used, pages.free + pages.cached]).toEqual([0, 0, 0, pages.total]);
      preempted += preemptions;
    }),
    { numRuns: 16 },
  );
  expect(preempted).toBeGreaterThan(0);
});
