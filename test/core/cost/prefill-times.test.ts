// Prefill times with a fixed cost per prompt: the time of a short prompt does not determine that of a long one.
import { expect, test } from 'vitest';
import { PrefillTimes } from '../../../src/core/cost/prefill-times.ts';

test('after a first prompt of 3 tokens, the prediction for 8,000 is not a thousand times as long', () => {
  const [times] = PrefillTimes.of([0]);
  times?.observe(3, 12_000);
  expect(times?.prefillUs(8_000, 0)).toBeLessThan(12_000 * 250);
  expect(times?.prefillUs(3, 0)).toBeGreaterThan(12_000 / 4);
});

test('predictions follow the recent time per computed token, without the cached prefix', () => {
  const [times] = PrefillTimes.of([0]);
  for (let i = 0; i < 50; i++) times?.observe(1_000, 500_000);
  expect(times?.prefillUs(2_000, 1_000)).toBeCloseTo(500_000, -3);
  expect(times?.prefillUs(2_000, 0)).toBeCloseTo(985_000, -4);
});
