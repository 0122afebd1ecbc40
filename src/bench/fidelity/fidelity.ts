// How true the simulator is: a load served live on this machine, and the same load simulated with the same configuration.
import type { ClusterPort, InferencePort } from '../../cluster/ports.ts';
import { readStepRecord } from '../../live/step-record.ts';
import type { TraceRequest } from '../../trace/request.ts';
import { meanOfLongest } from '../../util/longest-gaps.ts';
import { median, round } from '../statistics.ts';
import { type Calibration, calibrate } from './calibrate.ts';
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
  readonly onProgress: (line: string) => void;
}

/** Medians over requests, and the share of prompt tokens that was found in caches. */
interface Figures {
  readonly ttftMs: number;
  readonly tbtMs: number;
  readonly hitRatioTokens: number;
}

export interface FidelityReport {
  readonly requests: number;
  readonly calibration: Omit<Calibration, 'prefills'>;
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

export async function benchFidelity(options: FidelityBench): Promise<FidelityReport> {
  const { cluster, records, requests, vocabSize, onProgress } = options;
  const calibration = await calibrate(cluster, records, options);
  onProgress(`times fitted to ${calibration.steps} steps, median error ${(100 * calibration.fitError).toFixed(1)} %`);
  const before = records.map((record) => readStepRecord(record).length);
  const served = await serveTrace(cluster, requests, { vocabSize, salt: 'fidelity' });
  const steps = records.map((record, i) => readStepRecord(record, before[i]));
  onProgress(`served ${served.length} requests live`);
  const meant = simulateTrace({ ...options, calibration }, requests);
  const came = [...served].sort((a, b) => a.index - b.index);
  const arrivals = requests.map((request, i) => ({ ...request, arrivalUs: came[i].arrivalUs }));
  const replay = simulateTrace({ ...options, calibration }, arrivals, steps);
  const [live, simulated, replayed] = [served, meant.served, replay.served].map(figuresOf);
  const { prefills: _, ...fitted } = calibration;
  return {
    ...{ requests: requests.length, calibration: fitted, live, simulated, replayed },
    ttftRatio: round(simulated.ttftMs / live.ttftMs),
    tbtRatio: round(simulated.tbtMs / live.tbtMs),
    samePlacement: samePlacement(served, replay.served),
    hitRatioDifference: Math.abs(live.hitRatioTokens - replayed.hitRatioTokens),
    steps: steps.reduce((sum, all) => sum + all.length, 0),
    matchedSteps: replay.matchedSteps,
  };
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
