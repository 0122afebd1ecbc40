// How long a group of instances takes for one prompt when each runs a range of the layers and passes chunks on (Mooncake, section 5.1).
import type { StepPredictor } from '../cost/step-shape.ts';

/** Smallest chunk that is tried unless given: with fewer rows reading weights bounds a step. */
const chunkTokensMinDefault = 512;

export interface PipelinePlan {
  readonly chunkTokens: number;
  /** Until the last stage has done the last chunk. */
  readonly prefillUs: number;
  /** Of the member that works longest. */
  readonly workUs: number;
}

/** Of a prompt that a group is to compute. */
export interface GroupPrompt {
  readonly tokens: number;
  /** Leading ones whose keys and values all members will have. */
  readonly cachedTokens: number;
  readonly members: number;
  /** Prefills at all members together that wait besides. */
  readonly others: number;
}

/** Members that are alike, with whole layers. */
export class PipelinedPrefill {
  readonly #steps: Pick<StepPredictor, 'predictStageUs'>;
  readonly #chunkTokensMax: number;
  readonly #chunkTokensMin: number;
  readonly #hopUs: (tokens: number) => number;
  readonly #othersUs: number;
  readonly #shape = { rows: 0, keyRows: 0, decodeRows: 0, decodeKeys: 0, logitRows: 0 };

  /** @param hopUs until the outputs of a chunk's rows are at the next member @param othersUs for how long a member runs a step of others that the first chunk finds there */
  constructor(
    steps: Pick<StepPredictor, 'predictStageUs'>,
    chunkTokensMax: number,
    hopUs: (tokens: number) => number,
    othersUs: number,
    chunkTokensMin = chunkTokensMinDefault,
  ) {
    this.#steps = steps;
    this.#chunkTokensMax = chunkTokensMax;
    this.#chunkTokensMin = chunkTokensMin;
    this.#hopUs = hopUs;
    this.#othersUs = othersUs;
  }

  /** With the chunks, halves of one another in size, that are done first; smaller chunks are more work, and others wait for that. */
  plan(prompt: GroupPrompt): PipelinePlan {
    let best: PipelinePlan | undefined;
    const costUs = ({ prefillUs, workUs }: PipelinePlan) => prefillUs + prompt.others * workUs;
    for (
      let chunk = this.#chunkTokensMax;
      best === undefined || chunk >= this.#chunkTokensMin;
      chunk = Math.floor(chunk / 2)
    ) {
      const plan = this.#with(chunk, prompt);
      if (best === undefined || costUs(plan) < costUs(best)) best = plan;
    }
    return best;
  }

  /** Chunk by chunk: a member begins one when it has done the one before, and the member before it this one. */
  #with(chunkTokens: number, { tokens, cachedTokens, members, others }: GroupPrompt): PipelinePlan {
    const shape = this.#shape;
    const endsUs = new Float64Array(members);
    const workUs = new Float64Array(members);
    for (let from = cachedTokens; from < tokens; from += chunkTokens) {
      const rows = Math.min(chunkTokens, tokens - from);
      shape.rows = rows;
      shape.keyRows = rows * from + (rows * (rows + 1)) / 2;
      shape.logitRows = Number(from + rows === tokens);
      const hopUs = this.#hopUs(rows) + (from === cachedTokens && others > 0 ? this.#othersUs : 0);
      for (let index = 0; index < members; index++) {
        const us = this.#steps.predictStageUs(shape, { index, stages: members });
        const comesUs = index === 0 ? 0 : endsUs[index - 1] + hopUs;
        endsUs[index] = Math.max(endsUs[index], comesUs) + us;
        workUs[index] = workUs[index] + us;
      }
    }
    return { chunkTokens, prefillUs: endsUs[members - 1], workUs: Math.max(...workUs) };
  }
}
