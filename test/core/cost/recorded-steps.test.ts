// Replay of recorded step times.
import { expect, it } from 'vitest';
import { LinearCost } from '../../../src/core/cost/linear-cost.ts';
import { type RecordedStep, RecordedSteps } from '../../../src/core/cost/recorded-steps.ts';

const model = new LinearCost(
  { stepUs: 100, rowUs: 1, keyUs: 0, decodeRowUs: 0, logitRowUs: 0 },
  { layers: 1, kvBytesPerToken: 1, kvCapacityTokens: 1, activationBytesPerToken: 1 },
);
const shape = (rows: number) => ({ rows, keyRows: rows, decodeRows: 0, decodeKeys: 0, logitRows: 0 });
const step = (startedUs: number, us: number, rows: number): RecordedStep => ({ startedUs, us, shape: shape(rows) });

let nowUs = 0;
function replay(steps: readonly RecordedStep[]): { at(us: number, rows: number): number; matched(): number } {
  const recorded = new RecordedSteps(steps, model, () => nowUs);
  const at = (us: number, rows: number): number => {
    nowUs = us;
    return recorded.stepUs(shape(rows));
  };
  return { at, matched: () => recorded.matched };
}

it('steps end when the recorded ones did, started a little earlier or later, and take the time of the model after the record', () => {
  const { at, matched } = replay([step(1000, 500.4, 10), step(1600, 500, 10), step(2200, 500, 10)]);
  expect(at(900, 10)).toBe(600);
  expect(at(1700, 10)).toBe(400);
  expect(matched()).toBe(2);
  expect(at(90_000, 50)).toBe(150);
});

it('steps catch up by at most half of their time, and each recorded step matches once: another one has no longer pause', () => {
  const { at, matched } = replay([step(0, 500, 10), step(500, 500, 10)]);
  expect(at(450, 10)).toBe(250);
  expect(at(700, 10)).toBe(300);
  expect(at(990, 10)).toBe(120);
  expect(matched()).toBe(2);
});

it('runs that diverge converge again, with the time of the model scaled by the recorded deviation meanwhile', () => {
  const { at, matched } = replay([step(0, 400, 100), step(400, 400, 7), step(3000, 400, 100)]);
  // 400 recorded for a predicted 200; here half as many rows.
  expect(at(0, 50)).toBe(300);
  expect(at(3050, 100)).toBe(350);
  expect(matched()).toBe(1);
});

it('a recorded pause is added independent of the rows', () => {
  expect(replay([step(0, 5100, 0)]).at(0, 900)).toBe(6000);
});
