// Predicted and actual latencies of a request.
import type { RequestTrace } from '../../core/protocol/request-trace.ts';

/** Undefined: not predicted, or not reached. */
export interface Outcome {
  readonly predictedUs: number | undefined;
  readonly actualUs: number | undefined;
}

/** Time from submission to the first token. */
export function ttftOf({ placements, submittedUs, firstTokenUs }: RequestTrace): Outcome {
  const actualUs = firstTokenUs === undefined ? undefined : firstTokenUs - submittedUs;
  const [first] = placements;
  return { predictedUs: first && predictedTtftUs(first), actualUs };
}

/** Mean time between tokens. */
export function tbtOf({ placements, firstTokenUs, lastTokenUs, outputTokens }: RequestTrace): Outcome {
  const gaps = outputTokens - 1;
  const isKnown = firstTokenUs !== undefined && lastTokenUs !== undefined && gaps > 0;
  const actualUs = isKnown ? (lastTokenUs - firstTokenUs) / gaps : undefined;
  return { predictedUs: placements.at(0)?.predicted?.tbtUs, actualUs };
}

/** The prediction of admission, which includes the hand-off, or else wait plus prefill. */
export function predictedTtftUs({
  waitUs,
  prefillUs,
  predicted,
}: RequestTrace['placements'][number]): number | undefined {
  if (predicted !== undefined) return predicted.ttftUs;
  return waitUs === undefined || prefillUs === undefined ? undefined : waitUs + prefillUs;
}
