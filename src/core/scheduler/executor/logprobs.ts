// Extracts the log-probabilities of some rows from the result of a step.

import { type StepResult, topLogprobsMax } from '../../../util/step.ts';
import type { TokenLogprobs } from '../../protocol/ports.ts';

/** Rows `from..from+count`, `width` alternatives each, copied. */
export function logprobsOf(result: StepResult, from: number, count: number, width: number): TokenLogprobs {
  const topTokens = new Int32Array(count * width);
  const topLogprobs = new Float32Array(count * width);
  for (let i = 0; i < count; i++) {
    const at = (from + i) * topLogprobsMax;
    topTokens.set(result.topTokens.subarray(at, at + width), i * width);
    topLogprobs.set(result.topLogprobs.subarray(at, at + width), i * width);
  }
  return { logprobs: result.logprobs.slice(from, from + count), width, topTokens, topLogprobs };
}
