// The division of a machine's threads between model workers and attention workers, from given speeds of thread teams.
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  planThreads,
  type TeamSpeeds,
  type ThreadPlanProblem,
} from '../../../src/core/attention-workers/thread-planner.ts';

/** Arithmetic grows with the threads; memory reaches its bandwidth with four of them. */
function saturating(threads: number): TeamSpeeds {
  const memory = Math.min(threads, 4) * 10e9;
  return { threads, operationsPerSecond: threads * 50e9, weightBytesPerSecond: memory, kvBytesPerSecond: memory };
}

/** Every speed grows with the threads. */
function scaling(threads: number): TeamSpeeds {
  const memory = threads * 10e9;
  return { threads, operationsPerSecond: threads * 50e9, weightBytesPerSecond: memory, kvBytesPerSecond: memory };
}

/** A model of one billion weights. */
const model = {
  ...{ layers: 16, hidden: 2048, heads: 32, kvHeads: 8, headDim: 64 },
  ...{ intermediate: 8192, gated: true, vocabulary: 128_256, tiedHead: true },
};
const problem: ThreadPlanProblem = {
  ...{ model, weightBytes: 1, kvBytes: 2, kvMemoryBytes: 16e9, partition: 'heads', modelWorkersMax: 8 },
  speeds: [1, 2, 4, 8, 16].map(saturating),
  limits: { contextTokens: 4096, tbtUsMax: Number.POSITIVE_INFINITY, sequencesMax: 64 },
};

describe('planThreads', () => {
  it('chooses one instance where every speed grows with the threads: dividing them gains nothing', () => {
    const { chosen, division, oneInstance } = planThreads({ ...problem, speeds: [1, 2, 4, 8, 16].map(scaling) });
    expect(chosen).toBeUndefined();
    expect(division?.tokensPerSecond).toBeLessThanOrEqual(oneInstance?.tokensPerSecond ?? 0);
  });

  it('divides the threads where attention reaches the bandwidth of the memory with a part of them', () => {
    const { chosen, oneInstance } = planThreads(problem);
    expect(chosen).toMatchObject({ modelWorkers: 1, attentionWorkers: 1, batches: 2 });
    expect((chosen?.modelDevices ?? 0) + (chosen?.attentionDevices ?? 0)).toBe(16);
    expect(chosen?.attentionDevices).toBeLessThan(8);
    expect(chosen?.tokensPerSecond).toBeGreaterThan(1.2 * (oneInstance?.tokensPerSecond ?? 0));
    // One instance takes the sum of both parts; the memory and each side bound the division.
    const { modelUs, attentionUs, stepUs } = chosen?.parts ?? { modelUs: 0, attentionUs: 0, stepUs: 0 };
    expect(stepUs).toBeGreaterThanOrEqual(2 * Math.max(modelUs, attentionUs));
  });

  it('divides into several attention workers where large teams are slower than several small ones', () => {
    // A team of more than two threads gains nothing; two of them do.
    const speeds = [1, 2, 4, 8].map((threads) => ({
      ...saturating(threads),
      kvBytesPerSecond: Math.min(threads, 2) * 5e9,
    }));
    speeds.push({ ...saturating(16), kvBytesPerSecond: 40e9 });
    const { division } = planThreads({ ...problem, speeds });
    expect(division?.attentionWorkers).toBeGreaterThan(1);
    expect(model.kvHeads % (division?.attentionWorkers ?? 0)).toBe(0);
  });

  it('keeps one instance where the best division is less than a tenth faster', () => {
    const gains = [400, 1000, 2000, 4096].map((contextTokens) => {
      const limits = { ...problem.limits, contextTokens };
      const { chosen, division, oneInstance } = planThreads({ ...problem, limits });
      const gain = (division?.tokensPerSecond ?? 0) / (oneInstance?.tokensPerSecond ?? 1);
      expect(chosen).toEqual(gain > 1.1 ? division : undefined);
      return gain;
    });
    // Both sides of the limit.
    expect(Math.min(...gains)).toBeLessThan(1.1);
    expect(Math.max(...gains)).toBeGreaterThan(1.1);
  });

  it('has no division on one thread', () => {
    const { chosen, division, oneInstance } = planThreads({ ...problem, speeds: [saturating(1)] });
    expect([chosen, division]).toEqual([undefined, undefined]);
    expect(oneInstance?.tokensPerSecond).toBeGreaterThan(0);
  });

  it('never gains with one batch, whose parts follow one another, as in one instance', () => {
    const { chosen, division } = planThreads({ ...problem, staggeredBatches: 1 });
    expect(division).toMatchObject({ modelWorkers: 1, batches: 1, modelDevices: 16, attentionDevices: 16 });
    expect(chosen).toBeUndefined();
  });

  it('has no choice if one sequence exceeds the TBT', () => {
    const limits = { ...problem.limits, tbtUsMax: 100 };
    expect(planThreads({ ...problem, limits })).toEqual({});
  });

  it('chooses the fastest of the divisions that can run, and nothing slower than one instance', () => {
    const speed = (unit: number) =>
      fc.array(fc.integer({ min: 1, max: 20 }), { minLength: 4, maxLength: 4 }).map(rising(unit));
    const random = fc.record({
      ...{ operations: speed(20e9), weights: speed(2e9), kv: speed(2e9) },
      ...{ kvHeads: fc.constantFrom(1, 2, 3, 8), partition: fc.constantFrom('heads' as const, 'requests' as const) },
      ...{ contextTokens: fc.integer({ min: 128, max: 16_384 }), kvMemoryBytes: fc.constantFrom(0.6e9, 4e9) },
      ...{ staggeredBatches: fc.constantFrom(undefined, 1, 2), tbtMs: fc.integer({ min: 50, max: 2000 }) },
    });
    fc.assert(
      fc.property(random, ({ operations, weights, kv, kvHeads, tbtMs, contextTokens, ...rest }) => {
        const speeds = [1, 2, 4, 6].map((threads, i) => ({
          ...{ threads, operationsPerSecond: operations[i] },
          ...{ weightBytesPerSecond: weights[i], kvBytesPerSecond: kv[i] },
        }));
        const limits = { contextTokens, tbtUsMax: tbtMs * 1000, sequencesMax: 32 };
        const shape = { ...model, heads: 24, kvHeads };
        const { chosen, oneInstance } = planThreads({ ...problem, ...rest, speeds, limits, model: shape });
        if (chosen === undefined) return;
        const { modelWorkers, attentionWorkers, modelDevices, attentionDevices, batches } = chosen;
        expect(chosen.tokensPerSecond).toBeGreaterThan(1.1 * (oneInstance?.tokensPerSecond ?? 0));
        expect(
          chosen.cost.stepUs({
            rows: 1,
            keyRows: contextTokens,
            decodeRows: 1,
            decodeKeys: contextTokens,
            logitRows: 1,
          }),
        ).toBeLessThanOrEqual(limits.tbtUsMax);
        expect(modelDevices + attentionDevices).toBeLessThanOrEqual(batches === 1 ? 12 : 6);
        expect(modelDevices).toBeGreaterThanOrEqual(modelWorkers);
        expect(attentionDevices).toBeGreaterThanOrEqual(attentionWorkers);
        expect(batches).toBe(modelWorkers > 1 ? modelWorkers + 1 : (rest.staggeredBatches ?? 2));
        if (rest.partition === 'heads') expect(kvHeads % attentionWorkers).toBe(0);
        else expect(chosen.cost.kvCapacityTokens / attentionWorkers).toBeGreaterThanOrEqual(contextTokens - 1);
      }),
      { numRuns: 100 },
    );
  });
});

function rising(unit: number): (steps: number[]) => readonly number[] {
  return (steps) => steps.map((_, i) => unit * steps.slice(0, i + 1).reduce((sum, step) => sum + step, 0));
}
