// One engine step as plain data: what the instance machine plans, what an executor runs and gives back.

/** Tokens of one page and of one rBlock. */
export const pageTokens = 32;

/** Most alternatives that can be asked for beside a sampled token. */
export const topLogprobsMax = 20;

/** Layers that share a block table. A window group's layers see the last `window` tokens only, their own included. */
export interface LayerGroup {
  readonly layers: number;
  readonly window: number | undefined;
}

/** Pages of one layer group. An rBlock is `pageTokens` tokens of all layers of the group: one page for each layer. */
export interface StepGroup {
  /** (rBlocks of the pool, layers of the group): page ids. Shared, not copied. */
  readonly pageTable: Int32Array;
  readonly layers: number;
  /** rBlock ids of all sequences of the step, one sequence after another; `away` stands for a block that `Step.remote` lists. */
  readonly blocks: Int32Array;
  /** (sequences): where a sequence's ids begin in `blocks`. */
  readonly blockStart: Int32Array;
  /**
   * (sequences): absolute index (position / pageTokens) of a sequence's first listed block; every block from it to that of the sequence's last
   * position is listed. 0 without a window; else firstBlock * pageTokens <= max(0, first row's position - window + 1).
   */
  readonly firstBlock: Int32Array;
}

/** Stands in a block table for an rBlock that lies at a creditor. */
export const away = -1;

/** Tokens of one attention range, the least that a creditor holds of a sequence: whole ranges move. */
export const rangeTokens = 256;

/**
 * Whole ranges of a sequence whose keys and values lie in another pool: its instance's guest room computes attention over them. The range
 * of the step's first row, and what follows it, is always at home. Layer groups with a window have none.
 */
export interface RemoteKeys {
  /** Place of the sequence in the step. */
  readonly sequence: number;
  readonly group: number;
  /** Absolute index of the first block; a multiple of the blocks of a range. */
  readonly firstBlock: number;
  /** The creditor's guest room: an integer, valid in every thread of the process. */
  readonly room: number;
  /** What the creditor lent them as. */
  readonly loan: number;
  /** Its rBlock ids, from `firstBlock` on; whole ranges. */
  readonly blocks: Int32Array;
}

/** Blocks in a sequence's list whose contents are still on their way, layer by layer: the step waits for each layer's before its attention. */
export interface ArrivingKeys {
  /** Place of the sequence in the step. */
  readonly sequence: number;
  /** Native arrivals: an integer, valid in every thread of the process. Those that are freed do not come. */
  readonly arrivals: number;
  /** From when the step begins: what is not there by then does not come. */
  readonly withinMs: number;
}

/** Rows of the residual stream, float32 and one after another, across pages of a pool that is there for them. */
export interface RowPages {
  /** An integer, valid in every thread of the process. */
  readonly pool: number;
  /** As many as the rows take, at least. */
  readonly pages: Int32Array;
}

/** Rows that may still be on their way: the step waits for them before anything else. All its sequences are lost where they do not come. */
export interface ComingRows extends RowPages {
  /** As those of `ArrivingKeys`. */
  readonly arrivals: number;
  /** From when the step begins: what is not there by then does not come. */
  readonly withinMs: number;
}

/**
 * Per-row sampling parameters; every array has one entry for each row of `logitRows`, ragged lists have one more offset than rows.
 *
 * Order, the same in every backend:
 * 1. Log-probabilities and alternatives come from the raw logits (equal logits: lowest id first).
 * 2. Repetition penalty on every seen token (l > 0 ? l / r : l * r), then frequency (l -= f * count) and presence
 *    (l -= p if count > 0), then bias (l += b).
 * 3. Temperature 0: the highest logit, lowest id among equals.
 * 4. Else p = exp((l - max) / temperature). Ranked by (l descending, id ascending), kept are: the first topK (if 0 < topK); of those
 *    the shortest prefix whose mass reaches topP of their mass (if topP < 1), never empty; of those p >= minP (p of the best is 1).
 * 5. Kept tokens in ascending id: the first whose running mass exceeds u times the kept mass, u = counterUniform(seed, tokenIndex)
 *    of `util/counter-random.ts`.
 * A row with a NaN or a non-finite maximum, before or after step 2, fails alone.
 */
export interface StepSampling {
  /** 0 is greedy. */
  readonly temperature: Float32Array;
  readonly topP: Float32Array;
  /** 0 is off. */
  readonly topK: Int32Array;
  readonly minP: Float32Array;
  /** (rows, 2): seed as two 32-bit halves. */
  readonly seed: Uint32Array;
  /** Index of the sampled token in its output: randomness is a pure function of (seed, tokenIndex). */
  readonly tokenIndex: Uint32Array;
  readonly repetitionPenalty: Float32Array;
  readonly frequencyPenalty: Float32Array;
  readonly presencePenalty: Float32Array;
  /** Tokens seen by a row and how often each stands in its output (0: only in the prompt). */
  readonly seenStart: Int32Array;
  readonly seenTokens: Int32Array;
  readonly seenCounts: Int32Array;
  readonly biasStart: Int32Array;
  readonly biasTokens: Int32Array;
  readonly biasValues: Float32Array;
  /** How many alternatives to report, 0..topLogprobsMax. */
  readonly topLogprobs: Int32Array;
  /** 1: the row samples nothing and reports the log-probability of `target` (prompt log-probabilities). */
  readonly hasTarget: Uint8Array;
  readonly target: Int32Array;
}

export interface Step {
  /** (tokens) ids, and absolute positions, of all sequences, ragged. */
  readonly tokens: Int32Array;
  readonly positions: Int32Array;
  /** (sequences + 1): first row of each sequence. Rows of a sequence are consecutive positions. */
  readonly rowStart: Int32Array;
  readonly groups: readonly StepGroup[];
  /** By (sequence, group, firstBlock), ascending; empty where all keys are at home. */
  readonly remote: readonly RemoteKeys[];
  /** Undefined: all that is listed is there. A sequence may wait for several. */
  readonly arriving?: readonly ArrivingKeys[] | undefined;
  /** Of a program that begins with what other layers have made of the step's tokens: where that is; undefined: in its input buffer. */
  readonly rowsIn?: ComingRows | undefined;
  /** Of one that ends before the logits: where others find what it makes of them; undefined: in its output buffer alone. */
  readonly rowsOut?: RowPages | undefined;
  /** Rows that need logits, ascending. */
  readonly logitRows: Int32Array;
  readonly sampling: StepSampling;
}

/** One entry for each row of `logitRows`. Log-probabilities are before temperature, penalties and bias. */
export interface StepResult {
  readonly tokens: Int32Array;
  readonly logprobs: Float32Array;
  /** (rows, topLogprobsMax), best first; entries past the row's `topLogprobs` are meaningless. */
  readonly topTokens: Int32Array;
  readonly topLogprobs: Float32Array;
  /** 1: the row's logits held NaN or no finite maximum; its other entries are meaningless. */
  readonly failed: Uint8Array;
  /**
   * Sequences, by place in the step, ascending, whose remote keys were refused or not answered in time, or whose blocks or rows on their way did not come: nothing of them counts as written, and
   * their logit rows are meaningless. All others are as ever.
   */
  readonly unanswered: Int32Array;
}
