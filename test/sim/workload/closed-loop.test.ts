// Clients in a closed loop: their concurrency, and the time of a request alone on the instance.
import { describe, expect, it } from 'vitest';
import { hardwareSpec, modelSpec } from '../../../src/cli/options/specs.ts';
import { assumedEfficiency, RooflineCost } from '../../../src/core/cost/roofline.ts';
import { type ClosedLoopConfig, runClosedLoop } from '../../../src/sim/workload/closed-loop.ts';

const { operationsPerSecond, ...device } = hardwareSpec('h100');
const cost = new RooflineCost({
  model: modelSpec('llama3-8b'),
  device: { ...device, operationsPerSecond: operationsPerSecond.bf16 },
  efficiency: assumedEfficiency,
  tensorParallel: 1,
  pipelineParallel: 1,
  weightBytes: 2,
  kvBytes: 2,
  memoryShare: 0.9,
  stepRows: 0,
});

const config: ClosedLoopConfig = {
  instance: {
    cost,
    blockTokens: 16,
    blocks: 4000,
    eviction: 'lru',
    limits: {
      tokensMax: 2048,
      logitRowsMax: 17,
      sequencesMax: 16,
      stepUsDecoding: Number.MAX_SAFE_INTEGER,
      stepUsPrefill: Number.MAX_SAFE_INTEGER,
    },
    coalesce: true,
  },
  clients: 6,
  requests: 40,
  lengths: (index) => ({ inputTokens: 200 + 37 * (index % 7), outputTokens: 20 + (index % 5) }),
  frontendUs: (tokens) => 1000 + tokens,
};

const times = (changes: Partial<ClosedLoopConfig> = {}) =>
  runClosedLoop({ ...config, ...changes }).map(({ trace, firstTokenUs, lastTokenUs, outputs }) => ({
    index: trace.index,
    arrivalUs: trace.arrivalUs,
    firstTokenUs,
    lastTokenUs,
    outputs,
  }));

describe('a closed loop', () => {
  it('gives every client one request at a time until all are sent', () => {
    const ended = times();
    expect(ended.map(({ index }) => index).sort((a, b) => a - b)).toEqual(Array.from({ length: 40 }, (_, i) => i));
    expect(ended.filter(({ arrivalUs }) => arrivalUs === 0)).toHaveLength(6);
    // Except for the first six, each request is sent when another ends.
    const ends = ended.map(({ lastTokenUs }) => lastTokenUs);
    for (const { index, arrivalUs, outputs } of ended) {
      expect(outputs).toBe(20 + (index % 5));
      if (arrivalUs > 0) expect(ends).toContain(arrivalUs);
    }
  });

  it('is deterministic, and the same with equal steps run one by one', () => {
    expect(times()).toEqual(times());
    expect(times({ instance: { ...config.instance, coalesce: false } })).toEqual(times());
  });

  it('of one client takes the time of the frontend, of its prompt and of its tokens', () => {
    const [first, second] = times({ clients: 1, requests: 2, lengths: () => ({ inputTokens: 100, outputTokens: 2 }) });
    const promptUs = cost.stepUs({ rows: 100, keyRows: 5050, decodeRows: 0, decodeKeys: 0, logitRows: 1 });
    const tokenUs = cost.stepUs({ rows: 1, keyRows: 101, decodeRows: 1, decodeKeys: 101, logitRows: 1 });
    expect(first.firstTokenUs).toBe(1100 + promptUs);
    expect(first.lastTokenUs).toBe(1100 + promptUs + tokenUs);
    expect(second.arrivalUs).toBe(first.lastTokenUs);
    expect(second.lastTokenUs).toBe(2 * first.lastTokenUs);
  });

  it('passes requests through the frontend one after another', () => {
    const alone = times({ clients: 1, requests: 1 })[0]?.firstTokenUs ?? 0;
    const both = times({ clients: 2, requests: 2, frontendUs: () => 1e6 });
    expect(both.map(({ firstTokenUs = 0 }) => Math.floor(firstTokenUs / 1e6))).toEqual([1, 2]);
    expect(alone).toBeLessThan(1e6);
  });
});
