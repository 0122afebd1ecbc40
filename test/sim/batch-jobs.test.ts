// Batch jobs in simulated clusters: their throughput, and their cost for interactive requests.
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { TraceRequest } from '../../src/trace/request.ts';
import { cluster, cost, machine, requestOf, run, traces } from './small-cluster.ts';

const timeShare = 0.01;
const background = { memoryShare: 0.5, stepUs: 10_000, timeShare };
const limits = { ...machine.limits, background };
const split = (coalesce = true) => cluster({ prefill: 2, decode: 1 }, { coalesce, limits });

function jobOf(index: number, arrivalUs: number, inputTokens: number, outputTokens: number): TraceRequest {
  return { ...requestOf(index, arrivalUs, inputTokens, outputTokens), blocks: new Int32Array(0), batch: true };
}

const prefillUs = (rows: number) =>
  cost.stepUs({ rows, keyRows: (rows * (rows + 1)) / 2, decodeRows: 0, decodeKeys: 0, logitRows: 1 });

describe('batch jobs', () => {
  it('run on prefill instances, without a hand-off', () => {
    const { outcome } = run([jobOf(0, 0, 40, 20), jobOf(1, 0, 40, 20)], { instances: split() });
    expect(outcome.batch).toMatchObject({ requests: 2, completed: 2, outputTokens: 40 });
    expect([outcome.requests, outcome.bytesMoved.handoff]).toEqual([0, 0]);
  });

  it('are held by the conductor while other jobs reserve their share of memory', () => {
    // Half of 24 blocks on each of two instances: 192 tokens; a job needs 119.
    const jobs = Array.from({ length: 6 }, (_, i) => jobOf(i, 0, 100, 20));
    const { outcome, unfinished } = run(jobs, { instances: split() });
    expect([outcome.batch.completed, unfinished]).toEqual([6, 0]);
    // Two at a time: three times the duration of the first two.
    expect(outcome.batch.completionUs.max).toBeGreaterThan(2.9 * outcome.batch.completionUs.percentile(0.1));
    expect(run([jobOf(0, 0, 190, 20)], { instances: split() }).outcome.batch).toMatchObject({
      requests: 1,
      completed: 0,
    });
  });

  it('abort their running step for an interactive request', () => {
    const one = cluster({ prefill: 1, decode: 1 }, { limits });
    const alone = run([requestOf(1, 30_000, 100, 5)], { instances: one }).outcome;
    for (const arrivalUs of [3_000, 30_000, 31_234]) {
      const trace = [jobOf(0, 0, 100, 80), requestOf(1, arrivalUs, 100, 5)];
      const { outcome } = run(trace, { instances: one });
      expect(outcome.batch.completed).toBe(1);
      expect(outcome.ttftUs.max).toBeLessThanOrEqual(alone.ttftUs.max + timeShare * prefillUs(100) + 1);
    }
  });

  it('lose their memory at once to an interactive request', () => {
    const one = cluster({ prefill: 1, decode: 1 }, { limits });
    const { outcome } = run([jobOf(0, 0, 100, 60), requestOf(1, 60_000, 370, 5)], { instances: one });
    expect([outcome.completedRequests, outcome.batch.completed, outcome.preemptions]).toEqual([1, 1, 1]);
    const alone = run([requestOf(1, 60_000, 370, 5)], { instances: one }).outcome;
    expect(outcome.ttftUs.max).toBeLessThanOrEqual(alone.ttftUs.max * (1 + timeShare) + 1);
  });

  it('end once each, with or without other requests, and have the same hash with equal steps run one by one', () => {
    let jobs = 0;
    let preempted = 0;
    fc.assert(
      fc.property(traces, fc.integer({ min: 1, max: 4 }), fc.boolean(), (requests, every, disaggregated) => {
        const trace = requests.map((request) => (request.index % every === 0 ? { ...request, batch: true } : request));
        const outcomes = [true, false].map((coalesce) => {
          const instances = disaggregated ? split(coalesce) : cluster({ mixed: 2 }, { coalesce, limits });
          const { outcome, unfinished } = run(trace, { instances });
          expect([outcome.requests + outcome.batch.requests, unfinished]).toEqual([trace.length, 0]);
          expect(outcome.completedRequests).toBe(outcome.requests);
          return outcome;
        });
        expect(outcomes[0]?.stateHash).toBe(outcomes[1]?.stateHash);
        jobs += outcomes[0]?.batch.completed ?? 0;
        preempted += outcomes[0]?.preemptions ?? 0;
      }),
      { numRuns: 40 },
    );
    expect(jobs).toBeGreaterThan(100);
    expect(preempted).toBeGreaterThan(0);
  });
});
