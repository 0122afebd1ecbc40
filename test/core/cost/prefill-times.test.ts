// What few tokens take says little of what many do: each prompt takes time besides its tokens.
import { expect, test } from 'vitest';
import { PrefillTimes } from '../../../src/core/cost/prefill-times.ts';

test('a first prompt of three tokens does not make one of 8,000 look a thousand times as long', () => {
  const [times] = PrefillTimes.of([0]);
  times?.observe(3, 12_000);
  expect(times?.prefillUs(8_000, 0)).toBeLessThan(12_000 * 250);
  expect(times?.prefillUs(3, 0)).toBeGreaterThan(12_000 / 4);
});

test('what lately took as long for each token is predicted so, a cached prefix aside', () => {
  const [times] = PrefillTimes.of([0]);
  for (let i = 0; i < 50; i++) times?.observe(1_000, 500_000);
  expect(times?.prefillUs(2_000, 1_000)).toBeCloseTo(500_000, -3);
  expect(times?.prefillUs(2_000, 0)).toBeCloseTo(985_000, -4);
});
