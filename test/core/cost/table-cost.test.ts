// Step times from a small part of the measured tables: they reproduce measurements and never fall.
import { fileURLToPath } from 'node:url';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { modelSpec } from '../../../src/cli/options/specs.ts';
import { readMeasuredTables } from '../../../src/cli/simulate/measured-tables.ts';
import { Line, Surface } from '../../../src/core/cost/tables/interpolate.ts';
import { AttentionTimes, GemmTimes, plausible, reduceLine } from '../../../src/core/cost/tables/kernel-times.ts';
import { withoutQuantising } from '../../../src/core/cost/tables/measured-tables.ts';
import {
  fittedOverheads,
  prepareKernels,
  TableCost,
  type TableCostConfig,
} from '../../../src/core/cost/tables/table-cost.ts';
import type { StepShape } from '../../../src/core/protocol/step-shape.ts';

const folder = fileURLToPath(new URL('../../data/kernel-latencies', import.meta.url));
const tables = readMeasuredTables(folder, { hardware: 'h100x8', precision: 'bf16', kvType: 'bf16' });
const bare = {
  stepUs: 0,
  sequenceUs: 0,
  layerUs: 0,
  decodeFactor: 1,
  prefillFactor: 1,
  decodeReduceFactor: 1,
  prefillReduceFactor: 1,
};
const config: TableCostConfig = {
  model: modelSpec('llama3-8b'),
  tables,
  device: { memoryBytes: 8e10, memoryBytesPerSecond: 3.35e12, linkBytesPerSecond: 4.5e11, linkUs: 5 },
  tensorParallel: 1,
  pipelineParallel: 1,
  weightBytes: 2,
  kvBytes: 2,
  memoryShare: 0.9,
  stepRows: 0,
};

function decode(rows: number, keys: number): StepShape {
  return { rows, keyRows: rows * keys, decodeRows: rows, decodeKeys: rows * keys, logitRows: rows };
}

function prefill(tokens: number): StepShape {
  return { rows: tokens, keyRows: (tokens * (tokens + 1)) / 2, decodeRows: 0, decodeKeys: 0, logitRows: 1 };
}

describe('interpolation', () => {
  const rising = fc
    .array(fc.record({ gap: fc.integer({ min: 1, max: 100 }), rise: fc.integer({ min: 0, max: 1000 }) }), {
      minLength: 2,
      maxLength: 12,
    })
    .map((steps) => {
      let x = 0;
      let y = 0;
      return steps.map(({ gap, rise }) => {
        x += gap;
        y += rise;
        return { x, y };
      });
    });

  it('passes through its points and never falls where they rise', () => {
    fc.assert(
      fc.property(
        rising,
        fc.double({ min: 0, max: 1500, noNaN: true }),
        fc.double({ min: 0, max: 50, noNaN: true }),
        (points, x, d) => {
          const line = new Line(
            points.map((point) => point.x),
            points.map((point) => point.y),
          );
          for (const point of points) expect(line.at(point.x)).toBe(point.y);
          expect(line.at(x + d)).toBeGreaterThanOrEqual(line.at(x) - 1e-9);
        },
      ),
    );
  });

  it('is level before the first point and continues beyond the last, but never falls there', () => {
    expect(new Line([2, 4], [10, 20]).at(0)).toBe(10);
    expect(new Line([2, 4], [10, 20]).at(8)).toBe(40);
    expect(new Line([2, 4], [20, 10]).at(8)).toBe(10);
    expect(new Line([2], [7]).at(100)).toBe(7);
  });

  it('is exact for functions that are linear in both directions', () => {
    const xs = [1, 2, 8];
    const ys = [0, 10, 20, 100];
    const f = (x: number, y: number) => 3 + 2 * x + 5 * y + 7 * x * y;
    const surface = new Surface(
      xs,
      ys,
      xs.flatMap((x) => ys.map((y) => f(x, y))),
    );
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 20 }), fc.integer({ min: 0, max: 300 }), (x, y) => {
        expect(surface.at(x, y)).toBeCloseTo(f(x, y), 6);
      }),
    );
  });
});

describe('kernel times', () => {
  const gemm = new GemmTimes(tables.gemm, 'tables');

  it('of a measured product equal the measurement', () => {
    const { m, n, k, us } = tables.gemm;
    let exact = 0;
    for (let i = 0; i < us.length; i++) {
      if (n[i] === 32) continue;
      const at = gemm.line(n[i], k[i]).at(m[i]);
      expect(at).toBeLessThanOrEqual(us[i]);
      if (at === us[i]) exact++;
    }
    // The rest took longer than a larger product, or than two of a smaller one.
    expect(exact).toBeGreaterThan(us.length / 4);
  });

  it('replace outliers: pad to a faster size, or split into smaller ones', () => {
    expect(plausible([1, 2, 4, 8], [10, 50, 15, 90])).toEqual([10, 15, 15, 30]);
  });

  it('grow with the product beyond the largest that was measured', () => {
    const { us, m, n, k } = tables.gemm;
    const largest = us.find((_, i) => m[i] === 8192 && n[i] === 65536 && k[i] === 4096) ?? 0;
    expect(gemm.line(131_072, 4096).at(8192)).toBeCloseTo(2 * largest, 6);
  });

  it('of attention equal the measurement; twice the heads count as twice the sequences', () => {
    const keys = (tokens: number) => tokens;
    const { batch, tokens, heads, us } = tables.generationAttention;
    const times = new AttentionTimes(tables.generationAttention, 32, 8, keys, 'tables');
    const doubled = new AttentionTimes(tables.generationAttention, 64, 16, keys, 'tables');
    for (const [b, length] of [
      [8, 1024],
      [64, 128],
    ]) {
      const measured = us.find((_, i) => batch[i] === b && tokens[i] === length && heads[i] === 32);
      expect(times.us(b, length)).toBe(measured);
      expect(doubled.us(b / 2, length)).toBe(measured);
    }
    expect(() => new AttentionTimes(tables.generationAttention, 32, 3, keys, 'tables')).toThrow('no 32 over 3 heads');
  });

  it('of fp8 exclude the quantisation of inputs', () => {
    const sizes = {
      m: Float64Array.of(1, 4, 1, 4),
      n: Float64Array.of(32, 32, 64, 64),
      k: new Float64Array(4).fill(1024),
    };
    const fp8 = { ...sizes, us: Float64Array.of(9, 15, 20, 40) };
    const bf16 = { ...sizes, us: Float64Array.of(2, 3, 30, 60) };
    expect([...withoutQuantising(fp8, bf16).us]).toEqual([2, 3, 13, 28]);
  });

  it('of an all-reduce require measurements for the number of devices', () => {
    expect(reduceLine(tables.allReduce.engine, 2, 'tables').at(65_536)).toBe(tables.allReduce.engine.us[1]);
    expect(() => reduceLine(tables.allReduce.engine, 8, 'tables')).toThrow(
      'Cannot time an all-reduce: tables has no times for 8 devices',
    );
  });
});

describe('a step by measured tables', () => {
  const cost = new TableCost(prepareKernels(config), fittedOverheads);

  it('is the sum of its kernels', () => {
    const rows = 64;
    const gemm = new GemmTimes(tables.gemm, 'tables');
    const product = (n: number, k: number) => gemm.line(n, k).at(rows);
    const layer = product(6144, 4096) + product(4096, 4096) + product(28_672, 4096) + product(4096, 14_336);
    const attention = new AttentionTimes(tables.generationAttention, 32, 8, (tokens) => tokens, 'tables');
    const elementwise = (rows * 2 * (8 * 4096 + 2 * 6144 + 3 * 14_336)) / (3.35e6 * 0.8);
    const us = 32 * (layer + elementwise + attention.us(rows, 1024)) + product(128_256, 4096);
    expect(new TableCost(prepareKernels(config), bare).stepUs(decode(rows, 1024))).toBe(Math.round(us));
  });

  it('never becomes shorter with more rows or keys', () => {
    const n = (max: number) => fc.integer({ min: 1, max });
    fc.assert(
      fc.property(n(300), n(20_000), n(100), n(2000), (rows, keys, moreRows, moreKeys) => {
        expect(cost.stepUs(decode(rows + moreRows, keys))).toBeGreaterThanOrEqual(cost.stepUs(decode(rows, keys)));
        expect(cost.stepUs(decode(rows, keys + moreKeys))).toBeGreaterThanOrEqual(cost.stepUs(decode(rows, keys)));
        expect(cost.stepUs(prefill(keys + moreKeys))).toBeGreaterThanOrEqual(cost.stepUs(prefill(keys)));
      }),
    );
  });

  it('accepts fractional rows, as in mean chunks', () => {
    const between = cost.stepUs({ ...prefill(1000), rows: 1000.5, keyRows: 501_001 });
    expect(between).toBeGreaterThanOrEqual(cost.stepUs(prefill(1000)));
    expect(between).toBeLessThanOrEqual(cost.stepUs(prefill(1001)));
  });

  it('finds the largest number of rows within a budget', () => {
    const n = (max: number) => fc.integer({ min: 0, max });
    fc.assert(
      fc.property(n(400_000), n(30), n(20_000), n(5000), (budgetUs, decodeRows, decodeKeys, position) => {
        const shape = {
          rows: decodeRows,
          keyRows: decodeRows && decodeKeys,
          decodeRows,
          decodeKeys: decodeRows && decodeKeys,
          logitRows: decodeRows,
        };
        const us = (rows: number) => {
          const keyRows = shape.keyRows + rows * position + (rows * (rows + 1)) / 2;
          return cost.stepUs({ ...shape, rows: decodeRows + rows, keyRows, logitRows: decodeRows + 1 });
        };
        const rows = cost.rowsWithin(budgetUs, shape, position);
        if (rows > 0) expect(us(rows)).toBeLessThanOrEqual(budgetUs);
        expect(us(rows + 1)).toBeGreaterThan(budgetUs);
      }),
    );
    expect(cost.rowsWithin(Number.MAX_SAFE_INTEGER, decode(1, 1), 0)).toBe(Number.POSITIVE_INFINITY);
  });

  it('includes all-reduces with two devices, and transfers between pipeline stages', () => {
    const over = (changes: Partial<TableCostConfig>, shape = prefill(1024)) =>
      new TableCost(prepareKernels({ ...config, ...changes }), bare).stepUs(shape);
    expect(over({ tensorParallel: 2 })).toBeGreaterThan(over({}) / 2);
    // A lone row runs through both stages; a prompt is two micro-batches, one in each stage.
    const row = decode(1, 512);
    expect(Math.abs(over({ pipelineParallel: 2 }, row) - over({}, row) - 5 - (2 * 4096) / 4.5e5)).toBeLessThanOrEqual(
      1,
    );
    expect(over({ pipelineParallel: 2 }) / over({})).toBeGreaterThan(0.5);
    expect(over({ pipelineParallel: 2 }) / over({})).toBeLessThan(0.6);
  });

  it('counts the memory left by the weights', () => {
    const { kvBytesPerToken, kvCapacityTokens } = cost;
    expect(kvBytesPerToken).toBe(2 * 32 * 8 * 128 * 2);
    expect(kvCapacityTokens * kvBytesPerToken).toBeLessThan(0.9 * 8e10 - 16e9);
    expect(kvCapacityTokens * kvBytesPerToken).toBeGreaterThan(0.9 * 8e10 - 16.1e9 - kvBytesPerToken);
  });

  it('refuses heads of another size', () => {
    expect(() => prepareKernels({ ...config, model: modelSpec('kvasir-tiny') })).toThrow(
      'has heads of 128: the model has heads of 64',
    );
  });
});
