// Limits of the steps of an instance with an engine.
import { expect, it } from 'vitest';
import { batchLimits, batchLimitsWith } from '../../../src/core/scheduler/executor/token-limits.ts';

it('a longer step raises the limits of steps of prefill alone to it, and a shorter one leaves them', () => {
  expect(batchLimitsWith(undefined)).toBe(batchLimits);
  const { stepUsPrefill, stepUsAlone } = batchLimits;
  expect(batchLimitsWith(20_000)).toMatchObject({ stepUsDecoding: 20_000, stepUsPrefill, stepUsAlone });
  expect(batchLimitsWith(200_000)).toMatchObject({ stepUsDecoding: 200_000, stepUsPrefill: 200_000, stepUsAlone });
});
