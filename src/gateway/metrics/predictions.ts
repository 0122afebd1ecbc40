// What was predicted of a request when it was placed, and what it turned out to be.
import type { RequestAccount } from '../../core/protocol/request-trace.ts';

/** Undefined: nobody has predicted it, or it has not happened. */
export interface Outcome {
  readonly predictedUs: number | undefined;
  readonly actualUs: number | undefined;
}

/** First token since submit. */
export function ttftOf({ placements, submittedUs, firstTokenUs }: RequestAccount): Outcome {
  const actualUs = firstTokenUs === undefined ? undefined : firstTokenUs - submittedUs;
  const [first] = placements;
  return { predictedUs: first && predictedTtftUs(first), actualUs };
}

/** Mean gap between tokens. */
export function tbtOf({ placements, firstTokenUs, lastTokenUs, outputTokens }: RequestAccount): Outcome {
  const gaps = outputTokens - 1;
  const isKnown = firstTokenUs !== undefined && lastTokenUs !== undefined && gaps > 0;
  const actualUs = isKnown ? (lastTokenUs - firstTokenUs) / gaps : undefined;
  return { predictedUs: placements.at(0)?.predicted?.tbtUs, actualUs };
}

/** As admission saw it, which counts the hand-off; else wait and prefill. */
export function predictedTtftUs({
  waitUs,
  prefillUs,
  predicted,
}: RequestAccount['placements'][number]): number | undefined {
  if (predicted !== undefined) return predicted.ttftUs;
  return waitUs === undefined || prefillUs === undefined ? undefined : waitUs + prefillUs;
}
