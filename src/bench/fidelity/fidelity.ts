// Fidelity of the simulator: a load served live on this machine, and simulated with the same configuration.

import type { LinearTimes } from '../../core/cost/linear-cost.ts';
import type { MeasuredKind, ObservedSteps } from '../../core/cost/measured-cost.ts';
import type { ClusterPort, InferencePort } from '../../core/protocol/ports.ts';
import type { PlacementTrace } from '../../core/protocol/request-trace.ts';
import { meanOfLongest } from '../../sim/report/longest-gaps.ts';
import type { TraceRequest } from '../../trace/request.ts';
import { median, percentile, round } from '../statistics.ts';
import { calibrate } from './calibrate.ts';
import { type Calibration, fitCalibration, type Measurements, measure } from './fit.ts';
import { History, type HistoryPart } from './history.ts';
import type { Served } from './live-run.ts';
import { replayTrace, type SimulatedCluster, simulateTrace } from './simulated-run.ts';

export interface FidelityBench
  extends Pick<SimulatedCluster, 'capacityTokens' | 'kvBytesPerToken' | 'layers' | 'aheadOfUse'> {
  readonly cluster: InferencePort & ClusterPort;
  /** (instances): step records. */
  readonly records: readonly SharedArrayBuffer[];
  readonly vocabSize: number;
  readonly contextTokens: number;
  readonly requests: readonly TraceRequest[];
  /** Loads of the same kind, served before and after the load, so that a drift of the machine speed averages out. */
  readonly rehearsals: readonly [readonly TraceRequest[], readonly TraceRequest[]];
  /** Duration of the calibration at the start. */
  readonly calibrationMs: number;
  readonly onProgress: (line: string) => void;
}

/** Medians over requests, and the share of prompt tokens found in caches. */
interface Figures {
  readonly ttftMs: number;
  readonly tbtMs: number;
  readonly hitRatioTokens: number;
}

interface CalibrationFigures {
  readonly steps: number;
  readonly decode: KindFigures;
  readonly prompt: KindFigures;
  /** Delay from submission to the instance, and from the end of a step to the client. */
  readonly admitUs: number;
  readonly deliveryUs: number;
}

interface KindFigures {
  readonly times: LinearTimes;
  /** Steps alone on the machine and steps that shared it: counts, and quartiles of actual over fitted time. */
  readonly alone: readonly (number | undefined)[];
  readonly beside: readonly (number | undefined)[];
}

/** A request with different placements live and in the replay, with both placement traces. */
export interface PlacementDifference {
  readonly index: number;
  readonly live: PlacementTrace | undefined;
  readonly replayed: PlacementTrace | undefined;
}

export interface FidelityReport {
  readonly requests: number;
  readonly calibration: CalibrationFigures;
  readonly live: Figures;
  /** Simulated with fitted times and planned arrivals. */
  readonly simulated: Figures;
  /** Simulated over live. */
  readonly ttftRatio: number;
  readonly tbtRatio: number;
  /** Replayed with the arrivals and step times of the live run. */
  readonly replayed: Figures;
  readonly samePlacement: number;
  readonly hitRatioDifference: number;
  /** The first requests with different placements, in order of arrival; each difference causes others. */
  readonly placementDifferences: readonly PlacementDifference[];
  /** Steps of the live run, and those with the same rows in the replay. */
  readonly steps: number;
  readonly matchedSteps: number;
}

/** Runs with different seeds: medians over all runs do not depend on one draw of step variation. */
const simulatedRuns = 5;

/** Differences reported at most. */
const differencesMax = 10;

export async function benchFidelity(options: FidelityBench): Promise<FidelityReport> {
  const { cluster, records, requests, rehearsals, vocabSize, onProgress } = options;
  const history = new History(cluster, records, vocabSize);
  const graded = await calibrate(history, options);
  onProgress(`measured ${graded.steps.length} graded steps`);
  const rehearsed = [measured(await history.serve(rehearsals[0]))];
  const load = await history.serve(requests);
  onProgress(`served ${load.served.length} requests live`);
  rehearsed.push(measured(await history.serve(rehearsals[1])));
  const calibration = fitCalibration(graded, rehearsed);
  const same = { ...options, calibration, bytesPerSecond: bytesPerSecond(cluster) };
  const past = history.until(load.to);
  const planned = { ...load, plannedUs: requests.map(({ arrivalUs }) => arrivalUs) };
  const simulations = Array.from({ length: simulatedRuns }, (_, seed) => simulateTrace(same, past, planned, seed));
  const replay = replayTrace(same, past, load.from);
  const { served, steps } = load;
  const [live, simulated, replayed] = [served, simulations.flatMap((one) => one.served), replay.served].map(figuresOf);
  const differences = placementDifferencesOf(served, replay.served);
  return {
    ...{ requests: requests.length, calibration: figuresOfCalibration(calibration), live, simulated, replayed },
    ttftRatio: round(simulated.ttftMs / live.ttftMs),
    tbtRatio: round(simulated.tbtMs / live.tbtMs),
    samePlacement: 1 - differences.length / served.length,
    hitRatioDifference: Math.abs(live.hitRatioTokens - replayed.hitRatioTokens),
    placementDifferences: differences.slice(0, differencesMax),
    steps: steps.reduce((sum, all) => sum + all.length, 0),
    matchedSteps: replay.matchedSteps,
  };
}

/** The measurements of a rehearsal, which show how consecutive steps vary. */
function measured({ steps, served }: HistoryPart): Measurements {
  return measure(steps, served);
}

/** Measured transfer rate of pages; undefined without transfers. */
function bytesPerSecond(cluster: InferencePort): number | undefined {
  const sent = cluster.instances().flatMap((instance) => instance.sent ?? []);
  const bytes = sent.reduce((sum, each) => sum + each.bytes, 0);
  return bytes === 0 ? undefined : bytes / sent.reduce((sum, each) => sum + each.copySeconds, 0);
}

function figuresOfCalibration({ steps, measured, admitUs, deliveryUs }: Calibration): CalibrationFigures {
  const quartiles = ({ ratios }: ObservedSteps) => [
    ratios.length,
    ...[25, 50, 75].map((p) => round(percentile([...ratios], p))),
  ];
  const figures = ({ times, alone, beside }: MeasuredKind): KindFigures => ({
    ...{ times, alone: quartiles(alone), beside: quartiles(beside) },
  });
  return { steps, decode: figures(measured.decode), prompt: figures(measured.prompt), admitUs, deliveryUs };
}

function figuresOf(served: readonly Served[]): Figures {
  const tbt = served
    .filter(({ gapUs }) => gapUs.length > 0)
    .map(({ gapUs }) => meanOfLongest(gapUs.slice(), gapUs.length));
  const sum = (of: (one: Served) => number) => served.reduce((all, one) => all + of(one), 0);
  return {
    ttftMs: round((median(served.map(({ ttftUs }) => ttftUs)) ?? 0) / 1000),
    tbtMs: round((median(tbt) ?? 0) / 1000),
    hitRatioTokens: sum(({ cachedTokens }) => cachedTokens) / sum(({ inputTokens }) => inputTokens),
  };
}

/** Requests with different placements, in order of arrival. */
function placementDifferencesOf(live: readonly Served[], replayed: readonly Served[]): readonly PlacementDifference[] {
  const there = new Map(replayed.map(({ index, placed }) => [index, placed]));
  return live
    .map(({ index, placed }) => ({ index, live: placed, replayed: there.get(index) }))
    .filter(({ live, replayed }) => live === undefined || live.instance !== replayed?.instance)
    .sort((a, b) => a.index - b.index);
}
