// Logarithm and exponential against the engine's own, which may differ in the last bits.
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { exactExp, exactLog } from '../../src/util/exact-math.ts';

describe('exact math', () => {
  it('has the logarithm to some units of the last place', () => {
    fc.assert(
      fc.property(fc.double({ min: 2 ** -60, max: 2 ** 60, noNaN: true }), (x) => {
        expect(Math.abs(exactLog(x) - Math.log(x))).toBeLessThanOrEqual(Math.max(1e-16, 4e-16 * Math.abs(Math.log(x))));
      }),
      { numRuns: 2000 },
    );
    expect([exactLog(1), exactLog(0.5), exactLog(2 ** 40)]).toEqual([0, -Math.LN2, 40 * Math.LN2]);
  });

  it('has the exponential to some units of the last place', () => {
    fc.assert(
      fc.property(fc.double({ min: -40, max: 40, noNaN: true }), (x) => {
        expect(Math.abs(exactExp(x) / Math.exp(x) - 1)).toBeLessThan(2e-14);
      }),
      { numRuns: 2000 },
    );
    expect(exactExp(0)).toBe(1);
  });
});
