// Mean time between tokens of an output that shares the steps of its instance with prefills of later prompts.

/** Prompts that reach an instance, by recent ones. */
export interface LaterPrefills {
  /** Prompts per microsecond. */
  readonly perUs: number;
  /** Mean predicted time of a prefill. */
  readonly workUs: number;
}

export interface SharedDecode {
  /** Step of the decoding batch alone. */
  readonly stepUs: number;
  /** Step of that batch with as many rows of prefill as fit beside it. */
  readonly sharedStepUs: number;
  /** Gaps between tokens. */
  readonly gaps: number;
}

const iterationsMax = 16;

/**
 * Prompts that arrive during the output are computed in its steps. Their number is the median of a Poisson distribution: 0 for most short
 * outputs beside few prompts. Each step has prefill up to the budget at most.
 */
export function meanTbtUs({ stepUs, sharedStepUs, gaps }: SharedDecode, later: LaterPrefills): number {
  const mostUs = gaps * Math.max(stepUs, sharedStepUs);
  let decodeUs = gaps * stepUs;
  for (let i = 0; i < iterationsMax; i++) {
    const prompts = poissonMedian(later.perUs * decodeUs);
    const longerUs = Math.min(mostUs, gaps * stepUs + prompts * later.workUs);
    if (longerUs <= decodeUs) break;
    decodeUs = longerUs;
  }
  return decodeUs / gaps;
}

/** Within one of the median (Choi, 1994): it lies between mean - ln 2 and mean + 1/3. */
function poissonMedian(mean: number): number {
  return mean < Math.LN2 ? 0 : Math.max(0, Math.floor(mean + 1 / 3 - 0.02 / mean));
}
