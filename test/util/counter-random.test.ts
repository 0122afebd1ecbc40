// Counter-based randomness against the published test vector of Philox4x32-10, and its spread.
import { expect, test } from 'vitest';
import { counterUniform } from '../../src/util/counter-random.ts';

test('is the first two words of Philox4x32-10', () => {
  // Random123's known answer for key 0 and counter 0 begins 6627e8d5 e169c58d.
  expect(counterUniform(0, 0, 0) * 2 ** 53).toBe((0x6627e8d5 >>> 5) * 2 ** 26 + (0xe169c58d >>> 6));
});

test('spreads evenly over [0, 1), and depends on each half of the seed', () => {
  const bins = new Array<number>(16).fill(0);
  for (let index = 0; index < 16_000; index++) {
    const value = counterUniform(7, 9, index);
    expect(value).toBeGreaterThanOrEqual(0);
    expect(value).toBeLessThan(1);
    bins[Math.floor(value * 16)]++;
  }
  for (const count of bins) expect(Math.abs(count - 1000)).toBeLessThan(150);
  expect(new Set([counterUniform(7, 9, 1), counterUniform(8, 9, 1), counterUniform(7, 8, 1)]).size).toBe(3);
});
