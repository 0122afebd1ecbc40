// The fitted cost of a step: it learns, tolerates outliers, and sizes chunks.
import { describe, expect, test } from 'vitest';
import { StepCost } from '../../../src/core/cost/step-cost.ts';
import type { StepShape } from '../../../src/core/protocol/step-shape.ts';
import { Sequence } from '../../../src/core/scheduler/batching/sequence.ts';
import { StepBudget } from '../../../src/core/scheduler/batching/step-budget.ts';
import { TokenContent } from '../../../src/core/scheduler/batching/token-content.ts';
import { counterUniform } from '../../../src/util/counter-random.ts';
import { pageTokens } from '../../../src/util/step.ts';

/** A machine five times slower than the guess, with other ratios. */
function trueUs(shape: StepShape): number {
  return 9_000 + shape.rows * 1_500 + shape.keyRows * 0.4 + shape.decodeRows * 700 + shape.logitRows * 900;
}

function prefill(rows: number, position: number): StepShape {
  return { rows, keyRows: rows * position + (rows * (rows + 1)) / 2, decodeRows: 0, decodeKeys: 0, logitRows: 1 };
}

function decode(sequences: number, position: number): StepShape {
  return {
    rows: sequences,
    keyRows: sequences * position,
    decodeRows: sequences,
    decodeKeys: sequences * position,
    logitRows: sequences,
  };
}

/** Steps of a server: chunks, mixed steps, decode alone. */
function randomShape(i: number): StepShape {
  const uniform = (k: number): number => counterUniform(5, k, i);
  const chunk = prefill(Math.floor(uniform(1) * 300) + 1, Math.floor(uniform(2) * 4_000));
  const tail = decode(Math.floor(uniform(3) * 32), Math.floor(uniform(4) * 4_000));
  if (uniform(5) < 0.4) return decode(tail.rows + 1, Math.floor(uniform(4) * 4_000));
  return {
    rows: chunk.rows + tail.rows,
    keyRows: chunk.keyRows + tail.keyRows,
    decodeRows: tail.decodeRows,
    decodeKeys: tail.decodeKeys,
    logitRows: chunk.logitRows + tail.logitRows,
  };
}

function worstError(cost: StepCost): number {
  const shapes = Array.from({ length: 50 }, (_, i) => randomShape(10_000 + i));
  return Math.max(...shapes.map((shape) => Math.abs(cost.predictUs(shape) / trueUs(shape) - 1)));
}

describe('the fit', () => {
  test('is near after one step of a kind, and within a tenth everywhere after a hundred', () => {
    const cost = new StepCost();
    const first = prefill(250, 0);
    cost.observe(first, [trueUs(first)]);
    expect(Math.abs(cost.predictUs(prefill(200, 250)) / trueUs(prefill(200, 250)) - 1)).toBeLessThan(0.3);
    for (let i = 0; i < 100; i++)
      cost.observe(randomShape(i), [trueUs(randomShape(i)) * (0.95 + 0.1 * counterUniform(1, 9, i))]);
    expect(worstError(cost)).toBeLessThan(0.1);
    expect(cost.observed).toBe(101);
  });

  test('survives pauses that make a step fifty times longer', () => {
    const cost = new StepCost();
    for (let i = 0; i < 300; i++) cost.observe(randomShape(i), [trueUs(randomShape(i)) * (i % 40 === 39 ? 50 : 1)]);
    for (let i = 300; i < 320; i++) cost.observe(randomShape(i), [trueUs(randomShape(i))]);
    expect(worstError(cost)).toBeLessThan(0.25);
  });

  test('chunks reach their full size soon after a first step that takes four times as long', () => {
    const cost = new StepCost();
    const us = (shape: StepShape): number => 5_000 + shape.rows * 290 + shape.keyRows * 0.31;
    const nothing = { rows: 0, keyRows: 0, decodeRows: 0, decodeKeys: 0, logitRows: 0 };
    const chunks: number[] = [];
    for (let position = 0; chunks.length < 8; position += chunks.at(-1) ?? 0) {
      const rows = Math.max(pageTokens, cost.rowsWithin(100_000, nothing, position));
      const shape = { ...prefill(rows, position), logitRows: 0 };
      cost.observe(shape, [us(shape) * (position === 0 ? 4 : 1)]);
      chunks.push(rows);
    }
    const position = chunks.reduce((sum, rows) => sum + rows, 0);
    const fitting = prefill(cost.rowsWithin(100_000, nothing, position), position);
    expect(us(fitting) / 100_000).toBeGreaterThan(0.8);
    expect(us(fitting) / 100_000).toBeLessThan(1.2);
    expect(chunks.slice(3).every((rows) => rows > 3 * pageTokens)).toBe(true);
  });

  test('keeps the coefficients of prefill through a long time of decoding', () => {
    const cost = new StepCost();
    for (let i = 0; i < 100; i++) cost.observe(randomShape(i), [trueUs(randomShape(i))]);
    for (let i = 0; i < 20_000; i++) cost.observe(decode(8, 500 + i / 40), [trueUs(decode(8, 500 + i / 40))]);
    expect(Math.abs(cost.predictUs(prefill(200, 0)) / trueUs(prefill(200, 0)) - 1)).toBeLessThan(0.3);
  });

  test('keeps the time of prompts while decode steps are slow for a while, and fast again', () => {
    const cost = new StepCost();
    const us = ({ rows, decodeRows }: StepShape): number => 200 + (rows - decodeRows) * 70 + decodeRows * 30;
    for (const rows of [136, 64, 180, 240]) cost.observe(prefill(rows, 0), [us(prefill(rows, 0))]);
    for (let i = 0; i < 30; i++) cost.observe(decode(3, 250 + i), [us(decode(3, 250)) * (i < 6 ? 30 : 1)]);
    const prompt = prefill(278, 0);
    expect(cost.predictUs(prompt) / us(prompt)).toBeGreaterThan(0.5);
    expect(cost.predictUs(prompt) / us(prompt)).toBeLessThan(2);
  });

  test('is right in the mean where every third step takes three times as long', () => {
    const cost = new StepCost();
    const times = Array.from({ length: 600 }, (_, i) => (i % 3 === 2 ? 6_000 : 2_000));
    const predicted = times.map((us, i) => {
      const before = cost.predictUs(decode(4, 300));
      cost.observe(decode(4, 300), [us]);
      return i < 100 ? 0 : before;
    });
    const mean = predicted.reduce((sum, us) => sum + us, 0) / (times.length - 100);
    expect(mean / ((2 * 2_000 + 6_000) / 3)).toBeGreaterThan(0.85);
    expect(mean / ((2 * 2_000 + 6_000) / 3)).toBeLessThan(1.1);
  });

  test('gives another predictor its coefficients', () => {
    const cost = new StepCost();
    for (let i = 0; i < 50; i++) cost.observe(randomShape(i), [trueUs(randomShape(i))]);
    const other = new StepCost();
    other.setCoefficients(cost.coefficients);
    for (let i = 50; i < 60; i++) expect(other.predictUs(randomShape(i))).toBeCloseTo(cost.predictUs(randomShape(i)));
  });

  test('follows a machine that becomes half as fast', () => {
    const cost = new StepCost();
    for (let i = 0; i < 200; i++) cost.observe(randomShape(i), [trueUs(randomShape(i))]);
    for (let i = 200; i < 500; i++) cost.observe(randomShape(i), [2 * trueUs(randomShape(i))]);
    const shape = prefill(200, 1_000);
    expect(Math.abs(cost.predictUs(shape) / (2 * trueUs(shape)) - 1)).toBeLessThan(0.15);
  });

  test('stays finite and positive with nonsense times', () => {
    const cost = new StepCost();
    for (let i = 0; i < 100; i++) cost.observe(randomShape(i), [i % 3 === 0 ? 0 : 1e12]);
    expect(Number.isFinite(cost.predictUs(prefill(100, 10)))).toBe(true);
    expect(cost.predictUs({ rows: 0, keyRows: 0, decodeRows: 0, decodeKeys: 0, logitRows: 0 })).toBeGreaterThan(0);
  });
});

describe('sizing a chunk', () => {
  const cost = new StepCost();
  for (let i = 0; i < 200; i++) cost.observe(randomShape(i), [trueUs(randomShape(i))]);

  test.each([
    [100_000, 0, 0],
    [400_000, 3_000, 8],
    [5_000, 0, 0],
    [50_000, 60_000, 32],
  ])(
    'in %i us at position %i beside %i decode rows: the largest that is predicted to fit',
    (budgetUs, position, rows) => {
      const base = decode(rows, 500);
      const fits = (n: number): boolean => {
        const chunk = prefill(n, position);
        const shape = { ...base, rows: base.rows + n, keyRows: base.keyRows + chunk.keyRows };
        return cost.predictUs(shape) <= budgetUs + 1e-6;
      };
      const n = cost.rowsWithin(budgetUs, base, position);
      if (cost.predictUs(base) < budgetUs) expect([fits(n), fits(n + 1)]).toEqual([true, false]);
      else expect(n).toBe(0);
    },
  );

  test('a prompt slightly over the budget is computed whole, and decode always leaves rows to prefill', () => {
    const limits = {
      tokensMax: 4_096,
      logitRowsMax: 97,
      sequencesMax: 32,
      stepUsDecoding: 50_000,
      stepUsPrefill: 400_000,
    };
    const budget = new StepBudget(limits, cost, pageTokens);
    const prompt = (length: number): Sequence => {
      const root = new Uint32Array(4);
      return new Sequence({
        content: new TokenContent(new Int32Array(length), root),
        promptLength: length,
        priority: 0,
        arrival: length,
        samples: true,
        groups: 1,
      });
    };
    const beside = { keepsShort: false, alone: false };
    budget.endDecode(beside);
    const rows = budget.rowsFor(prompt(4_000), false);
    expect(budget.rowsFor(prompt(rows + 20), false)).toBe(rows + 20);
    expect(budget.rowsFor(prompt(rows * 2), false)).toBe(rows);
    for (let i = 0; i < 32; i++) {
      const one = prompt(3_000 + i);
      Object.assign(one, { computed: one.length - 1, planned: 1 });
      budget.take(one);
    }
    const decodeUs = cost.predictUs(budget.shape);
    expect(decodeUs).toBeGreaterThan(limits.stepUsDecoding);
    budget.endDecode(beside);
    expect(budget.rowsFor(prompt(4_000), false)).toBe(cost.rowsWithin(decodeUs * 1.5, budget.shape, 0));
    expect(budget.rowsFor(prompt(4_000), false)).toBeGreaterThan(20);
  });

  test('limits that leave no row for a prefill, or no logits for it, are refused', () => {
    const limits = { tokensMax: 64, logitRowsMax: 33, sequencesMax: 32, stepUsDecoding: 1, stepUsPrefill: 1 };
    expect(() => new StepBudget(limits, cost, pageTokens)).not.toThrow();
    expect(() => new StepBudget({ ...limits, tokensMax: 63 }, cost, pageTokens)).toThrow('Cannot batch');
    expect(() => new StepBudget({ ...limits, logitRowsMax: 32 }, cost, pageTokens)).toThrow('Cannot batch');
  });
});
