// Several gateways in a simulated cluster, each with a delayed view of what the others place.
import { expect, it } from 'vitest';
import type { SimulationConfig } from '../../src/sim/engine/simulation.ts';
import type { TraceRequest } from '../../src/trace/request.ts';
import { Prng } from '../../src/util/prng.ts';
import { cluster, requestOf, run } from './small-cluster.ts';

/** Twice as many prompts as two prefill instances compute. */
function overload(): readonly TraceRequest[] {
  const prng = new Prng(3, 1);
  let atUs = 0;
  return Array.from({ length: 400 }, (_, i) => {
    atUs += prng.exponentialUs(5_000);
    return { ...requestOf(i, atUs, prng.integer(20, 150), prng.integer(2, 20)), session: i % 40 };
  });
}

const slo = { ttft: { us: 300_000 }, tbt: { us: 60_000 } };
const handOff = { layerWise: true, receiveTokens: 10_000, rechecksAdmission: true };
const base = {
  instances: cluster({ prefill: 2, decode: 2 }, { blocks: 400, handOff }),
  admission: { kind: 'early', slo, decodeUs: 100_000 } as const,
  queueMax: 10_000,
  checking: false,
};

it('keeps at most 5 % of served requests late, and serves as much, with one gateway or three', () => {
  const trace = overload();
  const served = (gateways?: SimulationConfig['gateways']) => {
    const { outcome, unfinished } = run(trace, { ...base, gateways });
    expect([outcome.requests, unfinished]).toEqual([trace.length, 0]);
    const all = outcome.requests - outcome.refusedRequests;
    return { all, late: 1 - outcome.withinSlo / all };
  };
  const one = served();
  const three = served({ count: 3, balancing: 'round-robin', loadReportUs: 2_000 });
  const bySession = served({ count: 3, balancing: 'session', loadReportUs: 2_000 });
  const unreported = served({ count: 3, balancing: 'round-robin', loadReportUs: 1e9 });
  expect(one.all).toBeLessThan(0.8 * trace.length);
  for (const { all, late } of [one, three, bySession]) {
    expect(late).toBeLessThan(0.05);
    expect(all).toBeGreaterThan(0.85 * one.all);
  }
  expect(unreported.late).toBeGreaterThan(0.1);
});
