// Placement: Algorithm 1 against an exhaustive search, the baselines, and the prefill queues.

import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { ChunkedPrefill } from '../../../src/core/cost/prefill.ts';
import { PrefixMatches } from '../../../src/core/kvcache/events/prefix-index.ts';
import type { ClusterView } from '../../../src/core/protocol/cluster-view.ts';
import { placedLoad } from '../../../src/core/protocol/instance-report.ts';
import {
  Placement,
  type PlacementCosts,
  type PlacementKind,
  placementKinds,
} from '../../../src/core/router/placement/placement.ts';
import { Placer } from '../../../src/core/router/placement/placer.ts';
import { PrefillQueues } from '../../../src/core/router/placement/prefill-queues.ts';

const blockTokens = 10;
const balancingThreshold = 2;
const backlogUs = [0, 500, 0, 300, 0, 0];

/** Instances of kind 1 are twice as slow; a transfer takes 3 us a token. */
const costs: PlacementCosts = {
  kinds: 2,
  prefillUs: (kind, tokens, cached) => (kind + 1) * (tokens - cached) * 20,
  transfers: {
    transferUs: (from, _to, tokens) => backlogUs[from % backlogUs.length] + 3 * tokens,
    latencyUs: () => 0,
    backlogUs: (from) => backlogUs[from % backlogUs.length] ?? 0,
  },
  readUs: (_instance, tokens) => 7 * tokens,
  overlapUs: () => 0,
};

function placement(kind: PlacementKind, changes: Partial<PlacementCosts> = {}): Placement {
  return new Placement({ kind, seed: [1, 2], balancingThreshold }, { ...costs, ...changes });
}

function matchesOf(blocks: readonly number[], onSsd: readonly number[] = []): PrefixMatches {
  const matches = new PrefixMatches(blocks.length);
  matches.onSsd.set(onSsd);
  for (const [i, count] of blocks.entries()) {
    if (count > 0) matches.instances[matches.count++] = i;
    matches.blocks[i] = count;
  }
  return matches;
}

const instance = fc.record({
  up: fc.boolean(),
  requests: fc.nat(5),
  queueUs: fc.nat(5_000),
  kind: fc.nat(1),
  own: fc.nat(10),
});
type InstanceState = Readonly<Record<'up' | 'requests' | 'queueUs' | 'kind' | 'own', number>>;

function viewOf(instances: readonly InstanceState[]): ClusterView {
  return {
    up: Uint8Array.from(instances, ({ up }) => up),
    requests: Int32Array.from(instances, ({ requests }) => requests),
    queueUs: Float64Array.from(instances, ({ queueUs }) => queueUs),
    kind: Uint8Array.from(instances, ({ kind }) => kind),
    slowness: new Float64Array(instances.length).fill(1),
  };
}

const clusters = fc
  .array(instance, { minLength: 1, maxLength: 6 })
  .map((all) => all.map((one): InstanceState => ({ ...one, up: Number(one.up) })));

describe('placement', () => {
  test('cache-aware takes the least predicted TTFT, and fetches a prefix where Algorithm 1 does and where that is faster', () => {
    const fetched = { yes: 0, no: 0 };
    fc.assert(
      fc.property(clusters, fc.integer({ min: 101, max: 400 }), fc.boolean(), (instances, tokens, fetching) => {
        const kind = fetching ? 'cache-aware' : 'local-cache-only';
        const matches = matchesOf(instances.map(({ own }) => own));
        const decision = placement(kind).choose({ number: 0, tokens, blockTokens, matches }, viewOf(instances));
        const longest = Math.max(...instances.map(({ own }) => own));
        // Among the instances with the longest prefix, the first one with the smallest send backlog.
        const holders = instances.flatMap(({ own }, i) => (own === longest ? [i] : []));
        const from = holders.toSorted((a, b) => (backlogUs[a] ?? 0) - (backlogUs[b] ?? 0) || a - b)[0] ?? 0;
        const candidates = instances.flatMap(({ up, queueUs, kind, own }, i) => {
          if (up === 0) return [];
          const alone = { i, fetchedBlocks: 0, us: queueUs + costs.prefillUs(kind, tokens, own * blockTokens) };
          if (!fetching || longest <= own * balancingThreshold) return [alone];
          const transferUs = costs.transfers?.transferUs(from, i, (longest - own) * blockTokens) ?? 0;
          const us = Math.max(queueUs, transferUs) + costs.prefillUs(kind, tokens, longest * blockTokens);
          return [alone, { i, fetchedBlocks: longest - own, us }];
        });
        if (decision === undefined) {
          expect(candidates).toEqual([]);
          return;
        }
        const { queueUs, transferUs, waitUs, prefillUs, localBlocks, fetchedBlocks } = decision;
        expect(waitUs).toBe(Math.max(queueUs, transferUs));
        expect(waitUs + prefillUs).toBe(Math.min(...candidates.map(({ us }) => us)));
        expect(candidates).toContainEqual({ i: decision.instance, fetchedBlocks, us: waitUs + prefillUs });
        expect(localBlocks).toBe(instances[decision.instance]?.own);
        expect(decision.from).toBe(fetchedBlocks > 0 ? from : undefined);
        fetched[fetchedBlocks > 0 ? 'yes' : 'no']++;
      }),
      { numRuns: 500 },
    );
    for (const count of Object.values(fetched)) expect(count).toBeGreaterThan(40);
  });

  test('fetches no prefix while nothing moves between instances', () => {
    const instances = [0, 10].map((own) => ({ up: 1, requests: 0, queueUs: own * 400, kind: 0, own }));
    const query = { number: 0, tokens: 120, blockTokens, matches: matchesOf([0, 10]) };
    const decision = placement('cache-aware', { transfers: undefined }).choose(query, viewOf(instances));
    expect(decision).toMatchObject({ instance: 0, localBlocks: 0, fetchedBlocks: 0, from: undefined, prefillUs: 2400 });
    expect(placement('cache-aware').choose(query, viewOf(instances))).toMatchObject({
      instance: 0,
      fetchedBlocks: 10,
      from: 1,
      transferUs: 800,
      prefillUs: 400,
    });
  });

  describe('of a prefix on SSD', () => {
    const idle = (queueUs: number) => ({ up: 1, requests: 0, queueUs, kind: 0, own: 0 });
    const choose = (own: readonly number[], onSsd: readonly number[], queueUs = [0, 0], overlapUs = 0) =>
      placement('cache-aware', { overlapUs: () => overlapUs }).choose(
        { number: 0, tokens: 120, blockTokens, matches: matchesOf(own, onSsd) },
        viewOf(queueUs.map(idle)),
      );

    test('counts its read time, which overlaps with the queue', () => {
      expect(choose([10, 0], [6, 0])).toMatchObject({
        instance: 0,
        ssdBlocks: 6,
        readyUs: 420,
        waitUs: 420,
        prefillUs: 400,
      });
      expect(choose([10, 0], [6, 0], [1_000, 5_000])).toMatchObject({ waitUs: 1_000, readyUs: 420 });
      // A shorter local prefix still beats a whole prefill.
      expect(choose([2, 0], [0, 0])).toMatchObject({ instance: 0, localBlocks: 2 });
    });

    test('adds the read time of the sender', () => {
      expect(choose([0, 10], [0, 4], [0, 9_000])).toMatchObject({
        ...{ instance: 0, from: 1, fetchedBlocks: 10, fetchedSsdBlocks: 4, ssdBlocks: 0 },
        transferUs: 500 + 3 * 100 + 7 * 40,
      });
    });

    test('subtracts the first step, which overlaps with the transfer', () => {
      expect(choose([10, 0], [6, 0], [0, 0], 400)).toMatchObject({ readyUs: 20, waitUs: 20 });
      expect(choose([0, 10], [0, 0], [100, 9_000], 400)).toMatchObject({ transferUs: 800, readyUs: 400, waitUs: 400 });
      expect(choose([0, 10], [0, 0], [100, 9_000], 2_000)).toMatchObject({ transferUs: 800, readyUs: 0, waitUs: 100 });
    });
  });

  test('counts the attention that an instance computes for debtors, in its own part of the time alone', () => {
    const idle = { up: 1, requests: 0, queueUs: 0, kind: 0, own: 0 };
    const query = { number: 0, tokens: 50, blockTokens, matches: matchesOf([0, 3, 0]) };
    const choose = (slowness: readonly number[], queueUs = [0, 0, 0]) =>
      placement('local-cache-only').choose(query, {
        ...viewOf(queueUs.map((us) => ({ ...idle, queueUs: us }))),
        slowness: Float64Array.from(slowness),
      });
    expect(choose([1, 1, 1])).toMatchObject({ instance: 1, prefillUs: 400 });
    expect(choose([1, 2, 1])).toMatchObject({ instance: 1, prefillUs: 800 });
    // 1,000 us for the whole prompt.
    expect(choose([1, 3, 2])).toMatchObject({ instance: 0, prefillUs: 1_000 });
    expect(choose([1, 3, 2], [300, 0, 0])).toMatchObject({ instance: 1, prefillUs: 1_200 });
  });

  test('among equals takes the instance with fewer requests, then the first', () => {
    const instances = [2, 1, 1].map((requests) => ({ up: 1, requests, queueUs: 0, kind: 0, own: 0 }));
    const query = { number: 0, tokens: 50, blockTokens, matches: matchesOf([0, 0, 0]) };
    for (const kind of ['cache-aware', 'least-loaded'] as const) {
      expect(placement(kind).choose(query, viewOf(instances))?.instance).toBe(1);
    }
  });

  test('among equal TTFTs takes the instance that fetches least, then the one that computes least', () => {
    const view = (kinds: readonly number[], requests: readonly number[]) =>
      viewOf(kinds.map((kind, i) => ({ up: 1, requests: requests[i] ?? 0, queueUs: 0, kind, own: 0 })));
    const choose = (own: readonly number[], kinds: readonly number[], requests: readonly number[], fetching: boolean) =>
      // Every fetch overlaps with computation.
      placement(fetching ? 'cache-aware' : 'local-cache-only', { overlapUs: () => 2_000 }).choose(
        { number: 0, tokens: 120, blockTokens, matches: matchesOf(own) },
        view(kinds, requests),
      );
    // 400 us behind the prefix of the last instance, on any instance.
    expect(choose([0, 4, 10], [0, 0, 0], [0, 0, 1], true)).toMatchObject({
      ...{ instance: 2, localBlocks: 10, fetchedBlocks: 0, from: undefined, prefillUs: 400 },
    });
    expect(choose([0, 4, 10, 10], [0, 0, 0, 0], [0, 0, 1, 0], true)).toMatchObject({ instance: 3, from: undefined });
    // The instance with the prefix is slower: the fetch goes to one that has a part of it.
    expect(choose([0, 4, 10], [0, 0, 1], [0, 1, 0], true)).toMatchObject({ instance: 1, fetchedBlocks: 6, from: 2 });
    // 2,400 us each: the slower instance takes as long for half of the rows.
    expect(choose([0, 6], [0, 1], [0, 1], false)).toMatchObject({ instance: 1, localBlocks: 6, prefillUs: 2_400 });
  });

  test('counts the latency before the first byte of a prefix, with which nothing overlaps', () => {
    const choose = (queueUs: readonly number[], onSsd = 0) => {
      const instances = queueUs.map((queueUs) => ({ up: 1, requests: 0, queueUs, kind: 0, own: 0 }));
      const transfers = { transferUs: () => 370, latencyUs: () => 70, backlogUs: () => 0 };
      return placement('cache-aware', { transfers, overlapUs: () => 2_000 }).choose(
        { number: 0, tokens: 120, blockTokens, matches: matchesOf([0, 10], [0, onSsd]) },
        viewOf(instances),
      );
    };
    expect(choose([0, 9_000])).toMatchObject({ instance: 0, from: 1, transferUs: 370, readyUs: 70, waitUs: 70 });
    expect(choose([100, 9_000])).toMatchObject({ instance: 0, readyUs: 70, waitUs: 100 });
    expect(choose([0, 9_000], 4)).toMatchObject({
      transferUs: 370 + 7 * 40,
      readyUs: 70 + 7 * 40,
      waitUs: 70 + 7 * 40,
    });
    expect(choose([0, 69])).toMatchObject({ instance: 1, from: undefined });
    expect(choose([0, 71])).toMatchObject({ instance: 0, from: 1 });
  });

  test('every policy takes only instances that are up, and uses the local prefix of the chosen one', () => {
    fc.assert(
      fc.property(clusters, fc.nat(1000), fc.constantFrom(...placementKinds), (instances, number, kind) => {
        const matches = matchesOf(instances.map(({ own }) => own));
        const query = { number, tokens: 150, blockTokens, matches };
        const decision = placement(kind).choose(query, viewOf(instances));
        expect(decision === undefined).toBe(instances.every(({ up }) => up === 0));
        if (decision === undefined) return;
        expect(instances[decision.instance]).toMatchObject({ up: 1, own: decision.localBlocks });
      }),
    );
  });

  test('round-robin skips instances that are down, and random takes each about as often', () => {
    const view = viewOf([1, 0, 1, 1].map((up) => ({ up, requests: 0, queueUs: 0, kind: 0, own: 0 })));
    const choose = (kind: PlacementKind, number: number) =>
      placement(kind).choose({ number, tokens: 1, blockTokens, matches: undefined }, view)?.instance ?? -1;
    expect([0, 1, 2, 3, 4].map((number) => choose('round-robin', number))).toEqual([0, 2, 3, 0, 2]);
    const counts = [0, 0, 0, 0];
    for (let number = 0; number < 3000; number++) counts[choose('random', number)]++;
    expect(counts[1]).toBe(0);
    for (const i of [0, 2, 3]) expect(Math.abs((counts[i] as number) - 1000)).toBeLessThan(100);
  });
});

describe('prefill queues', () => {
  test('sum the pending prefills, less what the running one has done', () => {
    const queues = new PrefillQueues(2);
    const waits = (nowUs: number) => {
      const out = new Float64Array(2);
      queues.predict(nowUs, out);
      return [...out];
    };
    queues.add(1000, 1, 400);
    queues.add(1000, 1, 600);
    expect(waits(1000)).toEqual([0, 1000]);
    expect(waits(1300)).toEqual([0, 700]);
    // Delayed: at most its share counts as done.
    expect(waits(9000)).toEqual([0, 500]);
    queues.correct(1, 600, 100);
    expect(waits(1000)).toEqual([0, 500]);
    queues.remove(1, 400);
    queues.remove(1, 100);
    expect(waits(2000)).toEqual([0, 0]);
  });

  test('count a prefill beside those of other conductors as running from its reported start on', () => {
    const queues = new PrefillQueues(1);
    const wait = (nowUs: number): number => {
      const out = new Float64Array(1);
      queues.predict(nowUs, out);
      return out[0];
    };
    queues.setOthers(0, [{ priority: 0, prompts: 1, workUs: 500 }]);
    queues.add(1000, 0, 400);
    queues.add(1000, 0, 400);
    expect(wait(1300)).toBe(1300);
    queues.started(1500, 0);
    expect(wait(1600)).toBe(1200);
    queues.stopped(0);
    queues.end(1900, 0, 400, 0);
    expect(wait(2500)).toBe(900);
    queues.setOthers(0, []);
    expect(wait(2100)).toBe(200);
  });

  test('take the work of other conductors from tokens and keys: as long as those prompts one by one', () => {
    const prefillUs = (tokens: number, cached: number): number => {
      const rows = tokens - cached;
      return 10 * rows + 0.1 * (rows * cached + (rows * (rows + 1)) / 2);
    };
    const prompts = [
      [4_000, 0],
      [100, 0],
      [900, 800],
    ] as const;
    const placer = new Placer<never>([true], {
      ...{ kind: 'cache-aware', seed: [0, 0], balancingThreshold: 1, blockTokens: 16, blocks: 64, rememberedBlocks: 0 },
      ...{ predictors: [{ prefillUs }], transfers: undefined },
      prompts: {
        chainOf: () => ({ blocks: 0, words: new Uint32Array(0) }),
        priorityOf: () => 0,
        tenantOf: () => '',
        mayPipeline: () => false,
      },
    });
    const requests = prompts.map(([promptTokens, cachedTokens]) => {
      return { priority: 0, tenant: undefined, promptTokens, cachedTokens, outputs: 0, phase: 'prefill' as const };
    });
    placer.setOthers(0, placedLoad(requests));
    const oneByOne = prompts.reduce((sum, [tokens, cached]) => sum + prefillUs(tokens, cached), 0);
    expect(placer.waitsUs(0)[0] / oneByOne).toBeCloseTo(1, 3);
    // Equal uncached prompts of the mean length would take 40 % of it.
    expect((3 * prefillUs(1_400, 0)) / oneByOne).toBeLessThan(0.5);
  });

  test('learn the ratio of observed to predicted times', () => {
    const queues = new PrefillQueues(1);
    let nowUs = 0;
    for (let i = 0; i < 200; i++) {
      queues.add(nowUs, 0, 10_000);
      nowUs += 30_000;
      queues.end(nowUs, 0, 10_000, 0);
    }
    expect(queues.slowness(0)).toBeCloseTo(3, 2);
    const out = new Float64Array(1);
    queues.add(nowUs, 0, 10_000);
    queues.predict(nowUs, out);
    expect(out[0]).toBeCloseTo(30_000, -2);
  });
});

describe('prefill queues of several priorities', () => {
  const of = (priority: number) => ({ priority, tenant: '' });
  const waitOf = (queues: PrefillQueues, nowUs: number, priority: number) => {
    const out = new Float64Array(1);
    queues.predict(nowUs, out, of(priority));
    return out[0];
  };

  test('count for a prompt no work of lower priority but the step that runs', () => {
    const queues = new PrefillQueues(1, () => 100_000);
    for (let i = 0; i < 30; i++) queues.add(0, 0, 130_000);
    expect(waitOf(queues, 0, 1)).toBe(100_000);
    expect(waitOf(queues, 0, 0)).toBe(30 * 130_000);
    queues.add(0, 0, 20_000, of(1));
    expect(waitOf(queues, 0, 1)).toBe(20_000);
    expect(waitOf(queues, 0, 2)).toBe(20_000);
    // Later prompts of priority 1 lengthen the wait of those below.
    expect(waitOf(queues, 0, 0)).toBeGreaterThan(30 * 130_000 + 20_000);
    expect(queues.stretch(0, 0, 0)).toBeGreaterThan(1);
    expect(queues.stretch(0, 0, 1)).toBe(1);
  });

  test('count prefills of other conductors by priority, until the next report', () => {
    const queues = new PrefillQueues(1);
    queues.setOthers(0, [
      { priority: 0, prompts: 1, workUs: 3_000 },
      { priority: 1, prompts: 1, workUs: 500 },
    ]);
    expect([-1, 0, 1, 2].map((priority) => waitOf(queues, 0, priority))).toEqual([3_500, 3_500, 500, 0]);
    queues.add(0, 0, 1_000, of(1));
    expect(waitOf(queues, 0, 1)).toBe(1_500);
    queues.setOthers(0, []);
    expect(waitOf(queues, 0, 1)).toBe(1_000);
    // Those of lower priority count with the step that runs.
    const stepping = new PrefillQueues(1, () => 100);
    stepping.setOthers(0, [{ priority: 0, prompts: 1, workUs: 3_000 }]);
    expect([0, 1].map((priority) => waitOf(stepping, 0, priority))).toEqual([3_000, 100]);
  });

  test('forget their slowness while other conductors have prefills on the instance', () => {
    const queues = new PrefillQueues(1);
    const prefill = (tookUs: number) => {
      queues.add(0, 0, 1_000_000);
      queues.end(tookUs, 0, 1_000_000, 0);
    };
    for (let i = 0; i < 40; i++) prefill(3_000_000);
    expect(queues.slowness(0)).toBeGreaterThan(2.5);
    queues.setOthers(0, [{ priority: 0, prompts: 1, workUs: 3_000 }]);
    for (let i = 0; i < 60; i++) prefill(9_000_000);
    expect(queues.slowness(0)).toBeLessThan(1.2);
  });

  const prefill = fc.record({ us: fc.integer({ min: 1, max: 1000 }), priority: fc.integer({ min: -2, max: 2 }) });
  test('give a prompt of higher priority no longer wait, whatever is below it', () => {
    fc.assert(
      fc.property(fc.array(prefill, { maxLength: 30 }), fc.array(fc.nat(29)), fc.nat(5000), (sent, ended, nowUs) => {
        const all = new PrefillQueues(1);
        const above = new PrefillQueues(1);
        const live = new Set(sent.keys());
        for (const { us, priority } of sent) {
          all.add(0, 0, us, of(priority));
          if (priority >= 0) above.add(0, 0, us, of(priority));
        }
        for (const i of ended) {
          const one = sent[i];
          if (one === undefined || !live.delete(i)) continue;
          all.remove(0, one.us, of(one.priority));
          if (one.priority >= 0) above.remove(0, one.us, of(one.priority));
        }
        const waits = [-3, -2, -1, 0, 1, 2, 3].map((priority) => waitOf(all, nowUs, priority));
        for (let i = 1; i < waits.length; i++) expect(waits[i]).toBeLessThanOrEqual(waits[i - 1] + 1e-6);
        expect(waitOf(all, nowUs, 0)).toBeCloseTo(waitOf(above, nowUs, 0), 6);
      }),
    );
  });
});

describe('prefill queues of several tenants', () => {
  const of = (tenant: string, priority = 0) => ({ priority, tenant });
  const waitOf = (queues: PrefillQueues, tenant: string, nowUs = 0) => {
    const out = new Float64Array(1);
    queues.predict(nowUs, out, of(tenant));
    return out[0];
  };

  test('count for a prompt one prefill of a flood of another tenant, and one more for each of its own', () => {
    const queues = new PrefillQueues(1);
    for (let i = 0; i < 30; i++) queues.add(0, 0, 100_000, of('flood'));
    expect(waitOf(queues, 'flood')).toBe(3_000_000);
    expect(waitOf(queues, 'calm')).toBe(100_000);
    // The prefill that runs has done a part.
    expect(waitOf(queues, 'calm', 60_000)).toBe(40_000);
    queues.add(0, 0, 50_000, of('calm'));
    queues.add(0, 0, 50_000, of('calm'));
    expect(waitOf(queues, 'calm')).toBe(300_000);
    expect(waitOf(queues, 'third')).toBe(150_000);
    // Higher priorities come first, whichever tenant has sent them.
    queues.add(0, 0, 70_000, of('flood', 1));
    expect(waitOf(queues, 'third')).toBeGreaterThanOrEqual(220_000);
    for (let i = 0; i < 2; i++) queues.remove(0, 50_000, of('calm'));
    queues.remove(0, 70_000, of('flood', 1));
    for (let i = 0; i < 29; i++) queues.remove(0, 100_000, of('flood'));
    expect(waitOf(queues, 'flood')).toBeGreaterThanOrEqual(100_000);
  });

  test('count the flood of a tenant at several gateways as one, and unnamed prompts of others whole', () => {
    const queues = new PrefillQueues(1);
    for (let i = 0; i < 10; i++) queues.add(0, 0, 100, of('flood'));
    queues.setOthers(0, [
      { priority: 0, tenant: 'flood', prompts: 5, workUs: 500 },
      { priority: 0, tenant: 'calm', prompts: 1, workUs: 30 },
      { priority: 0, prompts: 2, workUs: 7 },
    ]);
    expect(waitOf(queues, 'flood')).toBe(1_500 + 30 + 7);
    expect(waitOf(queues, 'calm')).toBe(100 + 30 + 30 + 7);
    expect(waitOf(queues, 'third')).toBe(100 + 30 + 7);
  });

  const prefill = fc.record({ us: fc.integer({ min: 1, max: 1000 }), tenant: fc.constantFrom('a', 'b', 'c') });
  test('give no tenant a longer wait than all work together, and a tenant without prefills one of each other at most', () => {
    fc.assert(
      fc.property(fc.array(prefill, { maxLength: 30 }), fc.array(fc.nat(29)), (sent, ended) => {
        const queues = new PrefillQueues(1);
        const live = new Set(sent.keys());
        for (const { us, tenant } of sent) queues.add(0, 0, us, of(tenant));
        for (const i of ended) {
          const one = sent[i];
          if (one !== undefined && live.delete(i)) queues.remove(0, one.us, of(one.tenant));
        }
        const own = (tenant: string) => [...live].flatMap((i) => (sent[i]?.tenant === tenant ? [sent[i].us] : []));
        const sum = (of: readonly number[]) => of.reduce((total, us) => total + us, 0);
        const all = sum(['a', 'b', 'c'].flatMap(own));
        for (const tenant of ['a', 'b', 'c']) {
          expect(waitOf(queues, tenant)).toBeLessThanOrEqual(all + 1e-6);
          expect(waitOf(queues, tenant)).toBeGreaterThanOrEqual(sum(own(tenant)) - 1e-6);
        }
        const one = (tenant: string) => sum(own(tenant)) / Math.max(1, own(tenant).length);
        expect(waitOf(queues, 'd')).toBeCloseTo(sum(['a', 'b', 'c'].map(one)), 6);
      }),
    );
  });
});

test('a chunked prefill costs its rows and the keys that they attend to', () => {
  const linear = new ChunkedPrefill({ predictUs: ({ rows, keyRows }) => 7 + 3 * rows + 0.5 * keyRows }, 40);
  fc.assert(
    fc.property(fc.integer({ min: 1, max: 500 }), fc.nat(499), (tokens, cached) => {
      const first = Math.min(cached, tokens - 1);
      let us = 7 * Math.ceil((tokens - first) / 40);
      for (let position = first; position < tokens; position++) us += 3 + 0.5 * (position + 1);
      expect(linear.prefillUs(tokens, first)).toBeCloseTo(us, 5);
    }),
  );
});
