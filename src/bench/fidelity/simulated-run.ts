// The same trace simulated after the history of the live cluster, with fitted or recorded step times.

import { MeasuredCost, type Variation } from '../../core/cost/measured-cost.ts';
import { RecordedSteps } from '../../core/cost/recorded-steps.ts';
import type { StepCostModel } from '../../core/cost/roofline.ts';
import type { PlacementTrace } from '../../core/protocol/request-trace.ts';
import type { LayerRange, StepShape } from '../../core/protocol/step-shape.ts';
import { LearnedTransfers } from '../../core/router/placement/learned-transfers.ts';
import { balancingThresholdDefault } from '../../core/router/placement/placement.ts';
import { PrefillObserver } from '../../core/router/placement/prefill-observer.ts';
import { batchLimits } from '../../core/scheduler/executor/token-limits.ts';
import { Simulation } from '../../sim/engine/simulation.ts';
import { type DeliveredStep, deliveredAtUs } from '../../sim/replay/message-times.ts';
import { pageTokens } from '../../util/step.ts';
import type { Calibration } from './fit.ts';
import type { Past, StartedRequest } from './history.ts';
import type { Served } from './live-run.ts';

export interface SimulatedCluster {
  /** (instances): KV capacity in tokens. */
  readonly capacityTokens: readonly number[];
  readonly kvBytesPerToken: number;
  readonly layers: number;
  /** Requests start while their prefixes are in transfer. */
  readonly aheadOfUse: boolean;
  /** Transfer rate of pages between instances; undefined without transfers. */
  readonly bytesPerSecond: number | undefined;
  readonly calibration: Calibration;
}

export interface SimulatedRun {
  readonly served: readonly Served[];
  /** Recorded steps with the same rows here. */
  readonly matchedSteps: number;
}

type Recorded = RecordedSteps<DeliveredStep>;

/** The requests after the history, their step times, and their start. */
interface SimulatedLoad {
  readonly requests: readonly StartedRequest[];
  readonly costOf: (instance: number, past: Recorded, simulation: () => Simulation) => StepCostModel;
  /** From this time on, steps end when clients have their tokens; undefined: never. */
  readonly drawnFromUs: number;
}

/** Simulates the requests from `from` on with planned arrivals and observed step variation. @param seed of the variation */
export function simulateTrace(
  cluster: SimulatedCluster,
  { requests, steps }: Past,
  {
    from,
    partStartUs,
    plannedUs,
  }: { readonly from: number; readonly partStartUs: number; readonly plannedUs: readonly number[] },
  seed: number,
): SimulatedRun {
  const { capacityTokens } = cluster;
  const past = { requests: requests.slice(0, from), steps };
  return run(cluster, past, {
    requests: requests.slice(from).map((request, i) => ({ ...request, arrivalUs: partStartUs + plannedUs[i] })),
    costOf: (i, recorded, simulation) => {
      const beside = () => simulation().isComputingBeside(i);
      const drawn = modelOf(cluster, i, { seed: seed * capacityTokens.length + i, beside });
      return new SwitchingCost(recorded, drawn, () => simulation().nowUs >= partStartUs);
    },
    drawnFromUs: partStartUs,
  });
}

/** Replays the requests from `from` on with recorded arrivals and step times. */
export function replayTrace(cluster: SimulatedCluster, { requests, steps }: Past, from: number): SimulatedRun {
  return run(
    cluster,
    { requests: requests.slice(0, from), steps },
    { requests: requests.slice(from), costOf: (_, recorded) => recorded, drawnFromUs: Number.POSITIVE_INFINITY },
  );
}

function run(cluster: SimulatedCluster, past: Past, { requests, costOf, drawnFromUs }: SimulatedLoad): SimulatedRun {
  const { calibration, capacityTokens, kvBytesPerToken } = cluster;
  const recorded = past.steps.map((steps, i) => new RecordedSteps(steps, modelOf(cluster, i), () => simulation.nowUs));
  const matched = (): number => recorded.reduce((sum, each) => sum + each.matched, 0);
  const all = [...past.requests, ...requests];
  const startedUs = (id: string): number | undefined => all[Number(id)]?.startedUs;
  const served: Served[] = [];
  const placed = new Map<string, PlacementTrace>();
  const simulation: Simulation = new Simulation({
    instances: capacityTokens.map((tokens, i) => ({
      role: 'mixed',
      nic: { bytesPerSecond: cluster.bytesPerSecond ?? bytesPerSecondGuess, us: calibration.deliveryUs },
      machine: {
        ...{ blockTokens: pageTokens, eviction: 'lru', limits: batchLimits, queueMax: 2 ** 53 - 1 },
        ...{ cost: costOf(i, recorded[i], () => simulation), blocks: Math.floor(tokens / pageTokens) },
        ...{ coalesce: false, reportsAll: true, learns: true, aheadOfUse: cluster.aheadOfUse },
      },
    })),
    ...{ linkBytesPerSecond: undefined, blockTokens: pageTokens, queueMax: 2 ** 31, checking: false },
    placement: { kind: 'cache-aware', seed: [0, 0], balancingThreshold: balancingThresholdDefault },
    admission: { kind: 'none', slo: undefined, decodeUs: 0 },
    learned: {
      prefills: new PrefillObserver(capacityTokens.map(() => 0)),
      transfers: new LearnedTransfers(capacityTokens.length, kvBytesPerToken),
    },
    threads: {
      toInstanceUs: () => calibration.admitUs,
      receivedUs: (nowUs, i, sent) =>
        nowUs < drawnFromUs
          ? deliveredAtUs(nowUs, recorded[i], sent, { startedUs, deliveryUs: calibration.deliveryUs })
          : nowUs,
    },
    requestListener: {
      placed: (id, placement) => placed.set(id, placement),
      found: () => {},
      ended: (_name, _nowUs, { id, trace, firstTokenUs = 0, cachedTokens, gapUs }) => {
        const { index, inputTokens, arrivalUs } = trace;
        if (index < past.requests.length) return;
        const figures = { index: index - past.requests.length, arrivalUs, inputTokens, cachedTokens, startedUs: 0 };
        served.push({
          ...{ ...figures, placed: placed.get(id), clockUs: arrivalUs, ttftUs: firstTokenUs - arrivalUs },
          gapUs: gapUs.slice(0, trace.outputTokens - 1),
        });
      },
    },
  });
  for (const request of past.requests) simulation.arrive(request);
  // Steps of the last requests of the past still run.
  if (requests.length > 0) simulation.advance(requests[0].arrivalUs);
  const before = matched();
  for (const request of requests) simulation.arrive(request);
  simulation.finish();
  return { served, matchedSteps: matched() - before };
}

/** The assumption of the live conductor before the first transfer. */
const bytesPerSecondGuess = 2e9;

function modelOf(cluster: SimulatedCluster, instance: number, variation?: Variation): MeasuredCost {
  const { calibration, kvBytesPerToken, layers, capacityTokens } = cluster;
  const sizes = { layers, kvBytesPerToken, activationBytesPerToken: 1, kvCapacityTokens: capacityTokens[instance] };
  return new MeasuredCost(calibration.measured, sizes, variation);
}

/** A cost model that changes at a given time. */
class SwitchingCost implements StepCostModel {
  readonly layers: number;
  readonly kvBytesPerToken: number;
  readonly kvCapacityTokens: number;
  readonly activationBytesPerToken: number;
  readonly #now: () => StepCostModel;

  constructor(before: StepCostModel, then: StepCostModel, isSwitched: () => boolean) {
    this.#now = () => (isSwitched() ? then : before);
    this.layers = then.layers;
    this.kvBytesPerToken = then.kvBytesPerToken;
    this.kvCapacityTokens = then.kvCapacityTokens;
    this.activationBytesPerToken = then.activationBytesPerToken;
  }

  stepUs(shape: StepShape): number {
    return this.#now().stepUs(shape);
  }

  stageUs(shape: StepShape, range: LayerRange): number {
    return this.#now().stageUs(shape, range);
  }

  rowsWithin(budgetUs: number, shape: StepShape, position: number): number {
    return this.#now().rowsWithin(budgetUs, shape, position);
  }
}
