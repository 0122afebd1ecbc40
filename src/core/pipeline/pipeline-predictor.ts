// Predicts the time of a prefill by a pipeline group (Mooncake, section 5.1).

import { type LayerRange, rangeAt, type StepPredictor } from '../protocol/step-shape.ts';

/** Default of the smallest chunk: with fewer rows, reading the weights bounds a step. */
const chunkTokensMinDefault = 512;

export interface PipelinePlan {
  readonly chunkTokens: number;
  /** Until the last member has computed the last chunk. */
  readonly prefillUs: number;
  /** Compute time of the busiest member. */
  readonly workUs: number;
}

/** A prompt for a group. */
export interface GroupPrompt {
  readonly tokens: number;
  /** Leading tokens that all members have cached or receive. */
  readonly cachedTokens: number;
  readonly members: number;
  /** Other prefills that wait at the members. */
  readonly others: number;
}

/** Members with their layers. */
export interface PipelineMembers {
  /** (members) */
  readonly predictors: readonly PipelinePredictor[];
  /** (members): number of layers of each; undefined: equal shares. */
  readonly layers: readonly number[] | undefined;
}

/** Times of the steps of a range of layers, and of the transfers between members. */
export interface PipelineTimes {
  readonly steps: Pick<StepPredictor, 'predictStageUs'>;
  /** Layers of the model. */
  readonly layers: number;
  readonly chunkTokensMax: number;
  /** Until the next member has the activations of a chunk. */
  readonly hopUs: (tokens: number) => number;
  /** Time of a step of other requests that the first chunk waits for at a member. */
  readonly othersUs: number;
  readonly chunkTokensMin?: number;
}

/** Predictions for instances of one kind. */
export class PipelinePredictor {
  readonly #times: PipelineTimes;
  readonly #shape = { rows: 0, keyRows: 0, decodeRows: 0, decodeKeys: 0, logitRows: 0 };

  constructor(times: PipelineTimes) {
    this.#times = times;
  }

  /** Layers of the model. */
  get layers(): number {
    return this.#times.layers;
  }

  /** Time of one layer for the longest chunk: it ranks instances by speed. */
  get layerUs(): number {
    const { chunkTokensMax: rows, layers } = this.#times;
    const shape = { rows, keyRows: (rows * (rows + 1)) / 2, decodeRows: 0, decodeKeys: 0, logitRows: 0 };
    return this.#times.steps.predictStageUs(shape, { index: 0, stages: 1 }) / layers;
  }

  /** For members of this kind alone. */
  plan(prompt: GroupPrompt): PipelinePlan {
    return planGroup({ predictors: Array.from({ length: prompt.members }, () => this), layers: undefined }, prompt);
  }

  /** Halves the chunk each time. Smaller chunks end earlier, but are more work, which delays other prompts. */
  planFor(group: PipelineMembers, prompt: GroupPrompt): PipelinePlan {
    const { chunkTokensMax, chunkTokensMin = chunkTokensMinDefault } = this.#times;
    const ranges = rangesOf(group);
    let best: PipelinePlan | undefined;
    const costUs = ({ prefillUs, workUs }: PipelinePlan) => prefillUs + prompt.others * workUs;
    for (let chunk = chunkTokensMax; best === undefined || chunk >= chunkTokensMin; chunk = Math.floor(chunk / 2)) {
      const plan = this.#planWith(chunk, prompt, group.predictors, ranges);
      if (best === undefined || costUs(plan) < costUs(best)) best = plan;
    }
    return best;
  }

  /** A member begins a chunk when it has computed the one before, and when the member before it has computed this one. */
  #planWith(
    chunkTokens: number,
    { tokens, cachedTokens, others }: GroupPrompt,
    predictors: readonly PipelinePredictor[],
    ranges: readonly LayerRange[],
  ): PipelinePlan {
    const shape = this.#shape;
    const { hopUs, othersUs } = this.#times;
    const members = ranges.length;
    const endsUs = new Float64Array(members);
    const workUs = new Float64Array(members);
    for (let from = cachedTokens; from < tokens; from += chunkTokens) {
      const rows = Math.min(chunkTokens, tokens - from);
      shape.rows = rows;
      shape.keyRows = rows * from + (rows * (rows + 1)) / 2;
      shape.logitRows = Number(from + rows === tokens);
      const arrivalUs = hopUs(rows) + (from === cachedTokens && others > 0 ? othersUs : 0);
      for (let index = 0; index < members; index++) {
        const us = predictors[index].#times.steps.predictStageUs(shape, ranges[index]);
        const arrivesUs = index === 0 ? 0 : endsUs[index - 1] + arrivalUs;
        endsUs[index] = Math.max(endsUs[index], arrivesUs) + us;
        workUs[index] = workUs[index] + us;
      }
    }
    return { chunkTokens, prefillUs: endsUs[members - 1], workUs: Math.max(...workUs) };
  }
}

/** The maximum chunk and the transfer times are those of the first member. */
export function planGroup(group: PipelineMembers, prompt: GroupPrompt): PipelinePlan {
  return group.predictors[0].planFor(group, prompt);
}

function rangesOf({ predictors: { length: stages }, layers }: PipelineMembers): readonly LayerRange[] {
  return Array.from({ length: stages }, (_, index) => rangeAt(index, stages, layers));
}
