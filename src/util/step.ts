// One engine step as plain data: the input of an executor, and its result.
import type { KvType } from './kv-type.ts';

/** Tokens of one page and of one rBlock. */
export const pageTokens = 32;

/** Maximum number of alternatives reported beside a sampled token. */
export const topLogprobsMax = 20;

/**
 * Layers that share a block table. Layers of a window group attend to the last `window` tokens only, including their
 * own.
 */
export interface LayerGroup {
  readonly layers: number;
  readonly window: number | undefined;
  /** Sequences with a KV budget keep only some tokens in these layers. */
  readonly sparse?: boolean | undefined;
}

/** Pages of one layer group. An rBlock is `pageTokens` tokens of all layers of the group: one page for each layer. */
export interface StepGroup {
  /** (rBlocks of the pool, layers of the group): page ids. Shared, not copied. */
  readonly pageTable: Int32Array;
  readonly layers: number;
  /**
   * rBlock ids of all sequences of the step, one sequence after another; `remoteBlock` is a remote block, listed in
   * `Step.remote`.
   */
  readonly blocks: Int32Array;
  /** (sequences): where a sequence's ids start in `blocks`. */
  readonly blockStart: Int32Array;
  /**
   * (sequences): absolute index (position / pageTokens) of a sequence's first listed block; every block from it to that
   * of the sequence's last position is listed. 0 without a window; else firstBlock * pageTokens <= max(0, first row's
   * position - window + 1).
   */
  readonly firstBlock: Int32Array;
}

/** The entry of a block table for a remote rBlock, which a creditor holds. */
export const remoteBlock = -1;

/** Tokens of one attention range, the smallest unit that a creditor holds of a sequence: whole ranges move. */
export const rangeTokens = 256;

/**
 * Whole ranges of a sequence with keys and values in the pool of another instance, where a remote attention server
 * computes attention over them. The range of the step's first row, and later ones, are always local. Layer groups with
 * a window have none.
 */
export interface RemoteKeys {
  /** Index of the sequence in the step. */
  readonly sequence: number;
  readonly group: number;
  /** Absolute index of the first block; a multiple of the blocks of a range. */
  readonly firstBlock: number;
  /** Handle of the creditor's remote attention server, valid in every thread of the process. */
  readonly server: number;
  /** Loan number under which the creditor lent them. */
  readonly loan: number;
  /** Their rBlock ids at the creditor, from `firstBlock` on; whole ranges. */
  readonly blocks: Int32Array;
}

/**
 * Listed blocks of a sequence with contents still in transit, layer by layer: the step waits for each layer's blocks
 * before its attention.
 */
export interface ArrivingKeys {
  /** Index of the sequence in the step. */
  readonly sequence: number;
  /** Handle of native arrival counters, valid in every thread of the process. Freed arrivals never complete. */
  readonly arrivals: number;
  /** Timeout from the start of the step; contents that are missing then count as lost. */
  readonly withinMs: number;
}

/**
 * Slots of one sequence in the layers of a sparse layer group. Slot s of a layer holds, for each KV head, K and V of
 * one kept token, in an ordinary page; KV heads keep different tokens.
 */
export interface SlotTable {
  /** Pages of slots, one layer after another. */
  readonly pages: Int32Array;
  /** (layers + 1): where a layer's pages start in `pages`. */
  readonly pageStart: Int32Array;
  /**
   * Pages of slot states, `slotStatePages(...)` of them: running score and position of each slot and KV head. Slot s of
   * a layer has state `pageStart[layer] * pageTokens + s`.
   */
  readonly states: Int32Array;
}

/** How the scores of the query heads that share a KV head become one score. */
export type HeadReduce = 'max' | 'mean';

/**
 * Rows of a sequence that keeps only some tokens in a layer group. Rows attend one after another: the bits are those of
 * as many steps of one row.
 */
export interface SparseKeys {
  /** Index of the sequence in the step. In the group it lists no blocks: the step uses slots alone. */
  readonly sequence: number;
  /** The sparse layer group; without a window. */
  readonly group: number;
  readonly slots: SlotTable;
  /** (layers): filled slots before the step; the step's rows change them as `keptAfter` states. */
  readonly kept: Int32Array;
  /** (layers): kept tokens of a layer, at least 1. */
  readonly budget: Int32Array;
  /**
   * 0 (replace): once `budget` slots are filled, a new token takes the slot of the lowest score. Above 0 (compact): new
   * tokens fill further slots; once there are budget + compactEvery, the `compactEvery` lowest scores are evicted, and
   * the kept tokens move to the first slots in ascending position. Among equal scores the higher position goes first.
   */
  readonly compactEvery: number;
  /** The last tokens, at most the budget, are never evicted (recent window). */
  readonly recent: number;
  /** Before a row adds its weights to the running scores, they are multiplied by this, in (0, 1]. */
  readonly decay: number;
  readonly headReduce: HeadReduce;
}

/**
 * Selection of the kept tokens of a sequence, in the step that computes its last prompt row. In each layer of the group,
 * after attention, the keys are scored with the last `observed` rows, and the kept tokens are copied to slots.
 *
 * 1. A key's score for a query head is the sum over the observed rows, ascending, of its weight p = exp(s - m) / l.
 * 2. `headReduce` reduces the query heads of a KV head.
 * 3. Scores of positions before the recent window are pooled: the maximum, or the sum divided by `width`, over the
 *    neighbours (width / 2 on each side) that also precede the window.
 * 4. A sequence of at most `budget` tokens keeps all. Else it keeps the last `recent`, and of the tokens before them
 *    those with the highest scores, among equal scores the lowest positions. With recent >= budget it keeps the last
 *    `budget` tokens.
 * 5. Kept tokens fill slots 0.. in ascending position. A slot's running score starts as the pooled score; in the recent
 *    window as the score itself.
 */
export interface KvSelection {
  /** Index of the sequence in the step. Its keys are local, and its rows include the last min(observed, keys). */
  readonly sequence: number;
  /** The sparse layer group; without a window. */
  readonly group: number;
  readonly slots: SlotTable;
  /** (layers): kept tokens of a layer, at least 1. */
  readonly budget: Int32Array;
  /** Rows that score keys (observation window), at least 1. */
  readonly observed: number;
  readonly recent: number;
  /** `width` is odd; 1: no pooling. */
  readonly pooling: { readonly kind: 'max' | 'mean'; readonly width: number };
  readonly headReduce: HeadReduce;
}

/** Kept tokens after the selection of a prompt. */
export function keptOfPrompt(tokens: number, budget: number): number {
  return Math.min(tokens, budget);
}

/** Filled slots of a layer after a step of `rows` rows over `SparseKeys`. */
export function keptAfter(kept: number, budget: number, compactEvery: number, rows: number): number {
  if (compactEvery === 0) return Math.min(kept + rows, budget);
  const filled = kept + rows;
  return filled < budget + compactEvery ? filled : budget + ((filled - budget) % compactEvery);
}

/** Slots that a layer's pages must have: compacting needs some beyond the budget. */
export function slotsNeeded(budget: number, compactEvery: number): number {
  return budget + compactEvery;
}

/** Pages of slot states for the slots of `pages` pages, 8 bytes for each slot and KV head. */
export function slotStatePages(pages: number, headDim: number, kvType: KvType): number {
  return Math.ceil(pages / slotPagesOfState(headDim, kvType));
}

/** Pages of slots with states in one page of slot states. */
export function slotPagesOfState(headDim: number, kvType: KvType): number {
  return Math.floor((headDim * (kvType === 'f32' ? 4 : kvType === 'bf16' ? 2 : 1)) / 4);
}

/**
 * Attention of a sequence over its pages with the highest bounds (Quest). All K and V stay: the sequence lists its
 * blocks as usual. The bound of a page for a query head is the largest q . k that its keys allow: the sum over
 * dimensions of max(q min, q max), where min and max are taken over the keys of the page.
 */
export interface PageSelection {
  /** Index of the sequence in the step; its keys are local. Its rows attend one after another. */
  readonly sequence: number;
  /** A layer group without a window. */
  readonly group: number;
  /**
   * Pages of bounds, `boundPages(...)` of them. Block b of layer l has place b % pageTokens of page
   * floor(b / pageTokens) * layers + l: the maximum of each KV head and dimension of K as the key of that place, and
   * the minimum in the same layout in place of V.
   */
  readonly bounds: Int32Array;
  /** Blocks with entries that are complete. The step writes the entries of all later blocks. */
  readonly bounded: number;
  /**
   * Pages that a KV head reads, at least 2: the first, the last, and those with the highest bound (the maximum over its
   * query heads), among equal bounds the earliest.
   */
  readonly budget: number;
  /**
   * In (0, 1]; 1: none. The ranking stops at the first page at which the softmax of the bounds, scaled as scores are,
   * reaches this mass.
   */
  readonly topP: number;
}

/** Pages of bounds for `blocks` rBlocks of a group: one of a layer for each 32 of its pages of K and V. */
export function boundPages(blocks: number, layers: number): number {
  return Math.ceil(blocks / pageTokens) * layers;
}

/** Rows of the residual stream, float32 and consecutive, in pages of a pool for activations. */
export interface RowPages {
  /** Handle of the pool, valid in every thread of the process. */
  readonly pool: number;
  /** At least as many as the rows require. */
  readonly pages: Int32Array;
}

/** Rows that may still be in transit: the step waits for them first. If they do not arrive, all its sequences fail. */
export interface PendingRows extends RowPages {
  /** Like those of `ArrivingKeys`. */
  readonly arrivals: number;
  /** Timeout from the start of the step; rows that are missing then count as lost. */
  readonly withinMs: number;
}

/**
 * Per-row sampling parameters; every array has one entry for each row of `logitRows`, ragged lists have one more offset
 * than rows.
 *
 * Order, the same in every backend:
 * 1. Log-probabilities and alternatives come from the raw logits (equal logits: lowest id first).
 * 2. Repetition penalty on every seen token (l > 0 ? l / r : l * r), then frequency (l -= f * count) and presence
 *    (l -= p if count > 0), then bias (l += b). Tokens that the mask of the row excludes become -Infinity.
 * 3. Temperature 0: the highest logit, lowest id among equals.
 * 4. Else p = exp((l - max) / temperature). Ranked by (l descending, id ascending), kept are: the first topK (if
 *    0 < topK); of those the shortest prefix with at least topP of their mass (if topP < 1), never empty; of those
 *    p >= minP (p of the best is 1).
 * 5. Kept tokens in ascending id: the first at which the running mass exceeds u times the kept mass,
 *    u = counterUniform(seed, tokenIndex) of `util/counter-random.ts`.
 * A row with a NaN or a non-finite maximum, before or after step 2, fails alone (`rowFailures`).
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
  /** Tokens that occur before a row, and how often each occurs in its output (0: only in the prompt). */
  readonly seenStart: Int32Array;
  readonly seenTokens: Int32Array;
  readonly seenCounts: Int32Array;
  readonly biasStart: Int32Array;
  readonly biasTokens: Int32Array;
  readonly biasValues: Float32Array;
  /** Number of alternatives to report, 0..topLogprobsMax. */
  readonly topLogprobs: Int32Array;
  /** 1: the row samples nothing and reports the log-probability of `target` (prompt log-probabilities). */
  readonly hasTarget: Uint8Array;
  readonly target: Int32Array;
  /** Undefined: every row may sample any token. */
  readonly masks?: TokenMasks | undefined;
}

/** For some rows the tokens that they may sample, as bit sets. */
export interface TokenMasks {
  /** (rows + 1): where the words of a row start; a row has `maskWords(vocabulary)` words, or none and no mask. */
  readonly start: Int32Array;
  /** Bit `id % 32` of word `floor(id / 32)` of a row is 1 if it may sample the token `id`. */
  readonly words: Uint32Array;
}

/** A row with a grammar. Its mask follows from the grammar and the output so far: the driver adds it before the step runs. */
export interface GrammarRow {
  /** Index in `logitRows`. */
  readonly row: number;
  /** Index of the sequence in the step. */
  readonly sequence: number;
  readonly request: string;
  /** Output tokens before the row; valid as long as the step. */
  readonly output: Int32Array;
}

/** Words of the mask of one row. */
export function maskWords(vocabulary: number): number {
  return Math.ceil(vocabulary / 32);
}

/** Why a row yields no token: its logits hold NaN or no finite maximum, or its mask allows no token. */
export const rowFailures = { notFinite: 1, noToken: 2 } as const;

export interface Step {
  /** (tokens): ids and absolute positions of all sequences, ragged. */
  readonly tokens: Int32Array;
  readonly positions: Int32Array;
  /** (tokens): of embeddings with token types (BERT); undefined: all are 0. */
  readonly tokenTypes?: Uint8Array | undefined;
  /** (sequences + 1): first row of each sequence. Rows of a sequence are consecutive positions. */
  readonly rowStart: Int32Array;
  readonly groups: readonly StepGroup[];
  /** By (sequence, group, firstBlock), ascending; empty if all keys are local. */
  readonly remote: readonly RemoteKeys[];
  /** Sequences that keep only some tokens in a layer group; one entry for each sequence and group, in any order. */
  readonly sparse?: readonly SparseKeys[] | undefined;
  /** What this step selects. A sequence and group has an entry in only one of these three lists. */
  readonly selections?: readonly KvSelection[] | undefined;
  /** Sequences that read only their pages with the highest bounds. */
  readonly pageSelections?: readonly PageSelection[] | undefined;
  /** Undefined: all listed blocks have their contents. A sequence may wait for several. */
  readonly arriving?: readonly ArrivingKeys[] | undefined;
  /** Input activations of a program that starts after the first layer; undefined: in its input buffer. */
  readonly rowsIn?: PendingRows | undefined;
  /**
   * Pages for the output activations of a program that ends before the logits; undefined: in its output buffer only.
   */
  readonly rowsOut?: RowPages | undefined;
  /**
   * Handles of links to the attention workers, for programs that leave attention to attention workers, and only these.
   * In the order of their KV heads, of which each has an equal shard; if one fails, all sequences of the step do.
   */
  readonly attentionWorkers?: Int32Array | undefined;
  /**
   * (sequences): index of the attention worker that has all KV heads of a sequence; undefined: partition by KV heads.
   * Worker w has the w-th of equal ranges of page ids and of rows of each page table. If it fails, its sequences do.
   */
  readonly sequenceWorkers?: Int32Array | undefined;
  /** Rows that need logits, ascending. */
  readonly logitRows: Int32Array;
  readonly sampling: StepSampling;
  /** Undefined: no row has a grammar. */
  readonly grammarRows?: readonly GrammarRow[] | undefined;
  /**
   * (rows of `logitRows`) 1: the row yields its hidden state after the final norm, and its entries of tokens and
   * log-probabilities are undefined. Undefined: no row does. A step of such rows alone computes no logits.
   */
  readonly hiddenRows?: Uint8Array | undefined;
}

/** True if a row of the step requires logits. */
export function needsLogits({ logitRows, hiddenRows }: Pick<Step, 'logitRows' | 'hiddenRows'>): boolean {
  return hiddenRows === undefined || (logitRows.length > 0 && hiddenRows.includes(0));
}

/** One entry for each row of `logitRows`. Log-probabilities are before temperature, penalties and bias. */
export interface StepResult {
  readonly tokens: Int32Array;
  readonly logprobs: Float32Array;
  /** (rows, topLogprobsMax), best first; entries behind the row's `topLogprobs` are undefined. */
  readonly topTokens: Int32Array;
  readonly topLogprobs: Float32Array;
  /** 0, or one of `rowFailures`; the other entries of a failed row are undefined. */
  readonly failed: Uint8Array;
  /**
   * Indices of failed sequences, ascending: remote keys were refused or timed out, or blocks or rows in transit did not
   * arrive. Nothing of them counts as written, and their logit rows are undefined. Other sequences are not affected.
   */
  readonly failedSequences: Int32Array;
  /** (rows of `logitRows`, columns of hidden states), where the step has `hiddenRows`. */
  readonly hidden?: Float32Array | undefined;
  /** Indices of sequences with a mask that was not ready in time: nothing of them counts. */
  readonly unmaskedSequences?: Int32Array | undefined;
}
