// Step times of model workers and attention workers, against the paper's figures and sums computed by hand.
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { AttentionWorkerSettings } from '../../../src/cli/simulate/simulated-attention-workers.ts';
import { attentionWorkersCost } from '../../../src/cli/simulate/simulated-attention-workers.ts';
import { decodeShape } from '../../../src/core/protocol/step-shape.ts';

const options: AttentionWorkerSettings & { dop: string } = {
  cost: 'roofline',
  model: 'llama3-70b',
  hardware: 'h100x8',
  attentionHardware: 'h20x8',
  dop: '2,4',
  pp: 1,
  precision: 'bf16',
  kvType: 'bf16',
  stack: 'fhbn',
  staggeredBatches: 2,
  partition: 'heads',
};
const costOf = (changes: Partial<typeof options> = {}) => attentionWorkersCost({ ...options, ...changes });
const azureTokens = 1366;

describe('messages', () => {
  it.each([
    ['fhbn', 5.3],
    ['nccl', 10.7],
  ] as const)('by %s take the published time of 80 layers', (stack, publishedMs) => {
    const { networkUs } = costOf({ stack }).parts(decodeShape(2, 2));
    expect(networkUs / 1000).toBeCloseTo(publishedMs, 1);
  });

  it('carry Q, K, V and the result: 2 + 2 / G times the width', () => {
    const { query, keysAndValues, result } = costOf().rowBytes;
    expect(query + keysAndValues + result).toBe(2 * 80 * 8192 * (2 + 2 / 8));
  });

  it('of batch 300 need the published 30 GB/s at 4,096 tokens, within 5 %, for a slow-down of 20 %', () => {
    const cost = costOf();
    // Two staggered batches of this size.
    const needed = (batch: number) => cost.bytesPerSecondMin(decodeShape(2 * batch, 2 * batch * 4096), 0.2) / 1e9;
    expect(needed(300) / 30).toBeGreaterThan(0.95);
    expect(needed(300) / 30).toBeLessThan(1.05);
    // Below it the weights bound the model part, and smaller batches send less in the same time.
    for (let batch = 20; batch <= 300; batch += 20) expect(needed(batch)).toBeGreaterThan(needed(batch - 10));
  });
});

describe('memory', () => {
  it('of the attention workers is that of the KV: (2,4) on 70B holds the published batch of 800', () => {
    const { kvCapacityTokens } = costOf();
    expect(kvCapacityTokens).toBe(Math.floor((0.9 * 4 * 96 * 2 ** 30) / 327_680));
    expect(kvCapacityTokens / azureTokens).toBeGreaterThan(800);
    expect(kvCapacityTokens / azureTokens).toBeLessThan(900);
  });

  it.each([
    [
      { dop: '2,3' },
      '--dop 2,3: cannot split 8 KV heads over 3 attention workers: use a divisor of 8, or partition by requests',
    ],
    [{ dop: '1,4' }, '--dop 1,4: cannot hold the model: weights take 141'],
    [{ dop: '3,4' }, '--dop 3,4: cannot split 64 attention heads over 3 tensor-parallel devices'],
    [
      { dop: '4,4', staggeredBatches: 4 },
      '--staggered-batches 4 needs 3 model replicas, and 4 model devices are not divisible by 3',
    ],
    [{ tp: 2 }, 'it states the devices of the model workers: remove --tp'],
  ])('and devices that do not fit are refused: %j', (changes, message) => {
    expect(() => costOf(changes)).toThrow(message);
    expect(() => costOf({ dop: '2,3', partition: 'requests' })).not.toThrow();
  });
});

describe('staggered batches', () => {
  it('take the longest of one batch, all attention, and the replicas share of all model parts', () => {
    for (const [staggeredBatches, dop] of [
      [1, '2,4'],
      [2, '2,4'],
      [3, '4,4'],
      [5, '8,8'],
    ] as const) {
      const cost = costOf({ staggeredBatches, dop });
      fc.assert(
        fc.property(fc.integer({ min: 8, max: 2000 }), fc.integer({ min: 1, max: 8000 }), (rows, keys) => {
          const { modelUs, attentionUs, networkUs, stepUs } = cost.parts(decodeShape(rows, rows * keys));
          const bounds = [
            modelUs + attentionUs + networkUs,
            staggeredBatches * attentionUs,
            (staggeredBatches * modelUs) / Math.max(1, staggeredBatches - 1),
          ];
          expect(stepUs).toBeGreaterThanOrEqual(Math.max(...bounds) * (1 - 1e-9));
          // Bytes of all batches alone could take longer, which the links of these devices never do.
          expect(stepUs).toBeLessThanOrEqual(Math.max(...bounds) * (1 + 1e-9));
        }),
        { numRuns: 50 },
      );
    }
  });

  it('at t_a = t_m reach nearly twice the throughput of batches in turn', () => {
    const [one, two] = [1, 2].map((staggeredBatches) => costOf({ staggeredBatches, stack: 'fhbn' }));
    const batch = 64;
    const keysAt = (keys: number) => two.parts(decodeShape(2 * batch, 2 * batch * keys));
    let keys = 100;
    while (keysAt(keys).attentionUs < keysAt(keys).modelUs) keys += 100;
    const inTurnUs = 2 * one.stepUs(decodeShape(batch, batch * keys));
    const { stepUs, networkUs, modelUs } = keysAt(keys);
    expect(inTurnUs / stepUs).toBeGreaterThan(1.95);
    expect(networkUs).toBeLessThan(modelUs);
  });
});
