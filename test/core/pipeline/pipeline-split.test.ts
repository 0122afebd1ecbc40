// The split of layers between members of a group.
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { splitLayers } from '../../../src/core/pipeline/split.ts';

test('members of about equal speed run equally many layers', () => {
  expect(splitLayers(30, [100, 100, 100])).toBeUndefined();
  expect(splitLayers(30, [100, 105, 101])).toBeUndefined();
});

test('a member that is twice as fast runs twice as many layers', () => {
  expect(splitLayers(30, [100, 200])).toEqual([20, 10]);
  expect(splitLayers(6, [200, 100])).toEqual([2, 4]);
  expect(splitLayers(7, [200, 100, 100])).toEqual([1, 3, 3]);
  expect(splitLayers(6, [100, 1e6])).toEqual([5, 1]);
});

/** All splits of the layers, with at least one for each member. */
function splits(layers: number, members: number): number[][] {
  if (members === 1) return [[layers]];
  return Array.from({ length: layers - members + 1 }, (_, i) => i + 1).flatMap((own) =>
    splits(layers - own, members - 1).map((rest) => [own, ...rest]),
  );
}

test('no other split ends its slowest member earlier', () => {
  const step = 2 ** (1 / 6);
  fc.assert(
    fc.property(
      fc.integer({ min: 4, max: 12 }),
      fc.array(fc.nat(12), { minLength: 2, maxLength: 4 }),
      (layers, speeds) => {
        const us = speeds.map((each) => 10 * step ** each);
        const last = (split: readonly number[]) => Math.max(...split.map((own, i) => own * (us[i] ?? 0)));
        const split = splitLayers(layers, us);
        if (split === undefined) return;
        expect(split.reduce((sum, own) => sum + own, 0)).toBe(layers);
        expect(last(split)).toBeCloseTo(Math.min(...splits(layers, speeds.length).map(last)), 6);
      },
    ),
    { numRuns: 200 },
  );
});
