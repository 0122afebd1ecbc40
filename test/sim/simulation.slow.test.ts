// A simulated run against arithmetic, and against itself with equal steps run one by one.
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { RooflineCost } from '../../src/core/cost/roofline.ts';
import { placementKinds } from '../../src/core/router/placement/placement.ts';
import type { InstanceSpec, Simulation, SimulationConfig } from '../../src/sim/engine/simulation.ts';
import type { TraceRequest } from '../../src/trace/request.ts';
import {
  blockTokens,
  cluster,
  config,
  cost,
  handOff,
  machine,
  nic,
  requestOf,
  run as runSmall,
  traces,
} from './small-cluster.ts';

function mixed(count: number, changes: Partial<InstanceSpec['machine']> = {}): readonly InstanceSpec[] {
  return cluster({ mixed: count }, changes);
}

function run(trace: readonly TraceRequest[], changes: Partial<SimulationConfig> = {}): Simulation {
  return runSmall(trace, { queueMax: 20, ...changes });
}

describe('a simulated run', () => {
  it('of one request takes the time of its chunks and of its tokens', () => {
    const { outcome } = run([requestOf(0, 5_000, 100, 11)]);
    const prefillUs = cost.stepUs({ rows: 100, keyRows: 5050, decodeRows: 0, decodeKeys: 0, logitRows: 1 });
    const decodeUs = Array.from({ length: 10 }, (_, i) =>
      cost.stepUs({ rows: 1, keyRows: 101 + i, decodeRows: 1, decodeKeys: 101 + i, logitRows: 1 }),
    );
    const total = decodeUs.reduce((sum, us) => sum + us, 0);
    expect(outcome.ttftUs.max).toBe(prefillUs);
    expect(outcome.endUs).toBe(5_000 + prefillUs + total);
    expect(outcome.tbtUs.max).toBe(Math.max(...decodeUs));
    expect(outcome.steps).toBe(11);
  });

  it('ends every request once, leaks nothing, and has the same hash with equal steps run one by one', () => {
    let coalesced = 0;
    fc.assert(
      fc.property(traces, fc.constantFrom(...placementKinds), (trace, kind) => {
        const placement = { ...config.placement, kind };
        const { outcome, unfinished } = run(trace, { placement });
        expect([outcome.requests, unfinished]).toEqual([trace.length, 0]);
        expect(outcome.refusedRequests + outcome.completedRequests).toBe(trace.length);
        const single = run(trace, { placement, instances: mixed(2, { coalesce: false }) }).outcome;
        expect([single.stateHash, single.endUs, single.steps]).toEqual([
          outcome.stateHash,
          outcome.endUs,
          outcome.steps,
        ]);
        const { hitBlocks, missReasons } = outcome;
        const blocks = trace.map(({ blocks }, i) => (i < outcome.completedRequests ? blocks.length : 0));
        if (outcome.refusedRequests === 0)
          expect(Object.values(missReasons).reduce((sum, count) => sum + count, hitBlocks)).toBe(
            blocks.reduce((sum, count) => sum + count, 0),
          );
        coalesced += outcome.steps;
      }),
      { numRuns: 30 },
    );
    expect(coalesced).toBeGreaterThan(1000);
  });

  it('admits waiting requests again after a step that preempted a request', () => {
    const trace = [
      requestOf(0, 0, 96, 57, 2),
      requestOf(1, 0, 124, 18, 1),
      requestOf(2, 0, 53, 2, 1),
      requestOf(3, 0, 79, 18),
    ];
    const [coalesced, single] = [true, false].map(
      (coalesce) => run(trace, { instances: mixed(1, { coalesce, blocks: 14 }) }).outcome,
    );
    expect(single?.preemptions).toBeGreaterThan(0);
    expect(coalesced?.stateHash).toBe(single?.stateHash);
  });

  it('reports a first token to the conductor at once, though equal steps could follow', () => {
    // One row of the first prompt remains for a separate step; the placement of the third request depends on its end.
    const trace = [
      requestOf(0, 0, 129, 2, 0),
      requestOf(1, 11_494, 1, 1),
      requestOf(2, 35_133, 32, 1, 0),
      requestOf(3, 35_133, 1, 1),
    ];
    const single = run(trace, { instances: mixed(2, { coalesce: false }) }).outcome;
    expect(run(trace).outcome.stateHash).toBe(single.stateHash);
  });

  it('gives different hashes to runs that differ in anything', () => {
    const trace = Array.from({ length: 10 }, (_, i) => requestOf(i, i * 3_000, 60, 20, 0));
    const { stateHash } = run(trace).outcome;
    expect(run(trace).outcome.stateHash).toBe(stateHash);
    const later = trace.map((request) => (request.index === 9 ? { ...request, arrivalUs: 27_001 } : request));
    expect(run(later).outcome.stateHash).not.toBe(stateHash);
    expect(run(trace, { instances: mixed(2, { blocks: 10 }) }).outcome.stateHash).not.toBe(stateHash);
  });

  it('reuses shared blocks of prompts', () => {
    const trace = [requestOf(0, 0, 100, 1, 0), requestOf(1, 1_000_000, 100, 1, 0), requestOf(2, 2_000_000, 100, 1, 7)];
    // Six full blocks, of which the last is unique to each prompt.
    expect(run(trace, { instances: mixed(1) }).outcome.cachedTokens).toBe(5 * blockTokens);
  });

  it('places a prompt at its prefix, and reports the reasons of the misses', () => {
    // The same prompt repeats: both instances are idle, and round-robin takes the second one.
    const trace = [0, 1, 2].map((i) => requestOf(i, i * 1_000_000, 100, 1, 0));
    const aware = run(trace).outcome;
    expect([aware.cachedTokens, aware.hitBlocks]).toEqual([2 * 5 * blockTokens, 10]);
    expect(aware.missReasons).toEqual({ neverSeen: 5 + 3, evicted: 0, elsewhere: 0, partial: 3 });
    const inTurn = run(trace, { placement: { ...config.placement, kind: 'round-robin' } }).outcome;
    expect(inTurn.hitBlocks).toBe(5);
    expect(inTurn.missReasons).toEqual({ neverSeen: 5 + 3, evicted: 0, elsewhere: 5, partial: 3 });
    const others = [1, 2, 3, 4, 5, 6].map((i) => requestOf(i, i * 1_000_000, 100, 1, i));
    const again = requestOf(7, 9_000_000, 100, 1, 1);
    const evicted = run([...others, again], { instances: mixed(1) }).outcome;
    expect(evicted.missReasons).toMatchObject({ evicted: 5, elsewhere: 0 });
  });

  it('fetches a prefix where that is faster than computing it, and the next prompt hits it there', () => {
    // The first prompt leaves five blocks on one instance. While a prompt without prefix runs there, the first prompt repeated goes to the other.
    const trace = [
      requestOf(0, 0, 100, 1, 0),
      requestOf(1, 1_000_000, 101, 40, 1),
      requestOf(2, 1_000_010, 100, 1, 0),
      requestOf(3, 1_000_020, 100, 1, 0),
    ];
    const { outcome } = run(trace);
    const blockBytes = blockTokens * cost.kvBytesPerToken;
    expect(outcome.bytesMoved.prefix).toBe(5 * blockBytes);
    expect(outcome.hitBlocks).toBe(10);
    expect(outcome.missReasons.elsewhere).toBe(0);
    // Five blocks of the family are on both; the last full block of each prompt is unique.
    expect(outcome.replication).toEqual({
      ...{ blocks: 5 + 5 + 4, onSeveral: 5, copies: 19 },
      ...{ fetched: 5, proactive: 0 },
    });
    const alone = run(trace, { placement: { ...config.placement, kind: 'local-cache-only' } }).outcome;
    expect(alone.bytesMoved.prefix).toBe(0);
    expect(outcome.ttftUs.mean).toBeLessThan(alone.ttftUs.mean);
  });

  it('has the same hash with equal steps run one by one while prefixes move, on fast and slow links', () => {
    let moved = 0;
    const links = fc.constantFrom(undefined, 3e6, 3e5);
    fc.assert(
      fc.property(traces, links, fc.constantFrom(1, 3), (trace, linkBytesPerSecond, balancingThreshold) => {
        const placement = { ...config.placement, balancingThreshold };
        const outcomes = [true, false].map((coalesce) => {
          const { outcome, unfinished } = run(trace, {
            instances: mixed(3, { coalesce }),
            linkBytesPerSecond,
            placement,
          });
          expect([outcome.requests, unfinished]).toEqual([trace.length, 0]);
          moved += outcome.bytesMoved.prefix;
          return [outcome.stateHash, outcome.endUs, outcome.steps];
        });
        expect(outcomes[0]).toEqual(outcomes[1]);
      }),
      { numRuns: 60 },
    );
    expect(moved).toBeGreaterThan(8 * blockTokens * cost.kvBytesPerToken);
  });

  it('refuses requests that are too long or too many', () => {
    const long = requestOf(0, 0, 24 * blockTokens, 2);
    expect(run([long]).outcome.refusedRequests).toBe(1);
    const burst = Array.from({ length: 30 }, (_, i) => requestOf(i, 0, 10, 5));
    const { outcome } = run(burst);
    expect([outcome.completedRequests, outcome.refusedRequests]).toEqual([20, 10]);
  });
});

describe('disaggregated prefill and decode', () => {
  const split = (prefill: number, decode: number, changes: Partial<InstanceSpec['machine']> = {}) => {
    const spec = { nic, machine: { ...machine, handOff, ...changes } };
    const of = (role: InstanceSpec['role'], count: number) => Array.from({ length: count }, () => ({ ...spec, role }));
    return [...of('prefill', prefill), ...of('decode', decode)];
  };
  const kvBytes = 100 * cost.kvBytesPerToken;
  const prefillUs = cost.stepUs({ rows: 100, keyRows: 5050, decodeRows: 0, decodeKeys: 0, logitRows: 1 });

  it('takes the time of the prompt, of the exposed tail of the hand-off, and of the tokens', () => {
    for (const layerWise of [true, false]) {
      const instances = split(1, 1, { handOff: { ...handOff, layerWise } });
      const { outcome } = run([requestOf(0, 5_000, 100, 11)], { instances, linkBytesPerSecond: 2e6 });
      // Reserving and granting take a message each; then 2 bytes leave per microsecond.
      const hiddenUs = layerWise ? prefillUs - 20 : 0;
      const tailUs = Math.ceil(kvBytes / 2 - hiddenUs) + 10;
      expect(tailUs).toBeGreaterThan(10);
      expect(outcome.ttftUs.max).toBe(prefillUs + tailUs);
      expect(outcome.bytesMoved.handoff).toBe(kvBytes);
      let totalUs = 0;
      for (let i = 0; i < 10; i++)
        totalUs += cost.stepUs({ rows: 1, keyRows: 101 + i, decodeRows: 1, decodeKeys: 101 + i, logitRows: 1 });
      expect(outcome.endUs).toBe(5_000 + prefillUs + tailUs + totalUs);
    }
  });

  it('hides the hand-off where the link is faster than computation', () => {
    const { outcome } = run([requestOf(0, 0, 100, 2)], { instances: split(1, 1) });
    // The rest is rounding and latency.
    expect(outcome.ttftUs.max - prefillUs).toBeLessThanOrEqual(11);
  });

  it('ends every request once, frees all memory, and has the same hash with equal steps run one by one', () => {
    const shapes = fc.tuple(fc.integer({ min: 1, max: 3 }), fc.integer({ min: 1, max: 2 }), fc.nat(1), fc.boolean());
    const links = fc.constantFrom(undefined, 1e7, 1e6);
    const receiveTokens = fc.constantFrom(160, 400, 10_000);
    let coalesced = 0;
    fc.assert(
      fc.property(
        traces,
        shapes,
        links,
        receiveTokens,
        (trace, [prefill, decode, both, layerWise], link, receiveTokens) => {
          const outcomes = [true, false].map((coalesce) => {
            const changes = { coalesce, handOff: { ...handOff, layerWise, receiveTokens } };
            const instances = [...split(prefill, decode, changes), ...mixed(both, changes)];
            const { outcome, unfinished } = run(trace, { instances, linkBytesPerSecond: link });
            expect([outcome.requests, unfinished]).toEqual([trace.length, 0]);
            return [outcome.stateHash, outcome.endUs, outcome.steps, outcome.completedRequests];
          });
          expect(outcomes[0]).toEqual(outcomes[1]);
          coalesced += Number(outcomes[0]?.[2]);
        },
      ),
      { numRuns: 30 },
    );
    expect(coalesced).toBeGreaterThan(1000);
  });

  it('leaves the prefix cache on the prefill instance', () => {
    const trace = [requestOf(0, 0, 100, 5, 0), requestOf(1, 1_000_000, 100, 5, 0)];
    expect(run(trace, { instances: split(1, 1) }).outcome.cachedTokens).toBe(5 * blockTokens);
  });
});

describe('the roofline', () => {
  it('finds the maximum rows within a time, as trial does', () => {
    const n = (max: number) => fc.integer({ min: 0, max });
    fc.assert(
      fc.property(n(200_000), n(30), n(20_000), n(5_000), (budgetUs, decodeRows, decodeKeys, position) => {
        const shape = { rows: decodeRows, keyRows: decodeKeys, decodeRows, decodeKeys, logitRows: decodeRows };
        const us = (rows: number) => {
          const keyRows = decodeKeys + rows * position + (rows * (rows + 1)) / 2;
          return cost.stepUs({ ...shape, rows: decodeRows + rows, keyRows, logitRows: decodeRows + 1 });
        };
        const rows = cost.rowsWithin(budgetUs, shape, position);
        if (rows > 0) expect(us(rows)).toBeLessThanOrEqual(budgetUs + 1);
        expect(us(rows + 1)).toBeGreaterThanOrEqual(budgetUs - 1);
      }),
    );
  });

  it('refuses a model that exceeds the devices, and names both sizes', () => {
    const model = { layers: 80, hidden: 8192, heads: 64, kvHeads: 8, headDim: 128, intermediate: 28672, gated: true };
    const device = {
      memoryBytes: 8e10,
      memoryBytesPerSecond: 1,
      operationsPerSecond: 1,
      linkBytesPerSecond: 1,
      linkUs: 0,
    };
    const efficiency = { compute: 1, memory: 1, link: 1, stepUs: 0, layerUs: 0 };
    const shape = { model: { ...model, vocabulary: 32000, tiedHead: false }, device, efficiency };
    const parts = { tensorParallel: 1, pipelineParallel: 1, weightBytes: 2, kvBytes: 2, memoryShare: 1, stepRows: 0 };
    expect(() => new RooflineCost({ ...shape, ...parts })).toThrow(
      'weights take 138.0 GB and a step of 0 tokens 0.0 GB: the share 1 of 1 devices of 80.0 GB is 80.0 GB',
    );
  });
});
