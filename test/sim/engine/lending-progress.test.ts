// A simulated cluster that lends is stuck when requests wait and no step runs, however long it was idle before.
import { expect, it } from 'vitest';
import { defaultLendingTimes } from '../../../src/core/lending/times.ts';
import { LendingProgress } from '../../../src/sim/engine/lending/progress.ts';

it('is stuck two minutes after a request began to wait, not after the last step', () => {
  const progress = new LendingProgress(defaultLendingTimes);
  progress.stepEnded(5e6);
  expect(progress.isOver(6e6, 0, [])).toBe(true);
  // The next request arrives much later.
  expect(progress.isOver(200e6, 1, [])).toBe(false);
  expect(progress.isOver(319e6, 1, [])).toBe(false);
  expect(() => progress.isOver(321e6, 1, [])).toThrow('1 requests wait for memory: no step has run since 5000000 us');
});
