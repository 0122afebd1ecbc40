// Steps that take as long as they took elsewhere.
import { expect, it } from 'vitest';
import { LinearCost } from '../../../src/policy/cost/linear-cost.ts';
import { RecordedSteps } from '../../../src/policy/cost/recorded-steps.ts';

const model = new LinearCost(
  { stepUs: 100, rowUs: 1, keyUs: 0, decodeRowUs: 0, logitRowUs: 0 },
  { layers: 1, kvBytesPerToken: 1, kvCapacityTokens: 1, activationBytesPerToken: 1 },
);
const shape = (rows: number) => ({ rows, keyRows: rows, decodeRows: 0, decodeKeys: 0, logitRows: 0 });

it('take the recorded time, as much more or less where rows differ, and what the model says behind the record', () => {
  const steps = new RecordedSteps(
    [
      { shape: shape(10), us: 500.4 },
      { shape: shape(100), us: 400 },
    ],
    model,
  );
  expect(steps.stepUs(shape(10))).toBe(500);
  expect(steps.stepUs(shape(0))).toBe(200);
  expect(steps.stepUs(shape(50))).toBe(150);
  expect(steps.matched).toBe(1);
});

it('let what held a step up add, whatever the rows', () => {
  const steps = new RecordedSteps([{ shape: shape(0), us: 5100 }], model);
  expect(steps.stepUs(shape(900))).toBe(6000);
});
