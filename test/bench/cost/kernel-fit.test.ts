// The efficiency of a device from measured kernels: found again in tables that it generates.
import { expect, it } from 'vitest';
import { kernelEfficiency } from '../../../src/bench/cost/kernel-fit.ts';
import type { AttentionTable, MeasuredTables, ReduceTable } from '../../../src/core/cost/tables/measured-tables.ts';

const device = {
  memoryBytes: 8e10,
  memoryBytesPerSecond: 2e12,
  operationsPerSecond: 3e14,
  linkBytesPerSecond: 3e11,
  linkUs: 5,
};
const truth = { compute: 0.8, memory: 0.7, computeShard: 6e5, memoryShard: 3e6 };

it('the efficiency of measured kernels is the one that generated them', () => {
  const products = [1, 8, 4096, 8192].flatMap((m) =>
    [256, 1024, 8192].flatMap((n) => [2048, 8192].map((k) => ({ m, n, k }))),
  );
  const us = products.map(({ m, n, k }) =>
    m > 100
      ? (2 * m * (n * k + truth.computeShard)) / (3e8 * truth.compute)
      : (2 * (n * k + truth.memoryShard)) / (2e6 * truth.memory),
  );
  const column = (name: 'm' | 'n' | 'k') => Float64Array.from(products, (product) => product[name]);
  // One call of 32,768 tokens at half of the peaks, and one of 2 million keys.
  const attention = (tokens: number, callUs: number): AttentionTable => ({
    batch: Float64Array.of(1),
    tokens: Float64Array.of(tokens),
    heads: Float64Array.of(32),
    kvHeads: Float64Array.of(0),
    us: Float64Array.of(callUs),
  });
  const contextUs = (2 * 32 * 128 * 32768 ** 2) / 3e8 / 0.5;
  const generationUs = (4 * 32 * 2e6 * 128) / 2e6 / 0.6;
  const sizes = [2 ** 10, 2 ** 24];
  const reduces: ReduceTable = {
    devices: Float64Array.of(8, 8),
    bytes: Float64Array.from(sizes),
    us: Float64Array.from(sizes, (elements) => 12 + (1.75 * 2 * elements) / 3e5 / 0.65),
  };
  const tables: MeasuredTables = {
    name: 'generated',
    gemm: { m: column('m'), n: column('n'), k: column('k'), us: Float64Array.from(us) },
    contextAttention: attention(32768, contextUs),
    generationAttention: attention(2e6, generationUs),
    allReduce: { engine: reduces, library: reduces },
    headDim: 128,
  };
  const found = kernelEfficiency(tables, device);
  for (const [name, value] of Object.entries(truth))
    expect((found[name as keyof typeof truth] ?? 0) / value).toBeCloseTo(1, 6);
  expect(found.attentionCompute).toBeCloseTo(0.5, 6);
  expect(found.attentionMemory).toBeCloseTo(0.6, 6);
  expect(found.link).toBeCloseTo(0.65, 1);
  expect(found.reduceUs).toBeGreaterThan(5);
  expect(found.reduceUs).toBeLessThanOrEqual(7.01);
});
