// Steps that vary as observed: each kind by its own times, alone and beside other instances.
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { MeasuredCost, type MeasuredStep, MovingBlocks, measureSteps } from '../../../src/core/cost/measured-cost.ts';
import type { StepShape } from '../../../src/core/protocol/step-shape.ts';

const sizes = { layers: 2, kvBytesPerToken: 1, kvCapacityTokens: 1000, activationBytesPerToken: 1 };

function decode(sequences: number, keys: number): StepShape {
  const keyRows = sequences * keys;
  return { rows: sequences, keyRows, decodeRows: sequences, decodeKeys: keyRows, logitRows: sequences };
}

function prompt(rows: number, beside: number): StepShape {
  const keyRows = (rows * (rows + 1)) / 2 + beside * 100;
  return { rows: rows + beside, keyRows, decodeRows: beside, decodeKeys: beside * 100, logitRows: beside + (rows % 2) };
}

const decodeUs = ({ rows, keyRows }: StepShape): number => 4000 + 300 * rows + keyRows;
const promptUs = ({ rows, keyRows, decodeRows, logitRows }: StepShape): number =>
  2000 + 450 * rows + 0.2 * keyRows + 200 * decodeRows + 50 * logitRows;
const decodes = [1, 2, 4, 8].flatMap((n) => [50, 300, 1000].map((keys) => decode(n, keys)));
const prompts = [48, 101, 150, 256].flatMap((rows) => [0, 1, 3].map((beside) => prompt(rows, beside)));

/** Steps with these ratios of the true time, by position, alone and beside others. */
function observed(alone: readonly number[], beside: readonly number[]): readonly MeasuredStep[] {
  const steps = (ratios: readonly number[], isBeside: boolean) => [
    ...decodes.map((shape, i) => ({ shape, us: decodeUs(shape) * ratios[i % ratios.length], beside: isBeside })),
    ...prompts.map((shape, i) => ({ shape, us: promptUs(shape) * ratios[i % ratios.length], beside: isBeside })),
  ];
  const all = [...steps(alone, false), ...(beside.length > 0 ? steps(beside, true) : [])];
  return all.map((step) => ({ ...step, observedUs: step.us }));
}

describe('measured steps', () => {
  it('have the times of their kind', () => {
    const cost = new MeasuredCost(measureSteps(observed([1], []), []), sizes);
    for (const shape of [decode(3, 700), decode(16, 20)])
      expect(cost.stepUs(shape) / decodeUs(shape)).toBeCloseTo(1, 3);
    for (const shape of [prompt(70, 2), prompt(512, 0)]) expect(cost.stepUs(shape) / promptUs(shape)).toBeCloseTo(1, 3);
    expect(cost.stageUs(decode(1, 50), { index: 0, stages: 2 })).toBe(Math.round(decodeUs(decode(1, 50)) / 2));
    const within = cost.rowsWithin(100_000, prompt(0, 2), 0);
    expect(cost.stepUs({ ...prompt(within, 2), logitRows: 3 })).toBeCloseTo(100_000, -3);
  });

  it('vary by the steps observed alone, or by those observed beside others', () => {
    const measured = measureSteps(observed([1], [1.2]), observed([0.9, 1, 1.1], [1.4, 1.6]));
    let beside = false;
    const cost = new MeasuredCost(measured, sizes, { seed: 7, beside: () => beside });
    const fitted = new MeasuredCost(measured, sizes);
    const ratios = () => Array.from({ length: 300 }, () => cost.stepUs(decode(2, 300)) / fitted.stepUs(decode(2, 300)));
    const alone = ratios();
    beside = true;
    const shared = ratios();
    expect(Math.max(...alone)).toBeLessThan(Math.min(...shared));
    const mean = (values: readonly number[]) => values.reduce((sum, value) => sum + value, 0) / values.length;
    expect(mean(shared) / mean(alone)).toBeCloseTo(1.5, 1);
  });

  it('are fitted to run times, not to the intervals that clients observed', () => {
    const late = observed([1], []).map((step, i) => (i % 5 === 0 ? { ...step, observedUs: 1 } : step));
    const cost = new MeasuredCost(measureSteps(late, []), sizes);
    expect(cost.stepUs(prompt(200, 0)) / promptUs(prompt(200, 0))).toBeCloseTo(1, 3);
  });

  it('include observed pauses, independent of their rows', () => {
    const paused = observed([1], []).map((step) => ({ ...step, observedUs: 2 * step.us + 30_000 }));
    const cost = new MeasuredCost(measureSteps(paused, []), sizes, { seed: 1, beside: () => false });
    for (const shape of [prompt(48, 0), prompt(256, 1)])
      expect((cost.stepUs(shape) - 30_000) / promptUs(shape)).toBeCloseTo(2, 2);
  });

  it('vary equally for equal seeds, and use steps observed alone when none was observed beside others', () => {
    const measured = measureSteps(observed([0.8, 1, 1.2], []), []);
    const draws = (seed: number, beside: boolean) => {
      const cost = new MeasuredCost(measured, sizes, { seed, beside: () => beside });
      return Array.from({ length: 100 }, () => cost.stepUs(prompt(101, 1)));
    };
    expect(draws(1, false)).toEqual(draws(1, false));
    expect(draws(1, false)).not.toEqual(draws(2, false));
    expect(new Set(draws(1, true))).toEqual(new Set(draws(1, false)));
  });
});

it('positions are drawn in stretches of consecutive ones, and all positions are drawn', () => {
  fc.assert(
    fc.property(fc.integer({ min: 1, max: 40 }), fc.nat(1000), (length, seed) => {
      const blocks = new MovingBlocks(length, seed, 0);
      const drawn = Array.from({ length: 64 * length }, () => blocks.next());
      const broken = drawn.slice(1).filter((value, i) => value !== (drawn[i] + 1) % length).length;
      expect(broken).toBeLessThanOrEqual(drawn.length / 16);
      for (let value = 0; value < length; value++) expect(drawn).toContain(value);
    }),
  );
});
