// Calibration load: prompts and decodes of graded sizes, one at a time and on all instances at once.
import type { TraceRequest } from '../../trace/request.ts';
import { type Measurements, measure } from './fit.ts';
import type { History, HistoryPart } from './history.ts';

const prompts = [48, 128, 256, 512, 1024];
const batches = [2, 4, 8];
/** Short, so that many sequences have few keys: this separates the costs of rows and keys. */
const batchPrompt = 64;
const decoded = 24;
/** Smallest and largest number of rounds; their time decides between them. */
const roundsMin = 2;
const roundsMax = 8;

/** The longest calibration prompt. */
export const calibrationContext = Math.max(...prompts) + decoded;

export interface CalibrationOptions {
  readonly contextTokens: number;
  /** Time during which rounds start. */
  readonly calibrationMs: number;
}

export async function calibrate(
  history: History,
  { contextTokens, calibrationMs }: CalibrationOptions,
): Promise<Measurements> {
  const parts: HistoryPart[] = [];
  const { instances } = history;
  const run = async (requests: number, inputTokens: number): Promise<void> => {
    const part = await history.serve(Array.from({ length: requests }, (_, index) => alone(index, inputTokens)));
    parts.push(part);
  };
  // The first steps run with cold CPU caches and are not counted.
  await run(instances, batchPrompt);
  parts.length = 0;
  const start = performance.now();
  for (let i = 0; i < roundsMax && (i < roundsMin || performance.now() - start < calibrationMs); i++) {
    for (const tokens of prompts.filter((tokens) => tokens + decoded <= contextTokens)) {
      await run(1, tokens);
      if (instances > 1) await run(instances, tokens);
    }
    for (const batch of batches) await run(batch * instances, batchPrompt);
  }
  const steps = Array.from({ length: instances }, (_, i) => parts.flatMap((part) => part.steps[i]));
  return measure(
    steps,
    parts.flatMap(({ served }) => served),
  );
}

/** A request that shares no blocks with another. */
function alone(index: number, inputTokens: number): TraceRequest {
  return { index, arrivalUs: 0, inputTokens, outputTokens: decoded, blocks: new Int32Array(0) };
}
