// When an instance changes sides: only for a gain, only when it lasts, and not too often.
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { poolToGrow, RoleSwitcher, type RoleSwitchLimits } from '../../../src/core/router/roles/role-switch.ts';

const limits: RoleSwitchLimits = { sustainUs: 10, dwellUs: 100, gain: 1.15, loadMin: 0.5, intervalUs: 1, windowUs: 1 };
const pool = (instances: number, demand: number) => ({ instances, demand });

describe('the side that an instance is to come over to', () => {
  it('is the fuller one, where that empties it enough and leaves somebody on the other', () => {
    expect(poolToGrow(pool(4, 4), pool(4, 1), limits)).toBe('prefill');
    expect(poolToGrow(pool(4, 1), pool(4, 4), limits)).toBe('decode');
    expect(poolToGrow(pool(4, 4), pool(4, 3.9), limits)).toBeUndefined();
    expect(poolToGrow(pool(4, 1.9), pool(4, 0), limits)).toBeUndefined();
    expect(poolToGrow(pool(7, 9), pool(1, 0.1), limits)).toBeUndefined();
  });

  it('never is one that makes the fullest pool fuller, nor one that would be undone at once', () => {
    const demand = fc.double({ min: 0, max: 12, noNaN: true });
    const count = fc.integer({ min: 1, max: 12 });
    fc.assert(
      fc.property(count, demand, count, demand, (p, prefill, d, decode) => {
        const role = poolToGrow(pool(p, prefill), pool(d, decode), limits);
        if (role === undefined) return;
        const more = role === 'prefill' ? 1 : -1;
        const before = Math.max(prefill / p, decode / d);
        expect(Math.max(prefill / (p + more), decode / (d - more))).toBeLessThan(before);
        expect(Math.min(p + more, d - more)).toBeGreaterThanOrEqual(1);
        expect(poolToGrow(pool(p + more, prefill), pool(d - more, decode), limits)).not.toBe(
          role === 'prefill' ? 'decode' : 'prefill',
        );
      }),
    );
  });

  it('is said when the wish has held long enough, and then not again for a while', () => {
    const switcher = new RoleSwitcher(limits);
    const look = (nowUs: number, prefill: number) => switcher.decide(nowUs, pool(4, prefill), pool(4, 1));
    expect([look(0, 4), look(9, 4), look(10, 4)]).toEqual([undefined, undefined, 'prefill']);
    expect([look(60, 8), look(109, 8), look(110, 8)]).toEqual([undefined, undefined, 'prefill']);
    // A moment without it starts the wait anew.
    expect([look(300, 1), look(301, 4), look(310, 4), look(311, 4)]).toEqual([
      undefined,
      undefined,
      undefined,
      'prefill',
    ]);
  });
});
