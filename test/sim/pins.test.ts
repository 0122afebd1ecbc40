// Pinned prefixes in simulated clusters.
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { TraceRequest } from '../../src/trace/request.ts';
import { cluster, requestOf, run, traces } from './small-cluster.ts';

function pinOf(index: number, arrivalUs: number, inputTokens: number, family: number, pinUs: number): TraceRequest {
  return { ...requestOf(index, arrivalUs, inputTokens, 1, family), pinUs };
}

describe('pins in a simulation', () => {
  it('keep a prefix that other requests would evict', () => {
    const others = Array.from({ length: 12 }, (_, i) => requestOf(10 + i, 200_000 * (i + 1), 150, 2));
    const again = requestOf(30, 4_000_000, 100, 2, 0);
    const first = requestOf(0, 0, 100, 1, 0);
    const instances = cluster({ mixed: 1 }, { pinShare: 0.4 });
    const pinned = run([pinOf(0, 0, 100, 0, 10_000_000), ...others, again], { instances }).outcome;
    expect(pinned.pins).toEqual({ pinned: 1, refused: 0, unpinned: 1, hitTokens: 80 });
    const evicted = run([first, ...others, again], { instances }).outcome;
    expect([pinned.cachedTokens, evicted.cachedTokens]).toEqual([80, 0]);
    const passed = run([pinOf(0, 0, 100, 0, 50_000), ...others, again], { instances }).outcome;
    expect(passed.pins).toMatchObject({ pinned: 1, unpinned: 1, hitTokens: 0 });
  });

  it('end every request once, and have the same hash with equal steps run one by one', () => {
    let hits = 0;
    let refused = 0;
    fc.assert(
      fc.property(traces, fc.integer({ min: 2, max: 5 }), fc.integer({ min: 1, max: 300_000 }), (all, every, pinUs) => {
        const trace = all.map((request) => (request.index % every === 0 ? { ...request, pinUs } : request));
        const requests = trace.filter((request) => !('pinUs' in request)).length;
        const outcomes = [true, false].map((coalesce) => {
          const { outcome, unfinished } = run(trace, {
            instances: cluster({ mixed: 2 }, { coalesce, pinShare: 0.5 }),
          });
          expect([outcome.requests, unfinished]).toEqual([requests, 0]);
          expect(outcome.pins.unpinned).toBeLessThanOrEqual(outcome.pins.pinned);
          return outcome;
        });
        expect(outcomes[0]?.stateHash).toBe(outcomes[1]?.stateHash);
        hits += outcomes[0]?.pins.hitTokens ?? 0;
        refused += outcomes[0]?.pins.refused ?? 0;
      }),
      { numRuns: 40 },
    );
    expect(hits).toBeGreaterThan(0);
    expect(refused).toBeGreaterThan(0);
  });
});
