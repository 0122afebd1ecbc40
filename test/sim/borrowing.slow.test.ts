// Instances that lend memory to one another while they serve: with every check after every event, and the same hash with equal steps run one by one.
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { defaultLendingTimes } from '../../src/core/lending/times.ts';
import { type InstanceSpec, Simulation, type SimulationConfig } from '../../src/sim/engine/simulation.ts';
import { parseFault } from '../../src/sim/faults/fault-plan.ts';
import type { TraceRequest } from '../../src/trace/request.ts';
import { blockTokens, machine, nic } from './small-cluster.ts';

const poolBlocks = 40;

const lentShareMax = 0.75;
const times = { ...defaultLendingTimes, remoteCacheUs: 1_000_000 };
const lendable = poolBlocks * lentShareMax;

function instances(count: number, changes: Partial<InstanceSpec['machine']> = {}): readonly InstanceSpec[] {
  return Array.from({ length: count }, (_, instance) => ({
    role: 'mixed',
    nic,
    machine: {
      ...machine,
      blocks: poolBlocks,
      borrowing: {
        instance,
        policy: {
          lentShareMax,
          lowWaterBlocks: 2,
          highWaterBlocks: 8,
          recallBlocks: 1,
          lookAheadUs: 100_000,
          loanBlocksMin: 2,
          remoteAttentionPermilleMax: 300,
        },
        times,
        stagingBlocks: 8,
        borrowableBlocks: lendable * (count - 1),
        rangeBlocks: 2,
      },
      ...changes,
    },
  }));
}

const config: SimulationConfig = {
  instances: instances(3),
  linkBytesPerSecond: undefined,
  blockTokens,
  queueMax: 100,
  admission: { kind: 'none', slo: undefined, decodeUs: 1e6 },
  placement: { kind: 'round-robin', seed: [1, 2], balancingThreshold: 1.5 },
  checking: true,
  lending: {
    times,
    settles: true,
    settleBlocksMin: 1,
    rangeBlocks: 1,
    seed: 1,
    remoteAttentionPermilleMax: 300,
    queryRowBytes: 4000,
    layers: 2,
  },
};

function requestOf(index: number, arrivalUs: number, inputTokens: number, outputTokens: number): TraceRequest {
  const blocks = Int32Array.from({ length: Math.ceil(inputTokens / blockTokens) }, (_, i) =>
    // Prompts share their beginnings.
    i < 3 ? (index % 3) * 100 + i : 1_000_000 + 1000 * index + i,
  );
  return { index, arrivalUs, inputTokens, outputTokens, blocks };
}

function run(trace: readonly TraceRequest[], changes: Partial<SimulationConfig> = {}): Simulation {
  const simulation = new Simulation({ ...config, ...changes });
  for (const request of trace) simulation.arrive(request);
  simulation.finish();
  return simulation;
}

function withHost(specs: readonly InstanceSpec[], hostBlocks: number): readonly InstanceSpec[] {
  return specs.map((spec) => {
    const { borrowing } = spec.machine;
    const borrowableBlocks =
      (borrowing?.borrowableBlocks ?? 0) + hostBlocks + (specs.length - 1) * lentShareMax * hostBlocks;
    return {
      ...spec,
      machine: { ...spec.machine, borrowing: borrowing && { ...borrowing, hostBlocks, borrowableBlocks } },
    };
  });
}

function faults(...specs: readonly string[]): SimulationConfig['faults'] {
  const times = { reportUs: 100_000, silentUs: 500_000, timeoutUs: 60_000_000, attemptsMax: 3 };
  return { seed: 1, times, faults: specs.map(parseFault) };
}

/** A few to nearly all prompts exceed half of an instance's memory. */
const traces = fc
  .integer({ min: 1, max: 9 })
  .chain((long) =>
    fc.array(
      fc.record({
        gapUs: fc.integer({ min: 0, max: 300_000 }),
        input: fc.oneof(
          { weight: 10 - long, arbitrary: fc.integer({ min: 1, max: 200 }) },
          { weight: long, arbitrary: fc.integer({ min: 400, max: 1200 }) },
        ),
        output: fc.integer({ min: 1, max: 200 }),
      }),
      { minLength: 1, maxLength: 25 },
    ),
  )
  .map((parts) => {
    let arrivalUs = 0;
    return parts.map(({ gapUs, input, output }, index) => {
      arrivalUs += gapUs;
      return requestOf(index, arrivalUs, input, output);
    });
  });

describe('borrowing', () => {
  it('serves a request that exceeds any single instance', () => {
    const { outcome, lending } = run([requestOf(0, 0, 1000, 20)]);
    expect(outcome.completedRequests).toBe(1);
    expect(outcome.preemptions).toBe(0);
    expect(lending?.counts.loans).toBeGreaterThan(0);
    expect(outcome.bytesMoved.borrow).toBeGreaterThan(0);
  });

  it('serves many requests that exceed any single instance, one after another, without a restart', () => {
    const trace = Array.from({ length: 12 }, (_, index) => requestOf(index, index * 1000, 900, 60));
    const { outcome } = run(trace);
    expect(outcome.completedRequests).toBe(trace.length);
    expect(outcome.preemptions).toBe(0);
  });

  it('refuses a request that exceeds all instances together', () => {
    const { outcome } = run([requestOf(0, 0, blockTokens * (poolBlocks + 2 * lendable) + 1, 1)]);
    expect(outcome.refusedByReason).toEqual({ length: 1 });
  });

  it('ends every request of any trace, with every check', () => {
    fc.assert(
      fc.property(traces, (trace) => {
        const { outcome } = run(trace);
        expect(outcome.completedRequests).toBe(trace.length);
      }),
      { numRuns: 30 },
    );
  });

  it('uses remote device memory first, then its own host memory, then remote host memory', () => {
    const [hostBlocks, hostTokenUs] = [40, [50, 50]];
    const run2 = (inputTokens: number) =>
      run([requestOf(0, 0, inputTokens, 4)], {
        instances: withHost(instances(2), hostBlocks),
        lending: config.lending && { ...config.lending, hostTokenUs },
      });
    const [device, own, lent] = [900, 1300, 1900].map(run2);
    for (const { outcome } of [device, own, lent]) expect(outcome.completedRequests).toBe(1);
    expect(device.lending?.totals[0].hostBlocks).toBe(0);
    const hosts = [own, lent].map(({ lending }) => lending?.totals[0].hostBlocks ?? 0);
    expect(hosts[0]).toBeGreaterThan(0);
    expect(hosts[0]).toBeLessThanOrEqual(hostBlocks);
    expect(hosts[1]).toBeGreaterThan(hostBlocks);
    // A step reads all of its blocks in host memory.
    expect(own.outcome.tbtUs.mean).toBeGreaterThan(hosts[0] * blockTokens * 50);
    expect(device.outcome.tbtUs.mean).toBeLessThan(hosts[0] * blockTokens * 50);
  });

  it('hands off prompts that exceed any single instance, without a cycle of waiting', () => {
    const roles = ['prefill', 'prefill', 'decode', 'decode'] as const;
    const specs = instances(4).map(({ machine: { borrowing, ...machine }, ...spec }, i) => ({
      ...spec,
      role: roles[i],
      machine: {
        ...machine,
        borrowing,
        handOff: { layerWise: true, receiveTokens: 1500, rechecksAdmission: false },
      },
    }));
    const trace = Array.from({ length: 10 }, (_, i) => requestOf(i, i * 20_000, i % 3 === 0 ? 200 : 800 + 40 * i, 10));
    const whole = run(trace, { instances: specs });
    expect(whole.outcome.completedRequests).toBe(trace.length);
    expect(whole.outcome.bytesMoved.handoff).toBeGreaterThan(0);
    const single = specs.map(({ machine, ...spec }) => ({ ...spec, machine: { ...machine, coalesce: false } }));
    expect(run(trace, { instances: single }).outcome.stateHash).toBe(whole.outcome.stateHash);
  });

  it('computes prompts that exceed any single instance in groups: the decode instance alone moves blocks', () => {
    const roles = ['prefill', 'prefill', 'decode'] as const;
    const handOff = { layerWise: true, receiveTokens: 1500, rechecksAdmission: false };
    const specs = instances(3, { handOff }).map((spec, i) => ({ ...spec, role: roles[i] }));
    const trace = [requestOf(0, 0, 1000, 20), requestOf(1, 5_000_000, 1000, 20)];
    const placement = { ...config.placement, kind: 'cache-aware' } as const;
    const grouped = run(trace, { instances: specs, placement, pipeline: { members: 2, tokensOver: 100 } });
    expect(grouped.outcome.completedRequests).toBe(trace.length);
    expect(grouped.outcome.groupPrefills).toBe(trace.length);
    const moved = grouped.lending?.totals.map(({ movedBlocks }) => movedBlocks) ?? [];
    expect(moved.slice(0, 2)).toEqual([0, 0]);
    expect(moved[2]).toBeGreaterThan(0);
    const single = run(trace, { instances: specs, placement });
    expect(grouped.outcome.ttftUs.mean).toBeLessThan(single.outcome.ttftUs.mean);
  });

  it('recomputes a request from its tokens when a creditor fails', () => {
    const trace = [requestOf(0, 0, 1000, 60)];
    const { outcome, lending, cluster } = run(trace, { faults: faults('crash:instance=1,at=250ms,for=1s') });
    expect(cluster.faults?.injected.get('crash')).toBe(1);
    expect(lending?.totals[0].lostBlocks).toBeGreaterThan(0);
    expect(outcome.completedRequests).toBe(1);
    expect(outcome.preemptions).toBe(1);
  });

  it('reclaims the blocks of a debtor that fails', () => {
    const { outcome, lending } = run([requestOf(0, 0, 1000, 60)], { faults: faults('crash:instance=0,at=250ms') });
    expect(outcome.completedRequests).toBe(1);
    expect(lending?.hasNoLoans).toBe(true);
  });

  it('recomputes blocks behind a partition at once', () => {
    const trace = [requestOf(0, 0, 1000, 60)];
    const { outcome, lending } = run(trace, { faults: faults('partition:instance=1,at=250ms,for=500ms') });
    expect(lending?.totals[0].lostBlocks).toBeGreaterThan(0);
    expect(outcome.completedRequests).toBe(1);
  });

  it('has the same hash with equal steps run one by one', () => {
    fc.assert(
      fc.property(traces, (trace) => {
        const whole = run(trace, { checking: false });
        const single = run(trace, { checking: false, instances: instances(3, { coalesce: false }) });
        expect(whole.outcome.stateHash).toBe(single.outcome.stateHash);
        expect(whole.outcome.endUs).toBe(single.outcome.endUs);
      }),
      { numRuns: 30 },
    );
  });
});
