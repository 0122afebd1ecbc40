// The attention worker of a sequence: balance by tokens held, and the longest prefix within limits.
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { chooseWorker, prefixWeight } from '../../../src/core/attention-workers/choose-worker.ts';
import type { PlacementOption } from '../../../src/core/scheduler/batching/sequence-placement.ts';

function options(...spec: readonly (readonly [held: number, cached: number, fits?: boolean])[]): PlacementOption[] {
  return spec.map(([heldTokens, cachedTokens, fits = true], worker) => ({ worker, heldTokens, cachedTokens, fits }));
}

const anyOptions = fc
  .array(fc.tuple(fc.integer({ min: 0, max: 500 }), fc.integer({ min: 0, max: 100 }), fc.boolean()), {
    minLength: 1,
    maxLength: 8,
  })
  .map((spec) => options(...spec));

describe('chooseWorker', () => {
  test('takes the worker with the fewest tokens, the lowest number among equals', () => {
    expect(chooseWorker(options([100, 0], [50, 0], [50, 0]))).toBe(1);
    expect(chooseWorker([])).toBeUndefined();
  });

  test('takes the worker with the longest prefix, unless that one holds too many tokens more', () => {
    expect(chooseWorker(options([100, 64], [50, 0], [0, 0]))).toBe(0);
    expect(chooseWorker(options([64 * prefixWeight + 1, 64], [0, 0]))).toBe(1);
  });

  test('takes a full worker only if all are full', () => {
    expect(chooseWorker(options([0, 0, false], [900, 0]))).toBe(1);
    expect(chooseWorker(options([10, 0, false], [5, 0, false]))).toBe(1);
  });

  test('does not depend on the order of options, and never takes one that is worse in all respects', () => {
    fc.assert(
      fc.property(anyOptions, (all) => {
        const chosen = chooseWorker(all);
        expect(chooseWorker([...all].reverse())).toBe(chosen);
        const best = all.find(({ worker }) => worker === chosen);
        for (const other of all)
          expect(
            best !== undefined &&
              (other.fits || !best.fits) &&
              other.heldTokens < best.heldTokens &&
              other.cachedTokens >= best.cachedTokens,
          ).toBe(false);
      }),
    );
  });

  test('keeps the tokens of equal sequences without prefixes balanced', () => {
    fc.assert(
      fc.property(
        fc.integer({ min: 1, max: 6 }),
        fc.array(fc.integer({ min: 1, max: 100 }), { maxLength: 40 }),
        (workers, lengths) => {
          const held = Array.from({ length: workers }, () => 0);
          for (const length of lengths) {
            const chosen = chooseWorker(options(...held.map((tokens) => [tokens, 0] as const)));
            held[chosen ?? 0] += length;
          }
          expect(Math.max(...held) - Math.min(...held)).toBeLessThanOrEqual(Math.max(0, ...lengths));
        },
      ),
    );
  });
});
