// Step time with sparse layers: bytes by layer, scoring in the step that selects, and published throughput.
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { hardwareSpec, modelSpec } from '../../../src/cli/options/specs.ts';
import { assumedEfficiency, RooflineCost } from '../../../src/core/cost/roofline.ts';
import type { InstanceShape } from '../../../src/core/cost/shapes.ts';
import { SparseCost, scoredPairs } from '../../../src/core/cost/sparse-cost.ts';
import { StepCost } from '../../../src/core/cost/step-cost.ts';
import { decodeShape, laterShape, type SparseWork } from '../../../src/core/protocol/step-shape.ts';

const { operationsPerSecond, ...rtx4090 } = hardwareSpec('rtx4090');
const shape: InstanceShape = {
  model: modelSpec('llama3-8b'),
  device: { ...rtx4090, operationsPerSecond: operationsPerSecond.bf16 },
  efficiency: assumedEfficiency,
  ...{ tensorParallel: 1, pipelineParallel: 1, weightBytes: 2, kvBytes: 2, memoryShare: 0.9, stepRows: 8192 },
};
const full = new RooflineCost(shape);
const cost = new SparseCost(full, shape);
const sparseLayers = 29;

const none: SparseWork = {
  ...{ skippedKeyRows: 0, skippedDecodeKeys: 0, skippedPerStep: 0 },
  ...{ scoredKeyRows: 0, scoredKeys: 0, keptTokens: 0 },
};

/** A step that decodes `rows` sequences of `context` tokens, of which sparse layers keep `kept`. */
function decode(rows: number, context: number, kept: number) {
  const skipped = rows * sparseLayers * (context - kept);
  const sparse = { ...none, skippedKeyRows: skipped, skippedDecodeKeys: skipped, skippedPerStep: rows * sparseLayers };
  return { ...decodeShape(rows, rows * context), sparse };
}

/** The selection of a prompt. */
function selection(prompt: number, observed: number, kept: number): SparseWork {
  return {
    ...none,
    scoredKeyRows: sparseLayers * scoredPairs(prompt, observed),
    scoredKeys: sparseLayers * prompt,
    keptTokens: sparseLayers * kept,
  };
}

describe('a step with sparse layers', () => {
  it('reads the context in full layers and the kept tokens in sparse layers', () => {
    const bytes = (tokens: number) => 20 * tokens * 2 * 8 * 128 * 2;
    const read = 3 * bytes(4250) + sparseLayers * bytes(1000);
    const weightsUs = full.stepUs(decodeShape(20, 0));
    expect(cost.stepUs(decode(20, 4250, 1000)) - weightsUs).toBeCloseTo(read / (0.8 * 1.008e6), -1);
    expect(cost.stepUs(decode(20, 4250, 4250))).toBe(full.stepUs(decodeShape(20, 20 * 4250)));
  });

  it('takes what it does without sparsity if no sequence has a budget', () => {
    fc.assert(
      fc.property(fc.nat(200), fc.nat(100_000), fc.nat(10_000), (rows, keys, budgetUs) => {
        const step = decodeShape(rows, keys);
        expect(cost.stepUs(step)).toBe(full.stepUs(step));
        expect(cost.rowsWithin(budgetUs, step, 100)).toBe(full.rowsWithin(budgetUs, step, 100));
        const range = { index: 1, stages: 2 };
        expect(cost.stageUs(step, range)).toBe(full.stageUs(step, range));
      }),
    );
  });

  it('a few steps later has the same kept tokens and a longer context', () => {
    expect(laterShape(decode(4, 3000, 500), 7)).toEqual(decode(4, 3007, 500));
    expect(laterShape(decodeShape(4, 100), 2)).toEqual(decodeShape(4, 108));
  });
});

it('is predicted by the keys that a layer reads in the mean, where steps are measured', () => {
  const predictor = new StepCost(32);
  const mean = { ...decodeShape(8, 8 * 1000), keyRows: 8 * 1000 };
  const skipped = 32 * 8 * 2000;
  const sparse = { ...decodeShape(8, 8 * 3000), sparse: { ...none, skippedKeyRows: skipped } };
  expect(predictor.predictUs(sparse)).toBeCloseTo(predictor.predictUs(mean), 6);
  predictor.observe(sparse, [50_000, 50_100, 50_200]);
  expect(predictor.observed).toBe(3);
});

describe('a selection', () => {
  it('takes a/n of the time of attention', () => {
    for (const prompt of [4000, 32_000]) {
      const attentionUs = (prompt * prompt * 2 * sparseLayers * 32 * 128) / (0.6 * 165e6);
      const us = cost.selectionUs({ ...selection(prompt, 256, 0) });
      expect(us / attentionUs / (256 / prompt)).toBeCloseTo(1, 1);
    }
  });

  it('reads the keys at least, and copies the kept tokens', () => {
    const keysUs = (sparseLayers * 4000 * 8 * 128 * 2) / (0.8 * 1.008e6);
    expect(cost.selectionUs(selection(4000, 1, 0))).toBeCloseTo(keysUs, 6);
    const copied = cost.selectionUs(selection(4000, 256, 1000)) - cost.selectionUs(selection(4000, 256, 0));
    expect(copied).toBeCloseTo((sparseLayers * 1000 * 2 * 2 * 8 * 128 * 2) / (0.8 * 1.008e6), 6);
    expect([scoredPairs(4000, 256), scoredPairs(100, 256)]).toEqual([256 * 4000 - 32_640, 5050]);
  });

  it('lengthens its step, and leaves fewer rows for others within the same time', () => {
    const step = { rows: 300, keyRows: 1_154_850, decodeRows: 0, decodeKeys: 0, logitRows: 1 };
    const selecting = { ...step, sparse: selection(4000, 256, 1000) };
    const addedUs = cost.selectionUs(selecting.sparse);
    expect(cost.stepUs(selecting)).toBe(cost.stepUs(step) + Math.round(addedUs));
    expect(addedUs / cost.stepUs(step)).toBeLessThan(0.1);
    expect(cost.rowsWithin(100_000, selecting, 0)).toBe(full.rowsWithin(100_000 - addedUs, step, 0));
  });
});

it('gives 1.6 times the throughput of 10 dense sequences to 20 with 1,000 kept tokens, 1.5 with 2,000', () => {
  // Time of one of n sequences of 4,000 + 500 tokens: its prompt, and its share of 500 decode steps.
  const prompt = { rows: 4000, keyRows: (4000 * 4001) / 2, decodeRows: 0, decodeKeys: 0, logitRows: 1 };
  const dense = full.stepUs(prompt) + (500 * full.stepUs(decodeShape(10, 10 * 4250))) / 10;
  const sparse = (kept: number) =>
    cost.stepUs({ ...prompt, sparse: selection(4000, 256, kept) }) + (500 * cost.stepUs(decode(20, 4250, kept))) / 20;
  expect(dense / sparse(1000)).toBeCloseTo(1.6, 1);
  expect(dense / sparse(2000)).toBeCloseTo(1.5, 1);
});
