// Mean time between tokens of outputs that share steps with later prompts.
import { expect, it } from 'vitest';
import { meanTbtUs } from '../../../src/core/router/admission/tbt-beside.ts';
import { Prng } from '../../../src/util/prng.ts';

const decode = { stepUs: 10_000, sharedStepUs: 50_000, gaps: 400 };

it('is the decode step where no prompt is to be expected, and the shared step where prompts fill every one', () => {
  expect(meanTbtUs(decode, { perUs: 0, workUs: 0 })).toBe(10_000);
  expect(meanTbtUs({ ...decode, gaps: 10 }, { perUs: 1 / 1_000_000, workUs: 300_000 })).toBe(10_000);
  expect(meanTbtUs(decode, { perUs: 1 / 100_000, workUs: 300_000 })).toBe(50_000);
  expect(meanTbtUs({ ...decode, sharedStepUs: 0 }, { perUs: 1 / 100_000, workUs: 300_000 })).toBe(10_000);
});

it('is near the median of outputs beside random prompts', () => {
  const prng = new Prng(1, 1);
  const later = { perUs: 1 / 500_000, workUs: 200_000 };
  const actual = Array.from({ length: 401 }, () => {
    let [endUs, arrivalUs] = [decode.gaps * decode.stepUs, prng.exponentialUs(1 / later.perUs)];
    for (; arrivalUs < endUs; arrivalUs += prng.exponentialUs(1 / later.perUs)) endUs += later.workUs;
    return endUs / decode.gaps;
  }).sort((a, b) => a - b);
  expect(Math.abs(meanTbtUs(decode, later) / actual[200] - 1)).toBeLessThan(0.1);
  expect(actual[200]).toBeGreaterThan(1.4 * decode.stepUs);
});
