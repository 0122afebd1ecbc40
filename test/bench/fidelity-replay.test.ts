// A run replayed from its records: equal inputs alone give equal decisions.
import { expect, it } from 'vitest';
import type { Calibration } from '../../src/bench/fidelity/fit.ts';
import type { Past } from '../../src/bench/fidelity/history.ts';
import { replayTrace, type SimulatedCluster } from '../../src/bench/fidelity/simulated-run.ts';
import type { PlacementTrace } from '../../src/core/protocol/request-trace.ts';
import { LearnedTransfers } from '../../src/core/router/placement/learned-transfers.ts';
import { balancingThresholdDefault } from '../../src/core/router/placement/placement.ts';
import { PrefillObserver } from '../../src/core/router/placement/prefill-observer.ts';
import { batchLimits } from '../../src/core/scheduler/executor/token-limits.ts';
import { Simulation } from '../../src/sim/engine/simulation.ts';
import type { DeliveredStep } from '../../src/sim/replay/message-times.ts';
import type { TraceRequest } from '../../src/trace/request.ts';
import { scramble } from '../../src/util/scramble.ts';
import { pageTokens } from '../../src/util/step.ts';
import { drawnRequests, UnevenCost } from '../sim/uneven-run.ts';

const kvBytesPerToken = 3072;
const capacityTokens = [4096, 4096];
const bytesPerSecond = 1e8;
const times = { stepUs: 400, rowUs: 100, keyUs: 0.05, decodeRowUs: 0, logitRowUs: 0 };
const sizes = { layers: 6, kvBytesPerToken, kvCapacityTokens: 4096, activationBytesPerToken: 1 };
const [admitUs, deliveryUs] = [300, 90];

function load(requests: number): readonly TraceRequest[] {
  return drawnRequests(requests, 40).map((request) => ({ ...request, outputBlocks: new Int32Array(0) }));
}

/** A cluster with random message delays to the conductor. */
function record(requests: readonly TraceRequest[]) {
  const steps: DeliveredStep[][] = capacityTokens.map(() => []);
  const startedUs = new Map<string, number>();
  const placed = new Map<string, PlacementTrace>();
  let cachedTokens = 0;
  const simulation = new Simulation({
    instances: capacityTokens.map((tokens) => ({
      role: 'mixed',
      nic: { bytesPerSecond, us: deliveryUs },
      machine: {
        ...{ blockTokens: pageTokens, eviction: 'lru', limits: batchLimits, queueMax: 2 ** 53 - 1 },
        ...{ cost: new UnevenCost(times, sizes), blocks: tokens / pageTokens },
        ...{ coalesce: false, reportsAll: true, learns: true, aheadOfUse: true },
      },
    })),
    ...{ linkBytesPerSecond: undefined, blockTokens: pageTokens, queueMax: 2 ** 31, checking: false },
    placement: { kind: 'cache-aware', seed: [0, 0], balancingThreshold: balancingThresholdDefault },
    admission: { kind: 'none', slo: undefined, decodeUs: 0 },
    learned: { prefills: new PrefillObserver([0, 0]), transfers: new LearnedTransfers(2, kvBytesPerToken) },
    threads: {
      toInstanceUs: () => admitUs,
      receivedUs: (nowUs, instance, { stepEnded, started }) => {
        const us = nowUs + deliveryUs + (scramble(nowUs) & 255);
        if (started !== undefined) startedUs.set(started, us);
        const last = steps[instance].at(-1);
        if (stepEnded && last !== undefined && last.shape.logitRows > 0)
          steps[instance].splice(-1, 1, { ...last, deliveredUs: us });
        return us;
      },
    },
    stepListener: (instance, at, shape, [us]) => {
      steps[instance].push({ startedUs: at, us, shape: { ...shape }, deliveredUs: undefined });
    },
    requestListener: {
      placed: (id, placement) => placed.set(id, placement),
      found: () => {},
      ended: () => {},
    },
    inspect: {
      after: () => {},
      ended: (request) => {
        cachedTokens += request.cachedTokens;
      },
    },
  });
  for (const request of requests) simulation.arrive(request);
  simulation.finish();
  const heard = requests.map((request) => ({ ...request, startedUs: startedUs.get(String(request.index)) ?? 0 }));
  const past: Past = { requests: heard, steps };
  return { past, placed, cachedTokens };
}

const none = { ratios: new Float64Array(0), pauseUs: new Float64Array(0) };
const kind = { times, alone: none, beside: none };
const calibration: Calibration = { measured: { decode: kind, prompt: kind }, admitUs, deliveryUs, steps: 0 };
const cluster: SimulatedCluster = {
  ...{ capacityTokens, kvBytesPerToken, layers: 6, aheadOfUse: true, bytesPerSecond, calibration },
};

it('repeats every placement, after the same history', () => {
  const { past, placed, cachedTokens } = record(load(200));
  const fetched = [...placed.values()].filter(({ fetchedTokens }) => fetchedTokens > 0).length;
  expect(fetched).toBeGreaterThan(5);
  const from = 60;
  const { served, matchedSteps } = replayTrace(cluster, past, from);
  const same = served.filter(
    ({ index, placed: there }) => placed.get(String(from + index))?.instance === there?.instance,
  );
  expect(same.length).toBe(served.length);
  const all = replayTrace(cluster, past, 0).served;
  expect(all.reduce((sum, one) => sum + one.cachedTokens, 0)).toBe(cachedTokens);
  const steps = past.steps.flat().filter(({ startedUs }) => startedUs >= past.requests[from].arrivalUs);
  expect(matchedSteps).toBeGreaterThan(0.98 * steps.length);
});

it('decides differently with other step times: decisions are not replayed', () => {
  const { past, placed } = record(load(200));
  const steps = past.steps.map((all) => all.map((step) => ({ ...step, shape: { ...step.shape, rows: 0 } })));
  const slow = { ...kind, times: { ...times, rowUs: 1000 } };
  const other = { ...cluster, calibration: { ...calibration, measured: { decode: slow, prompt: slow } } };
  const { served, matchedSteps } = replayTrace(other, { ...past, steps }, 0);
  expect(matchedSteps).toBe(0);
  const same = served.filter(({ index, placed: there }) => placed.get(String(index))?.instance === there?.instance);
  expect(same.length).toBeLessThan(0.9 * served.length);
});
