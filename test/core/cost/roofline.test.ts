// The roofline's memory rule, replicated KV heads and micro-batches, against figures computed by hand.
import { join } from 'node:path';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { root } from '../../../scripts/root.mjs';
import { hardwareSpec, modelSpec } from '../../../src/cli/options/specs.ts';
import { assumedEfficiency, RooflineCost } from '../../../src/core/cost/roofline.ts';
import type { InstanceShape } from '../../../src/core/cost/shapes.ts';
import { decodeShape, type StepShape } from '../../../src/core/protocol/step-shape.ts';

const h100 = hardwareSpec('h100x8');
const device = { ...h100, operationsPerSecond: h100.operationsPerSecond.bf16 };

function shapeOf(model: string, parts: Partial<InstanceShape> = {}): InstanceShape {
  return {
    model: modelSpec(model),
    device,
    efficiency: assumedEfficiency,
    ...{ tensorParallel: 1, pipelineParallel: 1, weightBytes: 2, kvBytes: 2, memoryShare: 0.9, stepRows: 8192 },
    ...parts,
  };
}

describe('memory', () => {
  it('for KV is a share of the whole memory, less weights and the activations of the largest step', () => {
    const memoryBytes = 24 * 2 ** 30;
    const rtx4090 = { ...device, memoryBytes };
    const { kvCapacityTokens } = new RooflineCost(shapeOf('llama2-7b', { device: rtx4090, stepRows: 2048 }));
    // 6,738,149,376 weights without norms; a row has 2 (3 x 4096 + 4 x 4096 + 3 x 11008) bytes.
    const weights = 2 * (32 * (4 * 4096 ** 2 + 3 * 4096 * 11_008) + 2 * 32_000 * 4096);
    const activations = 2048 * 2 * (7 * 4096 + 3 * 11_008);
    const kvBytesPerToken = 2 * 32 * 4096 * 2;
    expect(kvCapacityTokens).toBe(Math.floor((0.9 * memoryBytes - weights - activations) / kvBytesPerToken));
    // The rule before, 0.9 x (memory - weights), gave a sixth more.
    expect((0.9 * (memoryBytes - weights)) / kvBytesPerToken / kvCapacityTokens).toBeCloseTo(7 / 6, 1);
  });

  it('that is too small is refused with the figures', () => {
    expect(() => new RooflineCost(shapeOf('llama2-70b'))).toThrow(
      /Cannot hold the model: weights take 138\.0 GB and a step of 8192 tokens \d\.\d GB: the share 0\.9 of 1 devices of 85\.9 GB is 77\.3 GB/,
    );
  });
});

describe('tensor parallelism', () => {
  it('beyond the KV heads replicates them', () => {
    const [eight, sixteen] = [8, 16].map(
      (tensorParallel) => new RooflineCost(shapeOf('llama2-70b', { tensorParallel })),
    );
    expect(sixteen.kvBytesPerToken).toBe(eight.kvBytesPerToken);
    const weights = 2 * 68.976e9;
    // Twice the memory holds twice the KV heads of each token.
    const memory = 0.9 * 16 * device.memoryBytes;
    expect(sixteen.kvCapacityTokens * 2 * sixteen.kvBytesPerToken).toBeLessThan(memory - weights);
    expect(sixteen.kvCapacityTokens).toBeLessThan(1.2 * eight.kvCapacityTokens);
    // Each device reads as many keys as with 8 devices.
    const keysUs = (cost: RooflineCost) => cost.stepUs(decodeShape(64, 6_400_000)) - cost.stepUs(decodeShape(64, 64));
    expect(keysUs(sixteen) / keysUs(eight)).toBeCloseTo(1, 3);
  });

  it.each([
    ['llama2-70b', 3, 'Cannot split 64 attention heads over 3 tensor-parallel devices'],
    ['llama-33b', 8, 'Cannot split 52 attention heads over 8 tensor-parallel devices'],
  ])('of %s over %i devices is refused', (model, tensorParallel, message) => {
    expect(() => new RooflineCost(shapeOf(model, { tensorParallel }))).toThrow(message);
  });
});

describe('the efficiency of a hardware entry', () => {
  const fitted = hardwareSpec('h100x8', join(root, 'specs', 'hardware-vllm.yaml')).efficiency;
  const step = decodeShape(32, 32 * 4000);
  const stepUs = (changes: object) =>
    new RooflineCost(
      shapeOf('llama3-70b', { tensorParallel: 8, efficiency: { ...assumedEfficiency, ...changes } }),
    ).stepUs(step);
  const assumedUs = stepUs({});

  it('replaces the assumptions, which a field without a value keeps', () => {
    expect(hardwareSpec('h100x8').efficiency).toEqual(assumedEfficiency);
    // Steps of 70B on 8 devices were measured to take 1.6 times as long as assumed.
    expect(stepUs(fitted) / assumedUs).toBeGreaterThan(1.3);
  });

  it('adds the time of all-reduces and of rows with logits', () => {
    expect(stepUs({ reduceUs: 7 }) - assumedUs).toBe(2 * 80 * 7);
    expect(stepUs({ sequenceUs: 10 }) - assumedUs).toBe(320);
  });

  it('falls with the size of a shard, by as much for each device', () => {
    const layersUs = (tensorParallel: number, changes: object, rows: number) => {
      const efficiency = { ...assumedEfficiency, layerUs: 0, stepUs: 0, ...changes };
      const shape = { ...decodeShape(rows, 0), logitRows: 0 };
      return new RooflineCost(shapeOf('llama3-70b', { tensorParallel, efficiency })).stepUs(shape);
    };
    for (const [changes, rows, rate, scale] of [
      [{ memoryShard: 3e6 }, 1, device.memoryBytesPerSecond * assumedEfficiency.memory, 2],
      [{ computeShard: 3e6 }, 8192, device.operationsPerSecond * assumedEfficiency.compute, 2 * 8192],
    ] as const)
      for (const tensorParallel of [4, 8]) {
        const addedUs = layersUs(tensorParallel, changes, rows) - layersUs(tensorParallel, {}, rows);
        // Each of the four products of 80 layers takes as long as one with three million weights more.
        expect(addedUs / ((4 * 80 * 3e6 * scale) / (rate / 1e6))).toBeCloseTo(1, 2);
      }
  });

  it('separates attention from linear layers', () => {
    const keysUs = (changes: object) =>
      stepUs(changes) - stepUs({ ...changes, attentionMemory: 1e9, attentionCompute: 1e9 });
    expect(keysUs({ attentionMemory: 0.4 }) / keysUs({})).toBeCloseTo(2, 1);
  });
});

describe('pipeline stages', () => {
  const noLinks = { ...device, memoryBytes: 1e12, linkUs: 0, linkBytesPerSecond: 1e30 };
  const costOf = (pipelineParallel: number) =>
    new RooflineCost(shapeOf('llama2-70b', { device: noLinks, tensorParallel: 2, pipelineParallel }));
  const [one, four] = [1, 4].map(costOf);
  const withoutHead = (shape: StepShape): StepShape => ({ ...shape, logitRows: 0 });

  it('run a lone decode row one after another', () => {
    expect(four.stepUs(decodeShape(1, 1000))).toBe(one.stepUs(decodeShape(1, 1000)));
  });

  it('run the micro-batches of a step at once: as much time as one of them takes through all stages', () => {
    for (const rows of [16, 400, 4000]) {
      const shape = decodeShape(rows, rows * 1000);
      const part = decodeShape(rows / 4, rows * 250);
      expect(four.stepUs(withoutHead(shape))).toBe(one.stepUs(withoutHead(part)));
      // The last stage has the head, for one micro-batch after another: the other stages wait.
      const headUs = one.stepUs(part) - one.stepUs(withoutHead(part));
      expect(Math.abs(four.stepUs(shape) - four.stepUs(withoutHead(shape)) - 4 * headUs)).toBeLessThanOrEqual(4);
    }
  });

  it('take no less time for more rows, and rowsWithin is the largest number that fits', () => {
    fc.assert(
      fc.property(
        fc.record({
          decodeRows: fc.integer({ min: 4, max: 200 }),
          position: fc.integer({ min: 0, max: 20_000 }),
          budgetUs: fc.integer({ min: 1000, max: 2_000_000 }),
        }),
        ({ decodeRows, position, budgetUs }) => {
          const shape = decodeShape(decodeRows, decodeRows * 700);
          const rows = four.rowsWithin(budgetUs, shape, position);
          const stepUs = (n: number) =>
            four.stepUs({
              ...shape,
              rows: shape.rows + n,
              keyRows: shape.keyRows + n * position + (n * (n + 1)) / 2,
              logitRows: shape.logitRows + 1,
            });
          if (rows > 0) expect(stepUs(rows)).toBeLessThanOrEqual(budgetUs);
          expect(stepUs(rows + 1)).toBeGreaterThan(budgetUs);
        },
      ),
    );
  });
});
