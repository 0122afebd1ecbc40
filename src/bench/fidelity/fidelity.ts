// How true the simulator is: a load served live on this machine, and the same load simulated with the same configuration.

import type { LinearTimes } from '../../core/cost/linear-cost.ts';
import type { MeasuredKind, ObservedSteps } from '../../core/cost/measured-cost.ts';
import type { ClusterPort, InferencePort } from '../../core/protocol/ports.ts';
import type { PlacementTrace } from '../../core/protocol/request-trace.ts';
import type { TraceRequest } from '../../trace/request.ts';
import { meanOfLongest } from '../../util/longest-gaps.ts';
import { median, percentile, round } from '../statistics.ts';
import { calibrate } from './calibrate.ts';
import { type Calibration, fitCalibration, type Measurements, measure } from './fit.ts';
import { type Chapter, History } from './history.ts';
import type { Served } from './live-run.ts';
import { replayTrace, type SimulatedCluster, simulateTrace } from './simulated-run.ts';

export interface FidelityBench
  extends Pick<SimulatedCluster, 'capacityTokens' | 'kvBytesPerToken' | 'layers' | 'startsAhead'> {
  readonly cluster: InferencePort & ClusterPort;
  /** (instances): where steps are written down. */
  readonly records: readonly SharedArrayBuffer[];
  readonly vocabSize: number;
  readonly contextTokens: number;
  readonly requests: readonly TraceRequest[];
  /** Loads of the same kind: one before it and one behind it, so that a machine whose speed drifts is met in the middle. */
  readonly rehearsals: readonly [readonly TraceRequest[], readonly TraceRequest[]];
  /** How long to calibrate, first of all. */
  readonly calibrationMs: number;
  readonly onProgress: (line: string) => void;
}

/** Medians over requests, and the share of prompt tokens that was found in caches. */
interface Figures {
  readonly ttftMs: number;
  readonly tbtMs: number;
  readonly hitRatioTokens: number;
}

interface CalibrationFigures {
  readonly steps: number;
  readonly decode: KindFigures;
  readonly prompt: KindFigures;
  /** From a request's submission until its instance hears of it, and from the end of a step until its tokens are heard of. */
  readonly admitUs: number;
  readonly toldUs: number;
}

interface KindFigures {
  readonly times: LinearTimes;
  /** Steps that had the machine to themselves and those that shared it: how many, and the quartiles of taken over fitted. */
  readonly alone: readonly (number | undefined)[];
  readonly beside: readonly (number | undefined)[];
}

/** A request that the replay placed elsewhere, and what the two conductors saw. */
export interface Parting {
  readonly index: number;
  readonly live: PlacementTrace | undefined;
  readonly replayed: PlacementTrace | undefined;
}

export interface FidelityReport {
  readonly requests: number;
  readonly calibration: CalibrationFigures;
  readonly live: Figures;
  /** By fitted times, from the requests as they were meant to come. */
  readonly simulated: Figures;
  /** Simulated over live. */
  readonly ttftRatio: number;
  readonly tbtRatio: number;
  /** With the arrivals and step times of the live run. */
  readonly replayed: Figures;
  readonly samePlacement: number;
  readonly hitRatioDifference: number;
  /** The first requests that went elsewhere, in the order in which they came: one parting brings on others. */
  readonly partings: readonly Parting[];
  /** Steps of the live run, and those that had the same rows in the replay. */
  readonly steps: number;
  readonly matchedSteps: number;
}

/** With a seed of its own each: medians are over them together, so that they do not hang on one draw of how steps vary. */
const simulatedRuns = 5;

/** So many partings are told. */
const partingsMax = 10;

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
  const meant = { ...load, meantUs: requests.map(({ arrivalUs }) => arrivalUs) };
  const simulations = Array.from({ length: simulatedRuns }, (_, seed) => simulateTrace(same, past, meant, seed));
  const replay = replayTrace(same, past, load.from);
  const { served, steps } = load;
  const [live, simulated, replayed] = [served, simulations.flatMap((one) => one.served), replay.served].map(figuresOf);
  const partings = partingsOf(served, replay.served);
  return {
    ...{ requests: requests.length, calibration: figuresOfCalibration(calibration), live, simulated, replayed },
    ttftRatio: round(simulated.ttftMs / live.ttftMs),
    tbtRatio: round(simulated.tbtMs / live.tbtMs),
    samePlacement: 1 - partings.length / served.length,
    hitRatioDifference: Math.abs(live.hitRatioTokens - replayed.hitRatioTokens),
    partings: partings.slice(0, partingsMax),
    steps: steps.reduce((sum, all) => sum + all.length, 0),
    matchedSteps: replay.matchedSteps,
  };
}

/** Another load of the kind that is to be simulated tells how steps vary that follow one another as they do there. */
function measured({ steps, served }: Chapter): Measurements {
  return measure(steps, served);
}

/** As fast as pages have gone; undefined: none have. */
function bytesPerSecond(cluster: InferencePort): number | undefined {
  const sent = cluster.instances().flatMap((instance) => instance.sent ?? []);
  const bytes = sent.reduce((sum, each) => sum + each.bytes, 0);
  return bytes === 0 ? undefined : bytes / sent.reduce((sum, each) => sum + each.copySeconds, 0);
}

function figuresOfCalibration({ steps, measured, admitUs, toldUs }: Calibration): CalibrationFigures {
  const quartiles = ({ ratios }: ObservedSteps) => [
    ratios.length,
    ...[25, 50, 75].map((p) => round(percentile([...ratios], p))),
  ];
  const figures = ({ times, alone, beside }: MeasuredKind): KindFigures => ({
    ...{ times, alone: quartiles(alone), beside: quartiles(beside) },
  });
  return { steps, decode: figures(measured.decode), prompt: figures(measured.prompt), admitUs, toldUs };
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

/** Requests that did not go to the same instance, in the order in which they came. */
function partingsOf(live: readonly Served[], replayed: readonly Served[]): readonly Parting[] {
  const there = new Map(replayed.map(({ index, placed }) => [index, placed]));
  return live
    .map(({ index, placed }) => ({ index, live: placed, replayed: there.get(index) }))
    .filter(({ live, replayed }) => live === undefined || live.instance !== replayed?.instance)
    .sort((a, b) => a.index - b.index);
}
