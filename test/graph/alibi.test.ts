// ALiBi slopes against the published sequences.
import { expect, test } from 'vitest';
import { alibiSlopes } from '../../src/graph/alibi.ts';

test('a power of two heads: a geometric sequence that ends at 2^-8', () => {
  expect([...alibiSlopes(8)]).toEqual([1, 2, 3, 4, 5, 6, 7, 8].map((i) => 2 ** -i));
  expect([...alibiSlopes(4)]).toEqual([2 ** -2, 2 ** -4, 2 ** -6, 2 ** -8]);
});

test('other counts append every second slope of the next power', () => {
  const more = [0.5, 1.5, 2.5, 3.5].map((i) => Math.fround(2 ** -i));
  expect([...alibiSlopes(12)]).toEqual([...alibiSlopes(8), ...more]);
});
