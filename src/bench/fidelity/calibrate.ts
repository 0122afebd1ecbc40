// What a step costs on this machine: graded prompts and decodes on all instances at once, and five times fitted to their steps.
import type { ClusterPort, InferencePort } from '../../cluster/ports.ts';
import { type RecordedStep, readStepRecord } from '../../live/step-record.ts';
import { fitLinearCost, type LinearTimes } from '../../policy/cost/linear-cost.ts';
import type { TraceRequest } from '../../trace/request.ts';
import { median } from '../statistics.ts';
import { type Served, serveTrace } from './live-run.ts';

export interface Calibration {
  readonly times: LinearTimes;
  /** Between two steps of an instance that has work: part of `times.stepUs`. */
  readonly betweenUs: number;
  readonly steps: number;
  /** Median relative error of the fit over its own steps. */
  readonly fitError: number;
  /** Prefills that were seen, in order: what a conductor has learned from. */
  readonly prefills: readonly { readonly computedTokens: number; readonly us: number }[];
}

/** Gaps that are longer are waits for requests. */
export const gapUsMax = 2000;

const prompts = [48, 128, 256, 512, 1024];
const batches = [1, 2, 4, 8];
const decoded = 24;

/** The longest prompt that is tried. */
export const calibrationContext = Math.max(...prompts) + decoded;

/** @param records (instances): where steps are written down */
export async function calibrate(
  cluster: InferencePort & ClusterPort,
  records: readonly SharedArrayBuffer[],
  { vocabSize, contextTokens }: { readonly vocabSize: number; readonly contextTokens: number },
): Promise<Calibration> {
  const served: Served[] = [];
  let round = 0;
  const run = async (requests: number, inputTokens: number, outputTokens: number): Promise<void> => {
    const all = Array.from({ length: requests }, (_, index) => alone(index, inputTokens, outputTokens));
    served.push(...(await serveTrace(cluster, all, { vocabSize, salt: `calibration ${round++}` })));
  };
  // What comes first finds cold caches: it is not counted.
  await run(records.length, 64, 8);
  const skip = records.map((record) => readStepRecord(record).length);
  for (let repeat = 0; repeat < 2; repeat++) {
    for (const tokens of prompts) if (tokens + decoded <= contextTokens) await run(records.length, tokens, 1);
    for (const batch of batches) await run(batch * records.length, 40 * batch, decoded);
  }
  const steps = records.flatMap((record, i) => readStepRecord(record, skip[i]));
  const betweenUs = median(records.flatMap((record, i) => gapsUs(readStepRecord(record, skip[i])))) ?? 0;
  const kernels = fitLinearCost(steps);
  const times = { ...kernels, stepUs: kernels.stepUs + betweenUs };
  const prefills = served.map(({ inputTokens, cachedTokens, ttftUs, startedUs }) => ({
    computedTokens: inputTokens - cachedTokens,
    us: ttftUs - startedUs,
  }));
  return { times, betweenUs, steps: steps.length, fitError: errorOf(kernels, steps), prefills };
}

/** Nobody shares its blocks. */
function alone(index: number, inputTokens: number, outputTokens: number): TraceRequest {
  return { index, arrivalUs: 0, inputTokens, outputTokens, blocks: new Int32Array(0) };
}

/** From the end of one step to the start of the next, where that was not a wait. */
function gapsUs(steps: readonly RecordedStep[]): readonly number[] {
  return steps
    .slice(1)
    .map(({ startedUs }, i) => startedUs - steps[i].startedUs - steps[i].us)
    .filter((us) => us >= 0 && us <= gapUsMax);
}

function errorOf(
  { stepUs, rowUs, keyUs, decodeRowUs, logitRowUs }: LinearTimes,
  steps: readonly RecordedStep[],
): number {
  const errors = steps.map(({ shape: { rows, keyRows, decodeRows, logitRows }, us }) => {
    const fitted = stepUs + rows * rowUs + keyRows * keyUs + decodeRows * decodeRowUs + logitRows * logitRowUs;
    return Math.abs(fitted / us - 1);
  });
  return median(errors) ?? 0;
}
