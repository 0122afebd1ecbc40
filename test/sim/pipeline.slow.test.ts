// Chunked pipeline prefill by groups of instances, in simulated clusters.
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { RooflineCost } from '../../src/core/cost/roofline.ts';
import { PipelinePredictor } from '../../src/core/pipeline/pipeline-predictor.ts';
import type { LayerRange, StepShape } from '../../src/core/protocol/step-shape.ts';
import type { Simulation } from '../../src/sim/engine/simulation.ts';
import { parseFault } from '../../src/sim/faults/fault-plan.ts';
import type { TraceRequest } from '../../src/trace/request.ts';
import { counterUniform } from '../../src/util/counter-random.ts';
import { blockTokens, cluster, config, cost, machine, requestOf, run, traces } from './small-cluster.ts';

const pipeline = { members: 2, tokensOver: 140 };
/** A prompt takes many steps. */
const limits = { ...machine.limits, tokensMax: 32, stepUsDecoding: 5_000 };
const instances = cluster({ prefill: 2, decode: 1 });

/** For the first or the second of two members. */
const chunkUs = (index: number, from: number, rows: number, logitRows = 0) => {
  const keyRows = rows * from + (rows * (rows + 1)) / 2;
  return cost.stageUs({ rows, keyRows, decodeRows: 0, decodeKeys: 0, logitRows }, { index, stages: 2 });
};

describe('chunked pipeline prefill', () => {
  it('takes all chunks at the first member, then the last chunk at the others', () => {
    const { outcome } = run([requestOf(0, 5_000, 150, 11)], { instances, pipeline });
    const hopUs = 10 + (128 * cost.activationBytesPerToken) / 1000;
    // The join of the other member takes two messages; the last keys and values leave with the last layers.
    const expectedUs = 20 + chunkUs(0, 0, 128) + hopUs + chunkUs(1, 0, 128) + chunkUs(1, 128, 22, 1);
    expect(Math.abs(outcome.ttftUs.max - expectedUs)).toBeLessThan(20);
    expect(outcome.groupPrefills).toBe(1);
    expect(outcome.bytesMoved.handoff).toBe(150 * cost.kvBytesPerToken);
    expect(outcome.bytesMoved.activations).toBe(150 * cost.activationBytesPerToken);
    const alone = run([requestOf(0, 5_000, 150, 11)], { instances }).outcome;
    expect(outcome.ttftUs.max).toBeLessThan(alone.ttftUs.max);
    expect(outcome.tbtUs.max).toBe(alone.tbtUs.max);
  });

  it('is used for long prompts only, where it is faster and the prompt decodes elsewhere', () => {
    const groups = (tokens: number, output: number, of = instances, link?: number) =>
      run([requestOf(0, 0, tokens, output)], { instances: of, pipeline, linkBytesPerSecond: link }).outcome
        .groupPrefills;
    expect([groups(140, 5), groups(141, 5), groups(150, 1)]).toEqual([0, 1, 0]);
    expect(groups(150, 5, instances, 1e6)).toBe(0);
    expect(groups(150, 5, cluster({ prefill: 1, decode: 2 }))).toBe(0);
  });

  it('lets members compute other prompts in between', () => {
    const trace = [requestOf(0, 0, 150, 2, 0), requestOf(1, 100, 20, 2, 1), requestOf(2, 100, 20, 2, 2)];
    const { outcome } = run(trace, { instances, pipeline });
    const alone = run(trace, { instances: cluster({ prefill: 1, decode: 1 }) }).outcome;
    expect([outcome.completedRequests, outcome.groupPrefills]).toEqual([3, 1]);
    // Behind one chunk of half the layers, not behind the prompt.
    expect(outcome.ttftUs.percentile(0.3)).toBeLessThan(alone.ttftUs.percentile(0.3));
  });

  it('ends every request once, frees all memory, and has the same hash with equal steps run one by one', () => {
    let grouped = 0;
    const shapes = fc.constantFrom([2, 1, 2], [3, 2, 2], [3, 1, 3], [4, 1, 3]);
    fc.assert(
      fc.property(
        traces,
        shapes,
        fc.boolean(),
        fc.boolean(),
        (trace, [prefill = 2, decode = 1, members = 2], narrow, late) => {
          const outcomes = [true, false].map((coalesce) => {
            const slo = late ? { ttft: { us: 60_000 }, tbt: { us: 9_000 } } : undefined;
            const { outcome, unfinished } = run(trace, {
              instances: cluster({ prefill, decode }, { coalesce, limits }),
              admission: { ...config.admission, kind: late ? 'early' : 'none', slo },
              linkBytesPerSecond: narrow ? 1e8 : undefined,
              pipeline: { members, tokensOver: 40 },
            });
            expect([outcome.requests, unfinished]).toEqual([trace.length, 0]);
            return outcome;
          });
          expect(outcomes[0]?.stateHash).toBe(outcomes[1]?.stateHash);
          grouped += outcomes[0]?.groupPrefills ?? 0;
        },
      ),
      { numRuns: 36 },
    );
    expect(grouped).toBeGreaterThan(30);
  });
});

describe('the prediction of a group', () => {
  it('takes the chunk size with the earliest end: small enough for the pipeline, large enough for efficiency', () => {
    const steps = {
      predictUs: ({ rows, keyRows }: { rows: number; keyRows: number }) => 1_000 + rows * 10 + keyRows / 1_000,
    };
    const stage = (shape: StepShape, { stages }: LayerRange) => steps.predictUs(shape) / stages;
    const prefill = new PipelinePredictor({
      ...{ steps: { predictStageUs: stage }, layers: 12, hopUs: () => 100 },
      ...{ chunkTokensMax: 8192, othersUs: 0 },
    });
    const flowShop = (chunk: number, members: number, tokens: number) => {
      const ends = Array.from({ length: members }, () => 0);
      for (let from = 0; from < tokens; from += chunk) {
        const rows = Math.min(chunk, tokens - from);
        const us = steps.predictUs({ rows, keyRows: rows * from + (rows * (rows + 1)) / 2 }) / members;
        for (let s = 0; s < members; s++) ends[s] = Math.max(ends[s] ?? 0, s === 0 ? 0 : (ends[s - 1] ?? 0) + 100) + us;
      }
      return ends.at(-1) ?? 0;
    };
    for (const members of [2, 3, 4]) {
      for (const tokens of [4_096, 16_384, 131_072]) {
        const sizes = [8192, 4096, 2048, 1024, 512];
        const best = Math.min(...sizes.map((chunk) => flowShop(chunk, members, tokens)));
        const plan = prefill.plan({ tokens, cachedTokens: 0, members, others: 0 });
        expect(plan.prefillUs).toBeCloseTo(best, 3);
        expect(flowShop(plan.chunkTokens, members, tokens)).toBeCloseTo(best, 3);
      }
    }
  });
});

/** Prompts of 8 to 68 tokens, a quarter of 100 to 150, one every `gapUs`; the last one arrives when all is idle. */
function contendedTrace(seed: number, gapUs: number): readonly TraceRequest[] {
  const draw = (index: number) => counterUniform(seed, 9, index);
  const trace = Array.from({ length: 400 }, (_, i) => {
    const tokens = draw(3 * i) < 0.25 ? 100 + 50 * draw(3 * i + 1) : 8 + 60 * draw(3 * i + 1);
    return requestOf(i, Math.floor((i + draw(3 * i + 2)) * gapUs), Math.floor(tokens), 2);
  });
  return [...trace, requestOf(trace.length, 60_000_000, 150, 2)];
}

describe('members that compute at different speeds', () => {
  const deep = (slowness: number) =>
    new RooflineCost({
      model: {
        ...{ layers: 12, hidden: 64, heads: 4, kvHeads: 2, headDim: 16, intermediate: 128 },
        ...{ gated: true, vocabulary: 1000, tiedHead: true },
      },
      device: {
        ...{ memoryBytes: 8e6, memoryBytesPerSecond: 1e9, operationsPerSecond: 1e10 },
        ...{ linkBytesPerSecond: 1e9, linkUs: 1 },
      },
      efficiency: { compute: 1, memory: 1, link: 1, stepUs: 100, layerUs: 1_000 * slowness },
      ...{ tensorParallel: 1, pipelineParallel: 1, weightBytes: 2, kvBytes: 2, memoryShare: 1, stepRows: 0 },
    });
  const [fast, slow] = [deep(1), deep(2)];
  const of = (...costs: RooflineCost[]) => [
    ...costs.flatMap((each) => cluster({ prefill: 1 }, { cost: each, limits })),
    ...cluster({ decode: 1 }, { cost: fast, limits }),
  ];

  it('divide the layers by speed, so that the TTFT is below that of one member, and that of equal shares', () => {
    const trace = [requestOf(0, 5_000, 150, 5)];
    const ttftUs = (outcome: Simulation['outcome']) => outcome.ttftUs.max;
    const { outcome } = run(trace, { instances: of(slow, fast), pipeline });
    expect(outcome.groupPrefills).toBe(1);
    expect(ttftUs(outcome)).toBeLessThan(0.9 * ttftUs(run(trace, { instances: of(slow, fast) }).outcome));
    let slowUs = 0;
    for (let from = 0; from < 150; from += 32) {
      const rows = Math.min(32, 150 - from);
      const keyRows = rows * from + (rows * (rows + 1)) / 2;
      const shape = { rows, keyRows, decodeRows: 0, decodeKeys: 0, logitRows: 0 };
      slowUs += slow.stageUs(shape, { index: 0, stages: 2 });
    }
    expect(ttftUs(outcome)).toBeLessThan(slowUs);
    expect(outcome.bytesMoved.handoff).toBe(150 * fast.kvBytesPerToken);
  });

  it('form no group when one of them is so slow that the other ends sooner alone', () => {
    const { outcome } = run([requestOf(0, 5_000, 150, 5)], { instances: of(fast, deep(40)), pipeline });
    expect([outcome.groupPrefills, outcome.completedRequests]).toEqual([0, 1]);
  });
});

describe('groups whose members also compute other prompts', () => {
  const instances = cluster({ prefill: 4, decode: 2 }, { blocks: 200, limits });
  const group = { members: 2, tokensOver: 90 };

  it.each([
    { load: 'too many to serve', gapUs: 3_000, mean: 1.05, p99: 1.1 },
    { load: 'contention', gapUs: 4_000, mean: 1.15, p99: 1.2 },
    { load: 'half as many', gapUs: 7_000, mean: 0.9, p99: 1 },
  ])('keep TTFTs within bounds with $load', ({ gapUs, mean, p99 }) => {
    for (const seed of [1, 2]) {
      const [together, alone] = [group, undefined].map(
        (pipeline) => run(contendedTrace(seed, gapUs), { instances, pipeline, checking: false }).outcome,
      );
      expect(together?.groupPrefills).toBeGreaterThan(20);
      expect(together?.ttftUs.mean).toBeLessThan(mean * (alone?.ttftUs.mean ?? 0));
      expect(together?.ttftUs.percentile(0.99)).toBeLessThan(p99 * (alone?.ttftUs.percentile(0.99) ?? 0));
    }
  });

  it('compute behind the longest cached prefix, of which each member fetches its layers', () => {
    const far = cluster({ prefill: 2, decode: 1 }, { blocks: 200, limits });
    const pipeline = { members: 2, tokensOver: 60 };
    // The first prompt leaves its blocks on its decode instance; 8 of the 15 blocks of the second are equal.
    const second = {
      ...requestOf(1, 1_000_000, 240, 4, 0),
      blocks: Int32Array.from({ length: 15 }, (_, i) => (i < 8 ? i : 900 + i)),
    };
    const trace = [requestOf(0, 0, 150, 4, 0), second];
    const { outcome } = run(trace, { instances: far, pipeline });
    expect([outcome.groupPrefills, outcome.cachedTokens]).toEqual([2, 8 * blockTokens]);
    expect(outcome.bytesMoved.prefix).toBe(8 * blockTokens * cost.kvBytesPerToken);
    expect(outcome.bytesMoved.activations).toBe((150 + 240 - 8 * blockTokens) * cost.activationBytesPerToken);
    const cold = run(trace, {
      instances: far,
      pipeline,
      placement: { ...config.placement, kind: 'least-loaded' },
    }).outcome;
    expect([cold.groupPrefills, cold.cachedTokens]).toEqual([2, 0]);
    expect(outcome.ttftUs.percentile(0)).toBeLessThan(cold.ttftUs.max);
  });

  it('leave the whole prompt as cache on its decode instance', () => {
    const trace = [requestOf(0, 0, 150, 4, 0), requestOf(1, 1_000_000, 100, 4, 0)];
    const { outcome } = run(trace, { instances, pipeline: group });
    // Without its cached tokens the second prompt is shorter than the minimum for groups.
    expect([outcome.groupPrefills, outcome.cachedTokens]).toEqual([1, 5 * blockTokens]);
    expect(outcome.bytesMoved.prefix).toBe(5 * blockTokens * cost.kvBytesPerToken);
  });

  it('are not used for a prompt that is mostly cached', () => {
    const groups = (family: number) => {
      // It ends on its prefill instance, which reports at once.
      const trace = [requestOf(0, 0, 80, 1, 0), requestOf(1, 1_000_000, 150, 4, family)];
      return run(trace, { instances, pipeline: { members: 4, tokensOver: 100 } }).outcome.groupPrefills;
    };
    expect([groups(0), groups(1)]).toEqual([0, 1]);
  });
});

describe('groups under faults', () => {
  const instances = cluster({ prefill: 3, decode: 1 }, { blocks: 200, limits });
  const times = { reportUs: 50_000, silentUs: 200_000, timeoutUs: 10_000_000, attemptsMax: 20 };
  const underFaults = (specs: readonly string[], seed = 1) => {
    const faults = { seed, times, faults: specs.map((spec) => parseFault(spec)) };
    const trace = [0, 1, 2, 3].map((i) => requestOf(i, 10_000 * i, 150, 5));
    return run(trace, { instances, pipeline: { members: 3, tokensOver: 90 }, faults, linkBytesPerSecond: 2e7 });
  };
  const prefills = cluster({ prefill: 3, decode: 1 }, { blocks: 60, limits });
  const leaks = (simulation: Simulation) => {
    simulation.advance(simulation.nowUs + 2_000_000);
    return simulation.snapshots().map(({ pages }) => pages.used);
  };

  it.each([0, 1, 2])('answer all requests when member %i fails within a prompt, and leak nothing', (member) => {
    for (const atMs of [1, 8, 15, 22, 30]) {
      const simulation = underFaults([`crash:instance=${member},at=${atMs}ms,for=300ms`]);
      expect([simulation.outcome.completedRequests, simulation.unfinished]).toEqual([4, 0]);
      expect(leaks(simulation)).toEqual([0, 0, 0, 0]);
    }
  });

  it.each([1, 2])('answer all requests, long before their timeout, when member %i is cut off for a time', (member) => {
    for (let atMs = 1; atMs < 40; atMs += 1.5) {
      const simulation = underFaults([`partition:instance=${member},at=${atMs}ms,for=20ms`]);
      expect([simulation.outcome.completedRequests, simulation.unfinished]).toEqual([4, 0]);
      expect(simulation.outcome.endUs).toBeLessThan(times.timeoutUs / 4);
      expect(leaks(simulation)).toEqual([0, 0, 0, 0]);
    }
  });

  it('answer all requests, long before their timeout, when every third message is lost', () => {
    let groups = 0;
    for (let seed = 1; seed <= 20; seed++) {
      const simulation = underFaults(['loss:ratio=0.33'], seed);
      const { completedRequests, groupPrefills, endUs } = simulation.outcome;
      expect([completedRequests, simulation.unfinished]).toEqual([4, 0]);
      expect(endUs).toBeLessThan(times.timeoutUs / 2);
      groups += groupPrefills;
    }
    expect(groups).toBeGreaterThan(30);
  });

  it('answer all requests and leak nothing when the prefixes that members fetch are evicted, cut off, or on a failed instance', () => {
    let fetched = 0;
    let cached = 0;
    for (let seed = 1; seed <= 10; seed++) {
      const draw = (index: number) => counterUniform(seed, 3, index);
      const atMs = 130 + Math.floor(60 * draw(1));
      const specs = [
        'loss:ratio=0.15',
        'duplication:ratio=0.2',
        `crash:instance=${Math.floor(4 * draw(0))},at=${atMs}ms,for=200ms`,
        `partition:instance=${Math.floor(4 * draw(2))},at=${atMs + 80}ms,for=60ms`,
      ];
      const trace = Array.from({ length: 8 }, (_, i) => ({
        ...requestOf(i, i === 0 ? 0 : 100_000 + 10_000 * i, 240, 3),
        // 8 of the 15 blocks are shared with all other prompts.
        blocks: Int32Array.from({ length: 15 }, (__, block) => (block < 8 ? block : 1000 * (i + 1) + block)),
      }));
      const faults = { seed, times, faults: specs.map((spec) => parseFault(spec)) };
      const simulation = run(trace, { instances: prefills, pipeline: { members: 2, tokensOver: 60 }, faults });
      expect([simulation.outcome.completedRequests, simulation.unfinished]).toEqual([8, 0]);
      expect(leaks(simulation)).toEqual([0, 0, 0, 0]);
      fetched += simulation.outcome.bytesMoved.prefix;
      cached += simulation.outcome.cachedTokens;
    }
    expect(fetched).toBeGreaterThan(10 * 8 * blockTokens * cost.kvBytesPerToken);
    expect(cached).toBeGreaterThan(10 * 8 * blockTokens);
  });
});
