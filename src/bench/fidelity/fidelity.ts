// How true the simulator is: a load served live on this machine, and the same load simulated with the same configuration.
import type { ClusterPort, InferencePort } from '../../cluster/ports.ts';
import { readStepRecord } from '../../live/step-record.ts';
import type { LinearTimes } from '../../policy/cost/linear-cost.ts';
import type { MeasuredKind } from '../../policy/cost/measured-cost.ts';
import type { TraceRequest } from '../../trace/request.ts';
import { meanOfLongest } from '../../util/longest-gaps.ts';
import { median, percentile, round } from '../statistics.ts';
import { calibrate, rehearse } from './calibrate.ts';
import { type Calibration, fitCalibration } from './fit.ts';
import { type Served, serveTrace } from './live-run.ts';
import { simulateTrace } from './simulated-run.ts';

export interface FidelityBench {
  readonly cluster: InferencePort & ClusterPort;
  /** (instances): where steps are written down. */
  readonly records: readonly SharedArrayBuffer[];
  readonly capacityTokens: readonly number[];
  readonly kvBytesPerToken: number;
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
  readonly admitUs: number;
}

interface KindFigures {
  readonly times: LinearTimes;
  /** Steps that had the machine to themselves and those that shared it: how many, and the quartiles of taken over fitted. */
  readonly alone: readonly (number | undefined)[];
  readonly beside: readonly (number | undefined)[];
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
  /** Steps of the live run, and those that had the same rows in the replay. */
  readonly steps: number;
  readonly matchedSteps: number;
}

/** With a seed of its own each: medians are over them together, so that they do not hang on one draw of how steps vary. */
const simulatedRuns = 5;

export async function benchFidelity(options: FidelityBench): Promise<FidelityReport> {
  const { cluster, records, requests, rehearsals, vocabSize, onProgress } = options;
  const graded = await calibrate(cluster, records, options);
  onProgress(`measured ${graded.steps.length} graded steps`);
  const rehearsalOf = (i: number) => rehearse(cluster, records, rehearsals[i], { vocabSize, salt: `rehearsal ${i}` });
  const rehearsed = [await rehearsalOf(0)];
  const before = records.map((record) => readStepRecord(record).length);
  const served = await serveTrace(cluster, requests, { vocabSize, salt: 'fidelity' });
  const steps = records.map((record, i) => readStepRecord(record, before[i]));
  onProgress(`served ${served.length} requests live`);
  rehearsed.push(await rehearsalOf(1));
  const calibration = fitCalibration(graded, rehearsed);
  const simulations = Array.from({ length: simulatedRuns }, (_, seed) =>
    simulateTrace({ ...options, calibration }, requests, { seed }),
  );
  const came = [...served].sort((a, b) => a.index - b.index);
  const arrivals = requests.map((request, i) => ({ ...request, arrivalUs: came[i].arrivalUs }));
  const replay = simulateTrace({ ...options, calibration }, arrivals, { recorded: steps });
  const [live, simulated, replayed] = [served, simulations.flatMap((one) => one.served), replay.served].map(figuresOf);
  return {
    ...{ requests: requests.length, calibration: figuresOfCalibration(calibration), live, simulated, replayed },
    ttftRatio: round(simulated.ttftMs / live.ttftMs),
    tbtRatio: round(simulated.tbtMs / live.tbtMs),
    samePlacement: samePlacement(served, replay.served),
    hitRatioDifference: Math.abs(live.hitRatioTokens - replayed.hitRatioTokens),
    steps: steps.reduce((sum, all) => sum + all.length, 0),
    matchedSteps: replay.matchedSteps,
  };
}

function figuresOfCalibration({ steps, measured, admitUs }: Calibration): CalibrationFigures {
  const quartiles = (values: Float64Array) => [25, 50, 75].map((p) => round(percentile([...values], p)));
  const figures = ({ times, alone, beside }: MeasuredKind): KindFigures => ({
    ...{ times, alone: [alone.length, ...quartiles(alone)], beside: [beside.length, ...quartiles(beside)] },
  });
  return { steps, decode: figures(measured.decode), prompt: figures(measured.prompt), admitUs };
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

/** Share of requests that went to the same instance. */
function samePlacement(a: readonly Served[], b: readonly Served[]): number {
  const places = new Map(b.map(({ index, instance }) => [index, instance]));
  return a.filter(({ index, instance }) => instance !== undefined && places.get(index) === instance).length / a.length;
}
