// Several gateways in a simulated cluster, each with a delayed view of what the others place.
import { expect, it } from 'vitest';
import type { LengthEvent } from '../../src/core/instance/length-instance.ts';
import { Float64Pool } from '../../src/core/scheduler/executor/float64-pool.ts';
import { LengthRequest } from '../../src/core/scheduler/executor/length-request.ts';
import type { ConductorHost } from '../../src/sim/engine/conductor-driver.ts';
import { Gateways } from '../../src/sim/engine/gateways.ts';
import type { SimulationConfig } from '../../src/sim/engine/simulation.ts';
import type { TraceRequest } from '../../src/trace/request.ts';
import { Prng } from '../../src/util/prng.ts';
import { cluster, config, requestOf, run } from './small-cluster.ts';

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

const several = { count: 2, balancing: 'round-robin', loadReportUs: 2_000 } as const;

/** Gateways of one instance that has received a request; `reports` holds the scheduled reports of its load. */
function gatewaysWithRequest() {
  const reports: (() => void)[] = [];
  const sent: LengthEvent[] = [];
  const host = {
    config: { ...config, instances: cluster({ mixed: 1 }), checking: false, gateways: several },
    instances: [{ capacityTokens: 1_000, components: {} }],
    queue: { nowUs: 0, at: (_: number, report: () => void) => reports.push(report), after: () => {} },
    clients: { attempt: () => {}, deliver: () => {} },
    delivery: { sendToInstance: (_: number, event: LengthEvent) => sent.push(event) },
    sloOf: () => undefined,
  };
  const gateways = new Gateways(host as unknown as ConductorHost);
  const request = new LengthRequest(requestOf(0, 0, 20, 4), config.blockTokens, new Float64Pool());
  gateways.deliver({ kind: 'submit', request });
  for (const event of sent) gateways.delivered(0, event);
  return { gateways, reports, id: request.id };
}

it.each([
  ['a cancel', (id: string) => ({ kind: 'cancel', id }) as const],
  [
    'a prompt that was received',
    (id: string) => ({ kind: 'peer', from: 0, message: { kind: 'received', id } }) as const,
  ],
  ['a release', (id: string) => ({ kind: 'peer', from: 0, message: { kind: 'release', id } }) as const],
])('reports the load after %s', (_, eventOf) => {
  const { gateways, reports, id } = gatewaysWithRequest();
  expect(reports.length).toBe(1);
  reports[0]();
  gateways.delivered(0, eventOf(id) as LengthEvent);
  gateways.delivered(0, eventOf(id) as LengthEvent);
  expect(reports.length).toBe(2);
});

it('reports the load after an instance has released a request', () => {
  const { gateways, reports, id } = gatewaysWithRequest();
  reports[0]();
  gateways.deliver({ kind: 'released', instance: 0, id, why: 'full' });
  expect(reports.length).toBe(2);
});

it('refuses learned predictors, which one gateway has', () => {
  const learned = {} as SimulationConfig['learned'];
  expect(() => run([], { checking: false, gateways: several, learned })).toThrow('Cannot simulate 2 gateways');
});
