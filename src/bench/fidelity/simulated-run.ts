// The same trace simulated: by fitted times, or by the times that steps took live.
import { PrefillWatch } from '../../cluster/prefill-watch.ts';
import { batchLimits } from '../../cluster/token-limits.ts';
import type { RecordedStep } from '../../live/step-record.ts';
import { MeasuredCost, type Variation } from '../../policy/cost/measured-cost.ts';
import { RecordedSteps } from '../../policy/cost/recorded-steps.ts';
import type { StepCostModel } from '../../policy/cost/roofline.ts';
import { Simulation } from '../../sim/simulation.ts';
import type { TraceRequest } from '../../trace/request.ts';
import { pageTokens } from '../../util/step.ts';
import { type Calibration, withGaps } from './fit.ts';
import type { Served } from './live-run.ts';

export interface SimulatedCluster {
  /** (instances): tokens whose keys and values each has room for. */
  readonly capacityTokens: readonly number[];
  readonly kvBytesPerToken: number;
  readonly calibration: Calibration;
}

export interface SimulatedRun {
  readonly served: readonly Served[];
  /** Of the recorded steps, those that had the same rows here. */
  readonly matchedSteps: number;
}

/** @param how of how steps vary the seed; or (instances) the steps of a live run, which take as long here */
export function simulateTrace(
  { capacityTokens, kvBytesPerToken, calibration }: SimulatedCluster,
  requests: readonly TraceRequest[],
  how: { readonly seed: number } | { readonly recorded: readonly (readonly RecordedStep[])[] },
): SimulatedRun {
  const sizes = { layers: 1, kvBytesPerToken, activationBytesPerToken: 1 };
  const model = (i: number, variation?: Variation) =>
    new MeasuredCost(calibration.measured, { ...sizes, kvCapacityTokens: capacityTokens[i] }, variation);
  const replays = 'recorded' in how ? how.recorded.map((steps, i) => new RecordedSteps(withGaps(steps), model(i))) : [];
  const seed = 'seed' in how ? how.seed * capacityTokens.length : 0;
  const costOf = (i: number): StepCostModel =>
    replays.at(i) ?? model(i, { seed: seed + i, beside: () => simulation.isComputingBeside(i) });
  // Placement is decided before that, and in a replay it is placement that counts.
  const admitUs = 'recorded' in how ? 0 : calibration.admitUs;
  const served: Served[] = [];
  const placed = new Map<string, number>();
  const simulation = new Simulation({
    instances: capacityTokens.map((tokens, i) => ({
      role: 'mixed',
      nic: insideProcess,
      machine: {
        ...{ blockTokens: pageTokens, eviction: 'lru', limits: batchLimits, queueMax: 2 ** 53 - 1 },
        ...{ cost: costOf(i), blocks: Math.floor(tokens / pageTokens), coalesce: false, learns: true },
      },
    })),
    ...{ linkBytesPerSecond: undefined, blockTokens: pageTokens, queueMax: 2 ** 31, checking: false },
    placement: { kind: 'cache-aware', seed: [0, 0], balancingThreshold: 1 },
    admission: { kind: 'none', slo: undefined, decodeUs: 0 },
    learned: learnedFrom(calibration, capacityTokens.length),
    forwarded: (id, instance) => placed.set(id, instance),
    inspect: {
      after: () => {},
      ended: ({ id, trace, firstTokenUs = 0, cachedTokens, gapUs }) => {
        const { index, inputTokens } = trace;
        const arrivalUs = trace.arrivalUs - admitUs;
        const figures = { index, arrivalUs, inputTokens, cachedTokens, instance: placed.get(id), startedUs: 0 };
        served.push({
          ...{ ...figures, clockUs: arrivalUs, ttftUs: firstTokenUs - arrivalUs },
          gapUs: gapUs.slice(0, trace.outputTokens - 1),
        });
      },
    },
  });
  for (const request of requests) simulation.arrive({ ...request, arrivalUs: request.arrivalUs + admitUs });
  simulation.finish();
  return { served, matchedSteps: replays.reduce((sum, { matched }) => sum + matched, 0) };
}

/** How pages go between instances of a process, as the live conductor takes it until some have gone. */
const insideProcess = { bytesPerSecond: 2e9, us: 500 };

/** What the live conductor had learned when the trace began. */
function learnedFrom({ prefills }: Calibration, instances: number): PrefillWatch {
  const watch = new PrefillWatch(new Array<number>(instances).fill(0));
  for (const { computedTokens, us } of prefills) watch.times[0].observe(computedTokens, us);
  return watch;
}
