// What a simulated conductor has learned of step times, and when.
import { expect, it } from 'vitest';
import type { KvSizes } from '../../../src/core/cost/linear-cost.ts';
import { LearnedTransfers } from '../../../src/core/router/placement/learned-transfers.ts';
import { PrefillObserver } from '../../../src/core/router/placement/prefill-observer.ts';
import { batchLimits } from '../../../src/core/scheduler/executor/token-limits.ts';
import { LearnedCost } from '../../../src/sim/engine/learned-cost.ts';
import { Simulation } from '../../../src/sim/engine/simulation.ts';
import type { RecordedHeartbeat } from '../../../src/sim/engine/simulation-config.ts';
import { pageTokens } from '../../../src/util/step.ts';
import { drawnRequests, UnevenCost } from '../uneven-run.ts';

const sizes: KvSizes = { layers: 1, kvBytesPerToken: 64, kvCapacityTokens: 4096, activationBytesPerToken: 1 };
const times = { stepUs: 1000, rowUs: 60, keyUs: 0.02, decodeRowUs: 0, logitRowUs: 50 };

/** Learned step times that note when they change. */
class NotedCost extends LearnedCost {
  /** Times of changes, and the constant part of the coefficients. */
  readonly changes: (readonly [us: number, stepUs: number])[] = [];
  nowUs = (): number => 0;

  override setCoefficients(coefficients: readonly number[]): void {
    this.changes.push([this.nowUs(), coefficients[0]]);
    super.setCoefficients(coefficients);
  }
}

function changesOf(
  heartbeatUs: number | undefined,
  heartbeats?: readonly (readonly RecordedHeartbeat[])[],
): readonly (readonly [us: number, stepUs: number])[] {
  const noted = new NotedCost(sizes);
  const simulation = new Simulation({
    instances: [
      {
        ...{ role: 'mixed', nic: { bytesPerSecond: 2e9, us: 10 } },
        machine: {
          ...{ blockTokens: pageTokens, eviction: 'lru', limits: batchLimits, blocks: 128 },
          ...{ cost: new UnevenCost(times, sizes), coalesce: false, reportsAll: true, learns: true },
        },
      },
    ],
    ...{ linkBytesPerSecond: undefined, blockTokens: pageTokens, queueMax: 256, checking: false },
    placement: { kind: 'cache-aware', seed: [0, 0], balancingThreshold: 1.5 },
    admission: { kind: 'none', slo: undefined, decodeUs: 0 },
    learned: {
      prefills: new PrefillObserver([0]),
      transfers: new LearnedTransfers(1, sizes.kvBytesPerToken),
      steps: [noted],
    },
    threads: {
      ...{ toInstanceUs: () => 5, receivedUs: (nowUs: number) => nowUs + 7 },
      ...(heartbeatUs !== undefined && {
        nextReportUs: (nowUs: number) => (Math.floor(nowUs / heartbeatUs) + 1) * heartbeatUs,
        heartbeats,
      }),
    },
  });
  noted.nowUs = () => simulation.nowUs;
  for (const request of drawnRequests(6, 25)) simulation.arrive(request);
  simulation.finish();
  return noted.changes;
}

it('has the first guess of an instance, and what it learns, with heartbeats alone', () => {
  const heartbeatUs = 10_000;
  const [first, ...later] = changesOf(heartbeatUs).map(([us]) => us);
  expect(first).toBe(heartbeatUs);
  expect(later.length).toBeGreaterThan(2);
  expect(later.filter((us) => us % heartbeatUs !== 0)).toEqual([]);
  expect(new Set(later).size).toBe(later.length);
});

it('has the first guess from the begin, and learns with every message, of an instance without heartbeats', () => {
  const [first, ...later] = changesOf(undefined).map(([us]) => us);
  expect(first).toBe(0);
  expect(later.some((us) => us % 10_000 !== 0)).toBe(true);
});

it('has what recorded heartbeats state until the last one, and what the instance learns from then on', () => {
  const state = { running: 0, steps: 0, stepMsTotal: 0 };
  const own = [3_000, 25_000].map((receivedUs, i) => ({
    receivedUs,
    state: { ...state, stepCost: [i, 2, 3, 4, 5] },
  }));
  const [first, second, ...later] = changesOf(10_000, [own]);
  expect([first, second]).toEqual([
    [3_000, 0],
    [25_000, 1],
  ]);
  expect(later.length).toBeGreaterThan(1);
  expect(later.filter(([us]) => us % 10_000 !== 0)).toEqual([]);
});
