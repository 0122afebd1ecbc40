// Requests with a KV budget beside lent memory and attention workers: the same tokens as in an instance of their own, and
// as many at once as their pages allow.
import { describe, expect, test } from 'vitest';
import type { InstanceEvent } from '../../../src/core/protocol/events.ts';
import { Prng } from '../../../src/util/prng.ts';
import type { LayerGroup } from '../../../src/util/step.ts';
import { limits, promptOf, request, World } from '../instance-world.ts';
import { BorrowWorld } from '../lending/borrow-world.ts';
import { FakePrefixDriver } from '../transfer/fake-prefix-driver.ts';
import { alone, groups, type Settings, slotPages, sparsity } from './sparse-world.ts';

const sparseOnly: readonly LayerGroup[] = [{ layers: 2, window: undefined, sparse: true }];

describe('attention workers', () => {
  /** A worker ends during a step: the contents of its pages are lost, and its sequences are not answered. */
  function lose(world: World, worker: number, byRequests: boolean): void {
    const { pages, attentionWorkers = [] } = world.instance.snapshot();
    const share = pages.total / attentionWorkers.length;
    const clear = () => world.engine.clear(...(byRequests ? [worker * share, (worker + 1) * share] : []));
    clear();
    const running = world.running;
    world.deliver({ kind: 'attentionWorkerLost', worker });
    if (running === undefined) return;
    world.running = undefined;
    const { rowStart, sequenceWorkers } = running.plan;
    const all = Array.from({ length: rowStart.length - 1 }, (_, sequence) => sequence);
    const failed = new Set(all.filter((sequence) => !byRequests || sequenceWorkers?.[sequence] === worker));
    const result = world.engine.run(running.plan, failed);
    clear();
    world.deliver({ kind: 'stepDone', step: running.step, result });
  }

  test.each([
    ['heads', 2, 0],
    ['requests', 3, 8],
  ] as const)(
    'by %s: sequences that a lost worker held keep the same tokens again',
    (partition, workers, compactEvery) => {
      const settings: Settings = { groups, sparsity: { ...sparsity, compactEvery } };
      const world = new World({ ...settings, pages: workers * 60, attentionWorkers: { workers, partition } });
      const prng = new Prng(workers + compactEvery, 0);
      const requests = Array.from({ length: 5 }, (_, i) =>
        request(`r${i}`, promptOf(i % 3, 90 + 30 * i), {
          maxTokens: 20 + 10 * i,
          ...(i === 2 && { kvBudget: 'full' }),
        }),
      );
      for (const one of requests) {
        world.submit(one);
        for (let i = 0; i < 12 && world.running !== undefined; i++) world.finishStep();
        const worker = prng.integer(0, workers - 1);
        lose(world, worker, partition === 'requests');
        for (let i = 0; i < 2 && world.running !== undefined; i++) world.finishStep();
        world.deliver({ kind: 'attentionWorkerReady', worker });
      }
      world.finishAll();
      for (const one of requests) expect(world.of(one.id).tokens).toEqual(alone(one, settings));
      const { pages, sparse } = world.instance.snapshot();
      expect(pages.used).toBe(0);
      // Some prompts were selected again.
      expect(sparse?.selections).toBeGreaterThan(5);
    },
  );
});

describe('lent memory', () => {
  test('requests with a KV budget stay at home while others borrow, and have their tokens after aborted steps', () => {
    const world = new BorrowWorld({ blocks: [64, 64, 64], settles: true, seed: 1, sparsity });
    const long = request('long', promptOf(1, 2_600), { maxTokens: 24, kvBudget: 'full' });
    const budgeted = Array.from({ length: 6 }, (_, i) =>
      request(`r${i}`, promptOf(2 + (i % 3), 300 + 90 * i), { maxTokens: 40 + 20 * i }),
    );
    world.submit(budgeted[0], 0);
    world.submit(long, 0);
    for (const [i, one] of budgeted.slice(1).entries()) world.submit(one, i % 3);
    for (let turn = 0; turn < 2_000; turn++) world.advance(7_919 + turn, 150, turn % 53 === 0);
    world.finish();
    expect(world.remoteSteps).toBeGreaterThan(0);
    const settings = { groups: sparseOnly, sparsity };
    for (const one of [long, ...budgeted]) expect(world.tokensOf(one.id)).toEqual(alone(one, settings));
    expect(world.faults).toEqual([]);
  });

  test('a request with a KV budget that exceeds its instance is refused, whatever others lend', () => {
    const world = new BorrowWorld({ blocks: [64, 64, 64], settles: true, seed: 1, sparsity });
    world.submit(request('long', promptOf(1, 3_200)), 0);
    expect(world.lastOf('long')).toMatchObject({ code: 'CONTEXT_TOO_LONG' });
  });
});

const fullAndSparse: readonly LayerGroup[] = [
  { layers: 1, window: undefined },
  { layers: 1, window: undefined, sparse: true },
];

test.each([
  [0, false, fullAndSparse],
  [30, false, fullAndSparse],
  [0, true, sparseOnly],
])(
  'a prefix of another instance gives the same kept tokens: %i blocks of host memory, ahead of use %s',
  (hostBlocks, aheadOfUse, own) => {
    const contents = { onSsd: undefined };
    const settings: Settings = { groups: own, sparsity, aheadOfUse };
    const tiers = hostBlocks > 0 ? { hostBlocks, ssdBlocks: 0 } : undefined;
    const events: (readonly [to: number, InstanceEvent])[] = [];
    const worlds = [0, 1].map(
      (at) => new World({ ...settings, tiers, contents, pages: 60 }, (effect) => driver.apply(at, effect)),
    );
    const engines = worlds.map(({ engine }) => engine);
    const driver = new FakePrefixDriver(engines, 0, (_, to, event) => void events.push([to, event]));
    const one = request('a', promptOf(1, 200), { maxTokens: 30 });
    worlds[1].submit(one);
    worlds[1].finishAll();
    const prefix = { from: 1, blocks: 6, patienceUs: 1e12, transferUs: 0 };
    worlds[0].deliver({ kind: 'submit', request: one, prefix });
    while (events.length > 0 || driver.options().length > 0) {
      const [to, event] = events.shift() ?? [];
      if (event === undefined || to === undefined) driver.options()[0]?.();
      else {
        driver.onEvent(to, event);
        worlds[to].deliver(event);
      }
    }
    worlds[0].finishAll();
    expect(worlds[0].of('a').events[1]).toMatchObject({ cachedTokens: 160, keptTokens: 64 });
    expect(worlds[0].of('a').tokens).toEqual(alone(one, settings));
    expect(worlds[0].of('a').tokens).toEqual(worlds[1].of('a').tokens);
  },
);

test('a pinned prefix stays in full and sparse layers, and gives the same kept tokens', () => {
  const settings: Settings = { groups, sparsity };
  const world = new World({ ...settings, pages: 120, pinShare: 0.3 });
  const pin = request('pin', promptOf(1, 128), { maxTokens: 0 });
  world.deliver({ kind: 'pin', id: 'p', request: pin, ttlUs: 60_000_000 });
  world.finishAll();
  for (let i = 0; i < 4; i++) world.submit(request(`other ${i}`, promptOf(10 + i, 300)));
  world.finishAll();
  const one = request('a', promptOf(1, 190), { maxTokens: 40 });
  world.submit(one);
  world.finishAll();
  expect(world.of('a').events[1]).toEqual({ kind: 'started', cachedTokens: 128, keptTokens: 64 });
  expect(world.of('a').tokens).toEqual(alone(one, settings));
});

describe('admission', () => {
  /** Sequences that decode together. */
  function most(config: Settings, requests: number): number {
    const world = new World({ ...config, limits: { ...limits, sequencesMax: 64 } });
    const outputs = { maxTokens: 96 };
    for (let i = 0; i < requests; i++) world.submit(request(`r${i}`, promptOf(i, 320), outputs));
    let together = 0;
    while (world.running !== undefined) {
      together = Math.max(together, world.instance.snapshot().running);
      world.finishStep();
    }
    expect(world.instance.snapshot().preemptions).toBe(0);
    return together;
  }

  test('a pool holds as many sequences as its pages over those that each keeps', () => {
    // 415 tokens have keys and values: 13 blocks.
    const dense = 13 * 3;
    const kept = 13 + slotPages;
    const prefill = 13 * 3 + slotPages;
    const pages = 6 * dense;
    expect(most({ groups: [{ layers: 3, window: undefined }], pages }, 8)).toBe(6);
    // All but the last one decode while that is prefilled.
    const predicted = Math.floor((pages - prefill) / kept) + 1;
    expect(predicted).toBe(9);
    expect(most({ groups, sparsity, pages }, 12)).toBeGreaterThanOrEqual(predicted);
  });

  test('the step that selects kept tokens frees the pages of sparse layers', () => {
    const world = new World({ groups, sparsity: { ...sparsity, keepsFull: false } });
    world.submit(request('a', promptOf(1, 320), { maxTokens: 2 }));
    const used = () => world.instance.snapshot().pages;
    while (world.running?.plan.selections === undefined) world.finishStep();
    expect(used()).toMatchObject({ used: 10 * 3 + slotPages, cached: 0 });
    world.finishStep();
    expect(used()).toMatchObject({ used: 11 + slotPages, cached: 0, free: used().total - 11 - slotPages });
  });
});
