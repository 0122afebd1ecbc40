// How long a group of instances takes for one prompt when each runs a range of the layers and passes chunks on (Mooncake, section 5.1).
import { type LayerRange, rangeAt, type StepPredictor } from '../protocol/step-shape.ts';

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

/** Members, each with some of the layers. */
export interface PipelineMembers {
  /** (members) */
  readonly prefills: readonly PipelinedPrefill[];
  /** (members): how many layers each runs; undefined: as many. */
  readonly layers: readonly number[] | undefined;
}

/** How a pipeline predicts: steps of ranges of the layers, and the ways between. */
export interface PipelineTimes {
  readonly steps: Pick<StepPredictor, 'predictStageUs'>;
  /** Of the model. */
  readonly layers: number;
  readonly chunkTokensMax: number;
  /** Until the outputs of a chunk's rows are at the next member. */
  readonly hopUs: (tokens: number) => number;
  /** For how long a member runs a step of others that the first chunk finds there. */
  readonly othersUs: number;
  readonly chunkTokensMin?: number;
}

/** What instances of a kind do in groups. */
export class PipelinedPrefill {
  readonly #times: PipelineTimes;
  readonly #shape = { rows: 0, keyRows: 0, decodeRows: 0, decodeKeys: 0, logitRows: 0 };

  constructor(times: PipelineTimes) {
    this.#times = times;
  }

  /** Of the model. */
  get layers(): number {
    return this.#times.layers;
  }

  /** What a layer takes for the longest chunk, which tells those that compute faster from others. */
  get layerUs(): number {
    const { chunkTokensMax: rows, layers } = this.#times;
    const shape = { rows, keyRows: (rows * (rows + 1)) / 2, decodeRows: 0, decodeKeys: 0, logitRows: 0 };
    return this.#times.steps.predictStageUs(shape, { index: 0, stages: 1 }) / layers;
  }

  /** With members that are alike. */
  plan(prompt: GroupPrompt): PipelinePlan {
    return planTogether({ prefills: Array.from({ length: prompt.members }, () => this), layers: undefined }, prompt);
  }

  /** With the chunks, halves of one another in size, that are done first; smaller chunks are more work, and others wait for that. */
  planFor(team: PipelineMembers, prompt: GroupPrompt): PipelinePlan {
    const { chunkTokensMax, chunkTokensMin = chunkTokensMinDefault } = this.#times;
    const ranges = rangesOf(team);
    let best: PipelinePlan | undefined;
    const costUs = ({ prefillUs, workUs }: PipelinePlan) => prefillUs + prompt.others * workUs;
    for (let chunk = chunkTokensMax; best === undefined || chunk >= chunkTokensMin; chunk = Math.floor(chunk / 2)) {
      const plan = this.#with(chunk, prompt, team.prefills, ranges);
      if (best === undefined || costUs(plan) < costUs(best)) best = plan;
    }
    return best;
  }

  /** Chunk by chunk: a member begins one when it has done the one before, and the member before it this one. */
  #with(
    chunkTokens: number,
    { tokens, cachedTokens, others }: GroupPrompt,
    prefills: readonly PipelinedPrefill[],
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
      const comesAfterUs = hopUs(rows) + (from === cachedTokens && others > 0 ? othersUs : 0);
      for (let index = 0; index < members; index++) {
        const us = prefills[index].#times.steps.predictStageUs(shape, ranges[index]);
        const comesUs = index === 0 ? 0 : endsUs[index - 1] + comesAfterUs;
        endsUs[index] = Math.max(endsUs[index], comesUs) + us;
        workUs[index] = workUs[index] + us;
      }
    }
    return { chunkTokens, prefillUs: endsUs[members - 1], workUs: Math.max(...workUs) };
  }
}

/** The first one says how long chunks may be, and what the ways between take. */
export function planTogether(team: PipelineMembers, prompt: GroupPrompt): PipelinePlan {
  return team.prefills[0].planFor(team, prompt);
}

function rangesOf({ prefills: { length: stages }, layers }: PipelineMembers): readonly LayerRange[] {
  return Array.from({ length: stages }, (_, index) => rangeAt(index, stages, layers));
}
