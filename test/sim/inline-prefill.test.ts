// Short prompts with prefill on their decode instance, in simulated clusters.
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { cluster, config, cost, requestOf, run, traces } from './small-cluster.ts';

const instances = cluster({ prefill: 2, decode: 2 });
const slo = { ttft: { us: 60_000 }, tbt: { us: 9_000 } };

describe('inline prefill', () => {
  it('takes one step on the decode instance, without a hand-off', () => {
    const admission = { ...config.admission, inlineTokens: 64 };
    const { outcome } = run([requestOf(0, 5_000, 40, 11)], { instances, admission });
    const rows = 40;
    const prefillUs = cost.stepUs({ rows, keyRows: 820, decodeRows: 0, decodeKeys: 0, logitRows: 1 });
    expect([outcome.inlinePrefills, outcome.bytesMoved.handoff]).toEqual([1, 0]);
    expect(outcome.ttftUs.max).toBe(prefillUs);
    const longer = run([requestOf(0, 5_000, 65, 11)], { instances, admission }).outcome;
    expect([longer.inlinePrefills, longer.bytesMoved.handoff]).toEqual([0, 65 * cost.kvBytesPerToken]);
  });

  it('counts cached tokens there, so that a conversation stays where its new tokens are few', () => {
    const admission = { ...config.admission, inlineTokens: 64 };
    const trace = [requestOf(0, 0, 64, 5, 0), requestOf(1, 1_000_000, 100, 5, 0)];
    const { outcome } = run(trace, { instances, admission });
    expect([outcome.inlinePrefills, outcome.cachedTokens]).toEqual([2, 48]);
  });

  it('keeps the strictest TBT SLO of the requests that decode there', () => {
    const [one] = cluster({ decode: 1 });
    const pair = [...cluster({ prefill: 1 }), ...(one === undefined ? [] : [one])];
    const trace = [requestOf(0, 0, 100, 200), requestOf(1, 200_000, 60, 5)];
    const stepUs = cost.stepUs({ rows: 61, keyRows: 1970, decodeRows: 1, decodeKeys: 140, logitRows: 2 });
    const inlined = (tbtUs: number) => {
      const admission = { ...config.admission, inlineTokens: 64, slo: { ttft: { us: 1e9 }, tbt: { us: tbtUs } } };
      return run(trace, { instances: pair, admission }).outcome.inlinePrefills;
    };
    expect([inlined(stepUs * 1.2), inlined(stepUs * 0.9)]).toEqual([1, 0]);
  });

  it('ends every request once, frees all memory, and has the same hash with equal steps run one by one', () => {
    let inlined = 0;
    fc.assert(
      fc.property(traces, fc.boolean(), fc.constantFrom(16, 64, 128), (trace, late, inlineTokens) => {
        const admission = { ...config.admission, slo: late ? slo : undefined, inlineTokens };
        const outcomes = [true, false].map((coalesce) => {
          const { outcome, unfinished } = run(trace, {
            instances: cluster({ prefill: 2, decode: 2 }, { coalesce }),
            admission,
          });
          expect([outcome.requests, unfinished]).toEqual([trace.length, 0]);
          return outcome;
        });
        expect(outcomes[0]?.stateHash).toBe(outcomes[1]?.stateHash);
        inlined += outcomes[0]?.inlinePrefills ?? 0;
      }),
      { numRuns: 36 },
    );
    expect(inlined).toBeGreaterThan(20);
  });
});
