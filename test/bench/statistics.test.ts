// Percentiles by nearest rank.
import { expect, test } from 'vitest';
import { median, percentile, round, summary } from '../../src/bench/statistics.ts';

test('nearest rank: the smallest value that at least p percent do not exceed', () => {
  const hundred = Array.from({ length: 100 }, (_, i) => 100 - i);
  expect([1, 50, 95, 99, 100].map((p) => percentile(hundred, p))).toEqual([1, 50, 95, 99, 100]);
  expect(percentile([3, 1, 2], 34)).toBe(2);
  expect(percentile([5], 1)).toBe(5);
});

test('the median of an even count is the lower of the two in the middle', () => {
  expect(median([4, 1, 3, 2])).toBe(2);
  expect(median([9, 1, 5])).toBe(5);
});

test('an empty list has no percentiles', () => {
  expect(median([])).toBeUndefined();
  expect(summary([])).toEqual({ p50: undefined, p95: undefined, p99: undefined });
});

test('figures are rounded to hundredths', () => {
  expect(round(1.2349)).toBe(1.23);
  expect(round(undefined)).toBeUndefined();
  expect(summary([0.005, 0.111])).toEqual({ p50: 0.01, p95: 0.11, p99: 0.11 });
});

test('the values stay in their order', () => {
  const values = [3, 1, 2];
  median(values);
  expect(values).toEqual([3, 1, 2]);
});
