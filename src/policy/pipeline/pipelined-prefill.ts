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
  readonly #othersUs: number;
  readonly #shape = { rows: 0, keyRows: 0, decodeRows: 0, decodeKeys: 0, logitRows: 0 };

  /** @param hopUs until the outputs of a chunk's rows are at the next member @param othersUs for how long a member runs a step of others that the first chunk finds there */
  constructor(
    steps: Pick<StepPredictor, 'predictUs'>,
    chunkTokensMax: number,
    hopUs: (tokens: number) => number,
    othersUs: number,
  ) {
    this.#steps = steps;
    this.#chunkTokensMax = chunkTokensMax;
    this.#hopUs = hopUs;
    this.#othersUs = othersUs;
  }

  /**
   * With the chunks, halves of one another in size, that are done first; smaller chunks are more work, and others wait for that.
   * @param others prefills at all members together that wait besides
   */
  plan(tokens: number, members: number, others = 0): PipelinePlan {
    let best: PipelinePlan | undefined;
    const costUs = ({ prefillUs, workUs }: PipelinePlan) => prefillUs + others * workUs;
    for (
      let chunk = this.#chunkTokensMax;
      best === undefined || chunk >= chunkTokensMin;
      chunk = Math.floor(chunk / 2)
    ) {
      const plan = this.#with(chunk, tokens, members, others > 0 ? this.#othersUs : 0);
      if (best === undefined || costUs(plan) < costUs(best)) best = plan;
    }
    return best;
  }

  /** Later chunks take longer: all of them at the first stage, then the longest at the others. */
  #with(chunkTokens: number, tokens: number, members: number, othersUs: number): PipelinePlan {
    const shape = this.#shape;
    let workUs = 0;
    let longestUs = 0;
    for (let from = 0; from < tokens; from += chunkTokens) {
      const rows = Math.min(chunkTokens, tokens - from);
      shape.rows = rows;
      shape.keyRows = rows * from + (rows * (rows + 1)) / 2;
      shape.logitRows = Number(from + rows === tokens);
      const us = this.#steps.predictUs(shape) / members;
      workUs += us;
      longestUs = Math.max(longestUs, us);
    }
    const hopUs = othersUs + this.#hopUs(Math.min(chunkTokens, tokens));
    return { chunkTokens, prefillUs: workUs + (members - 1) * (longestUs + hopUs), workUs };
  }
}
