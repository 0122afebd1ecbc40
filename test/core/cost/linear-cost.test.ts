// Times fitted to steps: exact for linear steps, never negative, and consistent with the rows that fit into a budget.
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { fitLinearCost, LinearCost, type LinearTimes } from '../../../src/core/cost/linear-cost.ts';
import type { StepShape } from '../../../src/core/protocol/step-shape.ts';

const sizes = { layers: 1, kvBytesPerToken: 1, kvCapacityTokens: 1000, activationBytesPerToken: 1 };
const times = fc.record({
  stepUs: fc.double({ min: 10, max: 5000, noNaN: true }),
  rowUs: fc.double({ min: 1, max: 500, noNaN: true }),
  keyUs: fc.double({ min: 0.01, max: 1, noNaN: true }),
  decodeRowUs: fc.double({ min: 0, max: 500, noNaN: true }),
  logitRowUs: fc.double({ min: 0, max: 500, noNaN: true }),
});

/** Prefills of several lengths behind several prefixes, and decodes of several sequences. */
const shapes: readonly StepShape[] = [1, 2, 3, 5, 8, 13].flatMap((n) => [
  { rows: 32 * n, keyRows: 32 * n * (7 * n * n + 16), decodeRows: 0, decodeKeys: 0, logitRows: n % 2 },
  { rows: n, keyRows: n * (100 + 31 * n * n), decodeRows: n, decodeKeys: n * (100 + 31 * n * n), logitRows: n },
  { rows: 17 * n + 1, keyRows: 400 * n, decodeRows: 1, decodeKeys: 90, logitRows: 1 },
]);

function exact({ stepUs, rowUs, keyUs, decodeRowUs, logitRowUs }: LinearTimes, shape: StepShape): number {
  const { rows, keyRows, decodeRows, logitRows } = shape;
  return stepUs + rows * rowUs + keyRows * keyUs + decodeRows * decodeRowUs + logitRows * logitRowUs;
}

describe('times fitted to steps', () => {
  it('reproduce the times of linear steps', () => {
    fc.assert(
      fc.property(times, (given) => {
        const fitted = fitLinearCost(shapes.map((shape) => ({ shape, us: exact(given, shape) })));
        for (const shape of shapes) expect(exact(fitted, shape) / exact(given, shape)).toBeCloseTo(1, 4);
      }),
    );
  });

  it('are never negative, for any step times', () => {
    fc.assert(
      fc.property(fc.array(fc.double({ min: 1, max: 1e5, noNaN: true }), { minLength: 18, maxLength: 18 }), (us) => {
        const fitted = fitLinearCost(shapes.map((shape, i) => ({ shape, us: us[i] })));
        expect(Math.min(...Object.values(fitted))).toBeGreaterThanOrEqual(0);
      }),
    );
  });

  it('are 0 for features that the steps do not distinguish from others', () => {
    const decodes = [1, 2, 4].flatMap((rows) =>
      [10, 500].map((keys) => ({ rows, keyRows: rows * keys, decodeRows: rows, decodeKeys: 0, logitRows: rows })),
    );
    const fitted = fitLinearCost(decodes.map((shape) => ({ shape, us: 400 + 30 * shape.rows + shape.keyRows })));
    expect(fitted.stepUs).toBeCloseTo(400, 3);
    expect(fitted.rowUs).toBeCloseTo(30, 3);
    expect(fitted.keyUs).toBeCloseTo(1, 3);
    expect(fitted.decodeRowUs + fitted.logitRowUs).toBe(0);
  });

  it('require at least one step', () => {
    expect(() => fitLinearCost([])).toThrow('Cannot fit a cost model: there are no steps');
  });

  it('give the largest number of rows within a budget', () => {
    fc.assert(
      fc.property(times, fc.nat(5000), fc.integer({ min: 1, max: 1_000_000 }), (given, position, budgetUs) => {
        const cost = new LinearCost(given, sizes);
        const beside = shapes[1];
        const rows = cost.rowsWithin(budgetUs, beside, position);
        const withRows = (n: number): number => {
          const keyRows = beside.keyRows + n * position + (n * (n + 1)) / 2;
          return exact(given, { ...beside, rows: beside.rows + n, keyRows, logitRows: beside.logitRows + 1 });
        };
        if (rows > 0) expect(withRows(rows)).toBeLessThanOrEqual(budgetUs + 2);
        expect(withRows(rows + 1)).toBeGreaterThan(budgetUs - 2);
      }),
    );
  });
});
