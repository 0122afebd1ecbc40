// A watchdog over simulated time: which threads hang, and which only take long.
import { expect, test } from 'vitest';
import { isOverdue, StepWatchdog, type WorkProgress } from '../../../src/core/membership/step-watchdog.ts';

const second = 1_000_000;
const config = { floorUs: 10 * second, multiple: 20, pollUs: second };

/** Observes once per interval while the thread shows this progress. Returns the seconds until it hangs. */
function hangsAfter(progress: Partial<WorkProgress>, advance = 0, observeEveryUs = second): number | undefined {
  const watchdog = new StepWatchdog(config);
  const shown = { count: 7, isBusy: true, isWaiting: false, predictedUs: 0, ...progress };
  for (let nowUs = 0; nowUs < 1000 * second; nowUs += observeEveryUs) {
    const count = advance === 0 ? shown.count : Math.floor(nowUs / advance);
    if (watchdog.observe(nowUs, { ...shown, count }) !== undefined) return nowUs / second;
  }
  return undefined;
}

test.each([
  ['work without a prediction hangs after the floor', { predictedUs: 0 }, 10],
  ['a short step hangs after the floor', { predictedUs: 100_000 }, 10],
  ['a long prompt chunk hangs after a multiple of its prediction', { predictedUs: 3 * second }, 60],
  ['a thread that waits for messages never hangs', { isBusy: false }, undefined],
  ['a step that waits for activations does not hang', { isWaiting: true }, undefined],
] as const)('%s', (_, progress, seconds) => {
  expect(hangsAfter(progress)).toBe(seconds);
});

test('a thread that advances within the floor does not hang, however long it works', () => {
  expect(hangsAfter({}, 9 * second)).toBeUndefined();
  expect(hangsAfter({}, 12 * second)).toBe(10);
});

test('the pause of a suspended process counts for two intervals', () => {
  expect(hangsAfter({}, 0, 100 * second)).toBe(500);
});

test('a step is overdue after 5 s and five times its prediction', () => {
  const step = (stalledS: number, predictedS: number) =>
    isOverdue({ count: 1, stalledUs: stalledS * second, predictedUs: predictedS * second });
  expect([step(4.9, 0.1), step(5, 0.1), step(9, 2), step(10, 2)]).toEqual([false, true, false, true]);
  // Figures of a broken sender.
  expect([step(Number.NaN, 1), step(9, Number.NaN), step(-9, 0)]).toEqual([false, false, false]);
});

test('the running step has the count, the prediction and the time without progress', () => {
  const watchdog = new StepWatchdog(config);
  expect(watchdog.step).toEqual({ count: 0, predictedUs: 0, stalledUs: 0 });
  const progress = { count: 3, isBusy: true, isWaiting: false, predictedUs: 20 };
  for (const nowUs of [0, second, 2 * second]) watchdog.observe(nowUs, progress);
  expect(watchdog.step).toEqual({ count: 3, predictedUs: 20, stalledUs: 2 * second });
  watchdog.observe(3 * second, { ...progress, count: 4 });
  expect(watchdog.step).toEqual({ count: 4, predictedUs: 20, stalledUs: 0 });
});

test('the stall has the time, the limit and the prediction', () => {
  const watchdog = new StepWatchdog(config);
  const stuck = { count: 1, isBusy: true, isWaiting: false, predictedUs: second };
  for (let s = 0; s < 20; s++) expect(watchdog.observe(s * second, stuck)).toBeUndefined();
  expect(watchdog.observe(20 * second, stuck)).toEqual({
    ...{ stalledUs: 20 * second, limitUs: 20 * second, predictedUs: second },
  });
});
