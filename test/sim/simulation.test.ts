// A simulated run against what can be said of it without a simulator, and against itself with equal steps run one by one.
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { RooflineCost } from '../../src/policy/cost/roofline.ts';
import { Simulation, type SimulationConfig } from '../../src/sim/simulation.ts';
import type { TraceRequest } from '../../src/trace/request.ts';

const blockTokens = 16;

const cost = new RooflineCost({
  model: {
    layers: 2,
    hidden: 256,
    heads: 4,
    kvHeads: 2,
    headDim: 64,
    intermediate: 512,
    gated: true,
    vocabulary: 1000,
    tiedHead: true,
  },
  device: {
    memoryBytes: 8e6,
    memoryBytesPerSecond: 1e9,
    operationsPerSecond: 1e10,
    linkBytesPerSecond: 1e9,
    linkUs: 1,
  },
  efficiency: { compute: 1, memory: 1, link: 1, stepUs: 100, layerUs: 10 },
  tensorParallel: 1,
  pipelineParallel: 1,
  weightBytes: 2,
  kvBytes: 2,
  kvMemoryShare: 1,
});

const config: SimulationConfig = {
  mixed: 2,
  instance: {
    cost,
    blockTokens,
    blocks: 24,
    eviction: 'lru',
    limits: { tokensMax: 128, logitRowsMax: 33, sequencesMax: 8, stepUsDecoding: 20_000, stepUsPrefill: 100_000 },
    coalesce: true,
  },
  queueMax: 20,
  checking: true,
};

function requestOf(
  index: number,
  arrivalUs: number,
  inputTokens: number,
  outputTokens: number,
  family = index,
): TraceRequest {
  // Prompts of a family share all blocks but the last.
  const full = Math.floor(inputTokens / blockTokens);
  const ids = Array.from({ length: Math.ceil(inputTokens / blockTokens) }, (_, i) =>
    i < full - 1 ? 1000 * family + i : 1_000_000 + 100 * index + i,
  );
  return { index, arrivalUs, inputTokens, outputTokens, blocks: Int32Array.from(ids) };
}

function run(trace: readonly TraceRequest[], changes: Partial<SimulationConfig> = {}): Simulation {
  const simulation = new Simulation({ ...config, ...changes });
  for (const request of trace) simulation.arrive(request);
  simulation.finish();
  return simulation;
}

const traces = fc
  .array(
    fc.record({
      gapUs: fc.integer({ min: 0, max: 30_000 }),
      input: fc.integer({ min: 1, max: 150 }),
      output: fc.integer({ min: 1, max: 60 }),
      family: fc.nat(3),
    }),
    { minLength: 1, maxLength: 40 },
  )
  .map((requests) => {
    let atUs = 0;
    return requests.map(({ gapUs, input, output, family }, index) => {
      atUs += gapUs;
      return requestOf(index, atUs, input, output, family);
    });
  });

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

  it('ends every request once, leaves nothing behind, and is the same with equal steps run one by one', () => {
    let coalesced = 0;
    fc.assert(
      fc.property(traces, (trace) => {
        const { outcome, live } = run(trace);
        expect([outcome.requests, live]).toEqual([trace.length, 0]);
        expect(outcome.refusedRequests + outcome.completedRequests).toBe(trace.length);
        const single = run(trace, { instance: { ...config.instance, coalesce: false } }).outcome;
        expect([single.stateHash, single.endUs, single.steps]).toEqual([
          outcome.stateHash,
          outcome.endUs,
          outcome.steps,
        ]);
        coalesced += outcome.steps;
      }),
      { numRuns: 60 },
    );
    expect(coalesced).toBeGreaterThan(1000);
  });

  it('tells runs apart that differ in anything', () => {
    const trace = Array.from({ length: 10 }, (_, i) => requestOf(i, i * 3_000, 60, 20, 0));
    const { stateHash } = run(trace).outcome;
    expect(run(trace).outcome.stateHash).toBe(stateHash);
    const later = trace.map((request) => (request.index === 9 ? { ...request, arrivalUs: 27_001 } : request));
    expect(run(later).outcome.stateHash).not.toBe(stateHash);
    expect(run(trace, { instance: { ...config.instance, blocks: 10 } }).outcome.stateHash).not.toBe(stateHash);
  });

  it('reuses the blocks that prompts share', () => {
    const trace = [requestOf(0, 0, 100, 1, 0), requestOf(1, 1_000_000, 100, 1, 0), requestOf(2, 2_000_000, 100, 1, 7)];
    // Six full blocks, the last of which is each prompt's own.
    expect(run(trace, { mixed: 1 }).outcome.cachedTokens).toBe(5 * blockTokens);
  });

  it('refuses what is too long and what is too many', () => {
    const long = requestOf(0, 0, 24 * blockTokens, 2);
    expect(run([long]).outcome.refusedRequests).toBe(1);
    const burst = Array.from({ length: 30 }, (_, i) => requestOf(i, 0, 10, 5));
    const { outcome } = run(burst);
    expect([outcome.completedRequests, outcome.refusedRequests]).toEqual([20, 10]);
  });
});

describe('the roofline', () => {
  it('finds the most rows that fit a time, as trying does', () => {
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

  it('refuses a model that the devices cannot hold, with both sizes', () => {
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
    const parts = { tensorParallel: 1, pipelineParallel: 1, weightBytes: 2, kvBytes: 2, kvMemoryShare: 1 };
    expect(() => new RooflineCost({ ...shape, ...parts })).toThrow('138.0 GB on 1 devices of 80.0 GB');
  });
});
