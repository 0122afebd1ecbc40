// How long a group of instances takes for one prompt when each runs a range of the layers and passes chunks on (Mooncake, section 5.1).
import type { StepPredictor } from '../cost/step-shape.ts';

/** Smallest chunk that is tried: with fewer rows reading weights bounds a step. */
const chunkTokensMin = 512;

export interface PipelinePlan {
  readonly chunkTokens: number;
  /** Until the last stage has done the last chunk. */
  readonly prefillUs: number;
  /** Of every member. */
  readonly workUs: number;
}

/** Members that are alike, each with as many layers as any other. */
export class PipelinedPrefill {
  readonly #steps: Pick<StepPredictor, 'predictUs'>;
  readonly #chunkTokensMax: number;
  readonly #hopUs: (tokens: number) => number;
  readonly #shape = { rows: 0, keyRows: 0, decodeRows: 0, decodeKeys: 0, logitRows: 0 };

  /** @param hopUs until the outputs of a chunk's rows are at the next member */
  constructor(steps: Pick<StepPredictor, 'predictUs'>, chunkTokensMax: number, hopUs: (tokens: number) => number) {
    this.#steps = steps;
    this.#chunkTokensMax = chunkTokensMax;
    this.#hopUs = hopUs;
  }

  /** With the chunks, halves of one another in size, that are done first. */
  plan(tokens: number, members: number): PipelinePlan {
    let best: PipelinePlan | undefined;
    for (
      let chunk = this.#chunkTokensMax;
      best === undefined || chunk >= chunkTokensMin;
      chunk = Math.floor(chunk / 2)
    ) {
      const plan = this.#with(chunk, tokens, members);
      if (best === undefined || plan.prefillUs < best.prefillUs) best = plan;
    }
    return best;
  }

  /** Later chunks take longer: all of them at the first stage, then the longest at the others. */
  #with(chunkTokens: number, tokens: number, members: number): PipelinePlan {
    const shape = this.#shape;
    let workUs = 0;
    let longestUs = 0;
    for (let from = 0; from < tokens; from += chunkTokens) {
      const rows = Math.min(chunkTokens, tokens - from);
      shape.rows = rows;
      shape.keyRows = rows * from + (rows * (rows + 1)) / 2;
      const us = this.#steps.predictUs(shape) / members;
      workUs += us;
      longestUs = Math.max(longestUs, us);
    }
    const hopUs = this.#hopUs(Math.min(chunkTokens, tokens));
    return { chunkTokens, prefillUs: workUs + (members - 1) * (longestUs + hopUs), workUs };
  }
}
