// Graded prompts and decodes, served to learn what a machine takes for them: one at a time, and on all instances at once.
import type { ClusterPort, InferencePort } from '../../cluster/ports.ts';
import { readStepRecord } from '../../live/step-record.ts';
import type { TraceRequest } from '../../trace/request.ts';
import { type Measurements, measure } from './fit.ts';
import { type Served, serveTrace } from './live-run.ts';

const prompts = [48, 128, 256, 512, 1024];
const batches = [2, 4, 8];
/** Short, so that many sequences have no more keys than one long prompt: rows and keys are told apart. */
const batchPrompt = 64;
const decoded = 24;
/** Rounds of all that: so many at least, and more while they are short. */
const roundsMin = 2;
const roundsMax = 8;

/** The longest prompt that is tried. */
export const calibrationContext = Math.max(...prompts) + decoded;

export interface CalibrationOptions {
  readonly vocabSize: number;
  readonly contextTokens: number;
  /** Rounds begin for so long. */
  readonly calibrationMs: number;
}

/** @param records (instances): where steps are written down */
export async function calibrate(
  cluster: InferencePort & ClusterPort,
  records: readonly SharedArrayBuffer[],
  { vocabSize, contextTokens, calibrationMs }: CalibrationOptions,
): Promise<Measurements> {
  const served: Served[] = [];
  const lone: Served[] = [];
  let round = 0;
  const run = async (requests: number, inputTokens: number): Promise<void> => {
    const all = Array.from({ length: requests }, (_, index) => alone(index, inputTokens));
    const ended = await serveTrace(cluster, all, { vocabSize, salt: `calibration ${round++}` });
    served.push(...ended);
    if (requests === 1) lone.push(...ended);
  };
  // What comes first finds cold caches: its steps are not counted.
  await run(records.length, batchPrompt);
  const skip = records.map((record) => readStepRecord(record).length);
  const start = performance.now();
  for (let i = 0; i < roundsMax && (i < roundsMin || performance.now() - start < calibrationMs); i++) {
    for (const tokens of prompts.filter((tokens) => tokens + decoded <= contextTokens)) {
      await run(1, tokens);
      if (records.length > 1) await run(records.length, tokens);
    }
    for (const batch of batches) await run(batch * records.length, batchPrompt);
  }
  return measure(
    records.map((record, i) => readStepRecord(record, skip[i])),
    { served, lone },
  );
}

/** Another load of the kind that is to be simulated: how steps vary that follow one another as they do there. */
export async function rehearse(
  cluster: InferencePort & ClusterPort,
  records: readonly SharedArrayBuffer[],
  requests: readonly TraceRequest[],
  { vocabSize, salt }: { readonly vocabSize: number; readonly salt: string },
): Promise<Measurements> {
  const skip = records.map((record) => readStepRecord(record).length);
  const served = await serveTrace(cluster, requests, { vocabSize, salt });
  return measure(
    records.map((record, i) => readStepRecord(record, skip[i])),
    { served, lone: [] },
  );
}

/** Nobody shares its blocks. */
function alone(index: number, inputTokens: number): TraceRequest {
  return { index, arrivalUs: 0, inputTokens, outputTokens: decoded, blocks: new Int32Array(0) };
}
