// The same trace simulated: by fitted times, or by the times that steps took live.
import { PrefillWatch } from '../../cluster/prefill-watch.ts';
import { batchLimits } from '../../cluster/token-limits.ts';
import type { RecordedStep } from '../../live/step-record.ts';
import { MeasuredCost, type Variation } from '../../policy/cost/measured-cost.ts';
import { RecordedSteps } from '../../policy/cost/recorded-steps.ts';
import type { StepCostModel } from '../../policy/cost/roofline.ts';
import { Simulation } from '../../sim/simulation.ts';
import type { TraceRequest } from '../../trace/request.ts';
import { counterUniform } from '../../util/counter-random.ts';
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

/** @param recorded (instances): steps of a live run, which take as long here */
export function simulateTrace(
  { capacityTokens, kvBytesPerToken, calibration }: SimulatedCluster,
  requests: readonly TraceRequest[],
  recorded?: readonly (readonly RecordedStep[])[],
): SimulatedRun {
  const sizes = { layers: 1, kvBytesPerToken, activationBytesPerToken: 1 };
  const model = (i: number, variation?: Variation) =>
    new MeasuredCost(calibration.measured, { ...sizes, kvCapacityTokens: capacityTokens[i] }, variation);
  const replays = recorded?.map((steps, i) => new RecordedSteps(withGaps(steps), model(i)));
  const costOf = (i: number): StepCostModel =>
    replays?.[i] ?? model(i, { seed: i, beside: () => simulation.isComputingBeside(i) });
  // Placement is decided before that, and in a replay it is placement that counts.
  const admitUs = recorded === undefined ? calibration.admitUs : 0;
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
        const seen = delivered(
          firstTokenUs - arrivalUs,
          gapUs.subarray(0, trace.outputTokens - 1),
          latenessOf(index, calibration),
        );
        served.push({ ...figures, clockUs: arrivalUs, ...seen });
      },
    },
  });
  for (const request of requests) simulation.arrive({ ...request, arrivalUs: request.arrivalUs + admitUs });
  simulation.finish();
  return { served, matchedSteps: (replays ?? []).reduce((sum, { matched }) => sum + matched, 0) };
}

/** How pages go between instances of a process, as the live conductor takes it until some have gone. */
const insideProcess = { bytesPerSecond: 2e9, us: 500 };

/** What the live conductor had learned when the trace began. */
function learnedFrom({ prefills }: Calibration, instances: number): PrefillWatch {
  const watch = new PrefillWatch(new Array<number>(instances).fill(0));
  for (const { computedTokens, us } of prefills) watch.times[0].observe(computedTokens, us);
  return watch;
}

/** How long tokens of a request are under way: as those of a request that was seen, drawn for it; longer outputs go on with its second half. */
function latenessOf(request: number, { deliverUs }: Calibration): (token: number) => number {
  if (deliverUs.length === 0) return () => 0;
  const seen = deliverUs[Math.floor(counterUniform(0, 0, request) * deliverUs.length)];
  const half = seen.length >> 1;
  return (token) => seen[token < seen.length ? token : half + ((token - half) % (seen.length - half))];
}

/** What a client sees. */
function delivered(
  ttftUs: number,
  gapUs: Float64Array,
  lateUs: (token: number) => number,
): { readonly ttftUs: number; readonly gapUs: Float64Array } {
  return {
    ttftUs: Math.round(ttftUs + lateUs(0)),
    // Nothing overtakes what came before.
    gapUs: gapUs.map((us, i) => Math.max(0, us + lateUs(i + 1) - lateUs(i))),
  };
}
