// Admission in simulated clusters: outcomes of accepted and of refused requests.
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type AdmissionKind, admissionKinds } from '../../src/core/router/admission/admission-policy.ts';
import type { SloClass } from '../../src/core/router/admission/slo.ts';
import { cluster, requestOf, run, traces } from './small-cluster.ts';

const handOff = { layerWise: true, receiveTokens: 10_000, rechecksAdmission: false };

describe('a cluster with admission by SLO', () => {
  const slo = { ttft: { us: 60_000 }, tbt: { us: 9_000 } };
  const admitting = (kind: AdmissionKind, coalesce = true) => ({
    instances: cluster(
      { prefill: 2, decode: 1 },
      { coalesce, handOff: { ...handOff, rechecksAdmission: kind !== 'none' } },
    ),
    admission: { kind, slo, decodeUs: 100_000 },
  });

  it('refuses before or after prefill, and has the same hash with equal steps run one by one', () => {
    const kinds = fc.constantFrom(...admissionKinds);
    const refused = { none: 0, stage: 0, early: 0, predictive: 0 };
    let wasted = 0;
    fc.assert(
      fc.property(traces, kinds, (trace, kind) => {
        const { outcome, unfinished } = run(trace, { ...admitting(kind), queueMax: 1_000 });
        expect([outcome.requests, unfinished]).toEqual([trace.length, 0]);
        const single = run(trace, { ...admitting(kind, false), queueMax: 1_000 }).outcome;
        expect([single.stateHash, single.endUs]).toEqual([outcome.stateHash, outcome.endUs]);
        refused[kind] += outcome.refused.atPrefill + outcome.refused.atDecode;
        expect(outcome.wastedPrefillTokens > 0).toBe(outcome.refused.atDecode > 0);
        wasted += outcome.wastedPrefillTokens;
      }),
      { numRuns: 40 },
    );
    expect(refused.none).toBe(0);
    for (const kind of ['stage', 'early', 'predictive'] as const) expect(refused[kind]).toBeGreaterThan(0);
    expect(wasted).toBeGreaterThan(0);
  });

  it('admits each request by its SLO class', () => {
    const classes = new Map<string, SloClass>([
      ['chat', { ttft: { us: 60_000 }, tbt: { us: 90_000 } }],
      ['batch', { completion: { us: 3_000_000 } }],
    ]);
    const burst = Array.from({ length: 40 }, (_, i) => ({
      ...requestOf(i, i * 2_000, 100, 20),
      sloClass: i % 2 === 0 ? 'chat' : 'batch',
    }));
    const admission = { kind: 'early', slo: undefined, decodeUs: 100_000, classes } as const;
    const instances = cluster(
      { prefill: 2, decode: 1 },
      { blocks: 400, handOff: { ...handOff, rechecksAdmission: true } },
    );
    const { outcome } = run(burst, { instances, admission, queueMax: 1_000 });
    const [chat, batch] = ['chat', 'batch'].map((name) => outcome.classes.of(name));
    expect([chat?.requests, batch?.requests]).toEqual([20, 20]);
    // Both classes share the queues: requests with a short TTFT SLO are refused, the others are not.
    expect(chat?.refused).toBeGreaterThan(5);
    expect(batch?.refused).toBe(0);
    expect(outcome.withinSlo).toBe(Number(chat?.withinSlo) + Number(batch?.withinSlo));
    expect(batch?.late).toEqual({ ttft: 0, tbt: 0, completion: 0 });
    const unknown = [{ ...requestOf(0, 0, 10, 2), sloClass: 'none' }];
    expect(() => run(unknown, { admission })).toThrow('Cannot judge request 0: its class none is none of');
  });

  it('lets refused requests return, ends each once, and has the same hash with equal steps run one by one', () => {
    let returns = 0;
    let served = 0;
    fc.assert(
      fc.property(traces, fc.constantFrom(...admissionKinds), fc.boolean(), (trace, kind, byRefusal) => {
        const retries = { returnsMax: 3, afterUs: byRefusal ? undefined : 40_000, seed: 5 };
        const run2 = (coalesce: boolean) => run(trace, { ...admitting(kind, coalesce), queueMax: 8, retries });
        const { outcome, unfinished } = run2(true);
        expect([outcome.requests, unfinished]).toEqual([trace.length, 0]);
        expect(outcome.completedRequests + outcome.refusedRequests).toBe(trace.length);
        expect(run2(false).outcome.stateHash).toBe(outcome.stateHash);
        const once = run(trace, { ...admitting(kind), queueMax: 8 }).outcome;
        expect(outcome.retries?.returns).toBeLessThanOrEqual(3 * trace.length);
        if (once.refusedRequests === 0) expect(outcome.stateHash).toBe(once.stateHash);
        returns += outcome.retries?.returns ?? 0;
        served += outcome.retries?.completed ?? 0;
      }),
      { numRuns: 24 },
    );
    expect(returns).toBeGreaterThanOrEqual(served);
    expect(served).toBeGreaterThan(10);
  });

  it('accepts every request of an empty cluster, and predicts its time', () => {
    const trace = Array.from({ length: 5 }, (_, i) => requestOf(i, i * 1_000_000, 100, 5));
    const { outcome } = run(trace, admitting('predictive'));
    expect([outcome.completedRequests, outcome.withinSlo]).toEqual([5, 5]);
    // Rounding of the last byte, and its latency.
    expect(outcome.predictedTtft.figures.errorMsP90).toBeLessThan(0.05);
    expect(outcome.predictedTbt.figures.errorMsP90).toBeLessThan(0.1);
  });
});
