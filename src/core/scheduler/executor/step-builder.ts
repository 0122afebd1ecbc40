// Builds an engine step from planned sequences, in arrays that every step reuses.

import { Int32List } from '../../../util/int32-list.ts';
import {
  type GrammarRow,
  type KvSelection,
  type PageSelection,
  pageTokens,
  type RemoteKeys,
  type SparseKeys,
  type Step,
  type StepGroup,
  type StepSampling,
} from '../../../util/step.ts';
import type { HeldBlocks } from '../../kvcache/block-table.ts';
import { blocksFor } from '../../kvcache/layer-groups.ts';
import type { BlockPool } from '../../kvcache/pools/block-pool.ts';
import { type SparsePlan, scoreDecay } from '../../kvcache/sparsity/sparse-plan.ts';
import { StagePages } from '../../kvcache/stage-pages.ts';
import type { BlockId, InstanceIndex } from '../../protocol/ids.ts';
import type { LayerRange } from '../../protocol/step-shape.ts';
import type { Sequence } from '../batching/sequence.ts';
import type { BatchLimits } from '../batching/step-budget.ts';
import type { RunningGeneration } from './generation-request.ts';

/** Per-row parameters of `StepSampling`, one entry for each logit row. */
function samplingArrays(rows: number) {
  return {
    temperature: new Float32Array(rows),
    topP: new Float32Array(rows),
    topK: new Int32Array(rows),
    minP: new Float32Array(rows),
    seed: new Uint32Array(rows * 2),
    tokenIndex: new Uint32Array(rows),
    repetitionPenalty: new Float32Array(rows),
    frequencyPenalty: new Float32Array(rows),
    presencePenalty: new Float32Array(rows),
    seenStart: new Int32Array(rows + 1),
    biasStart: new Int32Array(rows + 1),
    topLogprobs: new Int32Array(rows),
    hasTarget: new Uint8Array(rows),
    target: new Int32Array(rows),
  };
}

/** Consecutive blocks of a sequence that lie at one creditor. */
interface RemoteBlocks {
  readonly creditor: InstanceIndex;
  /** Index in the sequence. */
  readonly firstBlock: number;
  readonly blocks: readonly BlockId[];
}

/** Where a step finds the blocks of a sequence that lie outside its block table. */
export interface RemoteLayout {
  /** The first block outside the table. Blocks in the table come before it, and after the last one outside. */
  readonly firstBlock: number;
  /** Rows of the page table; `away` for a block at a creditor. */
  readonly rows: Int32Array;
  readonly remote: readonly RemoteBlocks[];
}

/** Keys and values outside block tables, as steps read them. */
export interface BorrowedKeys {
  /** Where the blocks outside a sequence's table lie; undefined: there are none. */
  layoutOf(sequence: Sequence): RemoteLayout | undefined;
  /** The remote attention server of a creditor, and the loan there. */
  serverOf(creditor: InstanceIndex): Pick<RemoteKeys, 'server' | 'loan'>;
}

/** The block lists of one layer group. */
class GroupLists {
  readonly #pool: BlockPool;
  readonly #pageTable: Int32Array;
  /** In a step that runs a range of layers: the pages of its one sequence. */
  #pages: Int32Array | undefined;
  readonly #blocks = new Int32List(256);
  readonly #blockStart: Int32Array;
  readonly #firstBlock: Int32Array;

  constructor(pool: BlockPool, sequencesMax: number, pageTable = pool.pageTable) {
    this.#pool = pool;
    this.#pageTable = pageTable;
    this.#blockStart = new Int32Array(sequencesMax);
    this.#firstBlock = new Int32Array(sequencesMax);
  }

  clear(): void {
    this.#blocks.clear();
    this.#pages = undefined;
  }

  /** Adds the one sequence of a step that runs a range of layers. */
  addStage(held: HeldBlocks, end: number, range: LayerRange): void {
    this.#pages = new StagePages(held, this.#pool, range).table(end);
    this.#blockStart[0] = 0;
    this.#firstBlock[0] = 0;
    for (let block = 0; block < end; block++) this.#blocks.push(block);
  }

  /** Lists the held blocks before block `end`, from the first one that the next row attends to. @param worker with their pages */
  add(index: number, held: HeldBlocks, end: number, worker: number): void {
    const from = this.#blocks.length;
    this.#blockStart[index] = from;
    this.#firstBlock[index] = held.first;
    if (held.inSlots) return;
    this.#blocks.append(held.blocks.raw, 0, end - held.first);
    if (worker === 0) return;
    const firstRow = worker * this.#pool.total;
    for (let i = from; i < this.#blocks.length; i++) this.#blocks.set(i, this.#blocks.at(i) + firstRow);
  }

  /** Lists all blocks before block `end`, some of which lie outside the table. */
  addWithRemote(index: number, held: HeldBlocks, end: number, { firstBlock, rows }: RemoteLayout): void {
    this.#blockStart[index] = this.#blocks.length;
    this.#firstBlock[index] = 0;
    this.#blocks.append(held.blocks.raw, 0, firstBlock);
    this.#blocks.append(rows, 0, rows.length);
    this.#blocks.append(held.blocks.raw, firstBlock, end - rows.length);
  }

  view(sequences: number): StepGroup {
    return {
      pageTable: this.#pages ?? this.#pageTable,
      layers: this.#pool.layers,
      blocks: this.#blocks.view(),
      blockStart: this.#blockStart.subarray(0, sequences),
      firstBlock: this.#firstBlock.subarray(0, sequences),
    };
  }
}

/** A step is valid until the next `build`. A decode row allocates nothing. */
export class StepBuilder {
  readonly #groups: readonly GroupLists[];
  readonly #borrowed: BorrowedKeys | undefined;
  #remote: RemoteKeys[] = [];
  readonly #plan: SparsePlan | undefined;
  #sparse: SparseKeys[] = [];
  #selections: KvSelection[] = [];
  #pageSelections: PageSelection[] = [];
  #grammarRows: GrammarRow[] = [];
  readonly #tokens: Int32Array;
  readonly #positions: Int32Array;
  readonly #rowStart: Int32Array;
  readonly #logitRows: Int32Array;
  readonly #hiddenRows: Uint8Array;
  readonly #tokenTypes: Uint8Array;
  /** A row has a token type other than 0. */
  #hasTypes = false;
  /** A row yields its hidden state. */
  #hasHidden = false;
  /** Undefined where a sequence does not lie whole at one attention worker. */
  readonly #sequenceWorkers: Int32Array | undefined;
  readonly #sampling: ReturnType<typeof samplingArrays>;
  readonly #seenTokens = new Int32List(256);
  readonly #seenCounts = new Int32List(256);
  readonly #biasTokens = new Int32List();
  #biasValues = new Float32Array(16);
  #rows = 0;
  #logits = 0;

  /**
   * @param pools of the model's layer groups, in order
   * @param pageTables of the groups, over all attention workers, where a sequence lies whole at one
   * @param sparse undefined: every sequence keeps all tokens
   */
  constructor(
    limits: BatchLimits,
    pools: readonly BlockPool[],
    borrowed?: BorrowedKeys,
    pageTables?: readonly Int32Array[],
    sparse?: SparsePlan,
  ) {
    this.#plan = sparse;
    this.#borrowed = borrowed;
    this.#groups = pools.map((pool, g) => new GroupLists(pool, limits.sequencesMax, pageTables?.[g]));
    this.#sequenceWorkers = pageTables && new Int32Array(limits.sequencesMax);
    this.#tokens = new Int32Array(limits.tokensMax);
    this.#positions = new Int32Array(limits.tokensMax);
    this.#rowStart = new Int32Array(limits.sequencesMax + 1);
    this.#logitRows = new Int32Array(limits.logitRowsMax);
    this.#hiddenRows = new Uint8Array(limits.logitRowsMax);
    this.#tokenTypes = new Uint8Array(limits.tokensMax);
    this.#sampling = samplingArrays(limits.logitRowsMax);
  }

  /** Sequences with `planned` rows, in the order of their results. @param range the layers of one sequence */
  build(requests: readonly RunningGeneration[], range?: LayerRange): Step {
    this.#rows = 0;
    this.#logits = 0;
    this.#remote = [];
    this.#sparse = [];
    this.#selections = [];
    this.#pageSelections = [];
    this.#grammarRows = [];
    this.#hasHidden = false;
    if (this.#hasTypes) this.#tokenTypes.fill(0);
    this.#hasTypes = false;
    for (const list of [...this.#groups, this.#seenTokens, this.#seenCounts, this.#biasTokens]) list.clear();
    for (let i = 0; i < requests.length; i++) this.#addSequence(requests[i], i, range);
    this.#rowStart[requests.length] = this.#rows;
    return this.#views(requests.length);
  }

  #addSequence(running: RunningGeneration, index: number, range: LayerRange | undefined): void {
    const { sequence } = running;
    const { computed, planned, worker } = sequence;
    if (this.#sequenceWorkers !== undefined) this.#sequenceWorkers[index] = worker;
    const known = running.content.tokens.raw;
    this.#rowStart[index] = this.#rows;
    const end = blocksFor(computed + planned, pageTokens);
    const layout = sequence.remoteBlocks > 0 ? this.#borrowed?.layoutOf(sequence) : undefined;
    if (range !== undefined)
      for (let g = 0; g < this.#groups.length; g++) this.#groups[g].addStage(sequence.table.groups[g], end, range);
    else if (layout === undefined)
      for (let g = 0; g < this.#groups.length; g++) this.#groups[g].add(index, sequence.table.groups[g], end, worker);
    else this.#addWithRemote(index, sequence, end, layout);
    if (this.#plan !== undefined) this.#addBudgeted(index, sequence, this.#plan);
    for (let position = computed; position < computed + planned; position++) {
      this.#tokens[this.#rows + position - computed] = known[position];
      this.#positions[this.#rows + position - computed] = position;
    }
    const { pairFrom } = running.request;
    if (pairFrom !== undefined) {
      this.#tokenTypes.fill(1, this.#rows + Math.max(0, pairFrom - computed), this.#rows + planned);
      this.#hasTypes = true;
    }
    // The last member of a pipeline has the head.
    const hasHead = range === undefined || range.index === range.stages - 1;
    const scoredFrom = sequence.scoredRowsFrom;
    const scored = hasHead ? sequence.scoredRows : 0;
    const isPooled = running.request.pooling !== undefined;
    for (let i = 0; i < scored; i++) {
      if (isPooled) this.#markHidden();
      this.#addLogitRow(running, this.#rows + scoredFrom + i - computed, isPooled ? 0 : known[scoredFrom + i + 1]);
    }
    if (sequence.samplesNow && hasHead) {
      if (running.grammar !== undefined) this.#addGrammarRow(running, index);
      this.#addLogitRow(running, this.#rows + planned - 1, undefined);
    }
    this.#rows += planned;
  }

  /** The next logit row yields its hidden state. */
  #markHidden(): void {
    if (!this.#hasHidden) this.#hiddenRows.fill(0);
    this.#hasHidden = true;
    this.#hiddenRows[this.#logits] = 1;
  }

  #addGrammarRow({ id, output }: RunningGeneration, sequence: number): void {
    this.#grammarRows.push({ row: this.#logits, sequence, request: id, output });
  }

  /** The step computes rows over kept tokens or chosen pages, or the last prompt rows, which select kept tokens. */
  #addBudgeted(
    sequence: number,
    { table, isSelected, readsPart, pageChoice, computed, planned, promptLength }: Sequence,
    { config, group }: SparsePlan,
  ): void {
    const { slots, bounds } = table;
    if (bounds !== undefined && pageChoice !== undefined && readsPart) {
      const { topP = 1 } = config.pages ?? {};
      const { ids, bounded } = bounds;
      this.#pageSelections.push({ sequence, group, bounds: ids.view(), bounded, budget: pageChoice.pages, topP });
    }
    if (slots === undefined || computed + planned < promptLength) return;
    const { recent, headReduce, observed, pooling, compactEvery } = config;
    const { budget } = slots.layout;
    const common = { sequence, group, slots, budget, recent, headReduce };
    if (isSelected) this.#sparse.push({ ...common, kept: slots.kept, compactEvery, decay: scoreDecay });
    else this.#selections.push({ ...common, observed, pooling });
  }

  /** Models that borrow have one layer group. */
  #addWithRemote(index: number, { table }: Sequence, end: number, layout: RemoteLayout): void {
    this.#groups[0].addWithRemote(index, table.groups[0], end, layout);
    for (const { creditor, firstBlock, blocks } of layout.remote) {
      const server = this.#borrowed?.serverOf(creditor);
      if (server === undefined) throw new Error(`Cannot build a step: instance ${creditor} serves no remote attention`);
      this.#remote.push({ sequence: index, group: 0, firstBlock, ...server, blocks: Int32Array.from(blocks) });
    }
  }

  /** A row that is sampled, or one that is scored, with its target. */
  #addLogitRow(running: RunningGeneration, row: number, target: number | undefined): void {
    const at = this.#logits++;
    const to = this.#sampling;
    const { sampling } = running.request;
    this.#logitRows[at] = row;
    to.temperature[at] = sampling.temperature;
    to.topP[at] = sampling.topP;
    to.topK[at] = sampling.topK;
    to.minP[at] = sampling.minP;
    to.seed[2 * at] = sampling.seed[0];
    to.seed[2 * at + 1] = sampling.seed[1];
    to.tokenIndex[at] = running.outputs;
    to.repetitionPenalty[at] = sampling.repetitionPenalty;
    to.frequencyPenalty[at] = sampling.frequencyPenalty;
    to.presencePenalty[at] = sampling.presencePenalty;
    to.topLogprobs[at] = sampling.topLogprobs ?? 0;
    to.hasTarget[at] = target === undefined ? 0 : 1;
    to.target[at] = target ?? 0;
    to.seenStart[at] = this.#seenTokens.length;
    to.biasStart[at] = this.#biasTokens.length;
    if (target === undefined) this.#addLists(running);
    to.seenStart[at + 1] = this.#seenTokens.length;
    to.biasStart[at + 1] = this.#biasTokens.length;
  }

  #addLists(running: RunningGeneration): void {
    const { seen, biasTokens, biasValues } = running;
    if (seen !== undefined) {
      this.#seenTokens.append(seen.tokens.raw, 0, seen.tokens.length);
      this.#seenCounts.append(seen.counts.raw, 0, seen.counts.length);
    }
    if (biasTokens.length === 0) return;
    const from = this.#biasTokens.length;
    this.#biasTokens.append(biasTokens, 0, biasTokens.length);
    if (this.#biasTokens.length > this.#biasValues.length) {
      const grown = new Float32Array(this.#biasTokens.length * 2);
      grown.set(this.#biasValues);
      this.#biasValues = grown;
    }
    this.#biasValues.set(biasValues, from);
  }

  #views(sequences: number): Step {
    return {
      tokens: this.#tokens.subarray(0, this.#rows),
      positions: this.#positions.subarray(0, this.#rows),
      rowStart: this.#rowStart.subarray(0, sequences + 1),
      groups: this.#groups.map((group) => group.view(sequences)),
      remote: this.#remote,
      ...(this.#sparse.length > 0 && { sparse: this.#sparse }),
      ...(this.#selections.length > 0 && { selections: this.#selections }),
      ...(this.#pageSelections.length > 0 && { pageSelections: this.#pageSelections }),
      ...(this.#sequenceWorkers && { sequenceWorkers: this.#sequenceWorkers.subarray(0, sequences) }),
      logitRows: this.#logitRows.subarray(0, this.#logits),
      sampling: this.#samplingViews(),
      ...(this.#grammarRows.length > 0 && { grammarRows: this.#grammarRows }),
      ...(this.#hasTypes && { tokenTypes: this.#tokenTypes.subarray(0, this.#rows) }),
      ...(this.#hasHidden && { hiddenRows: this.#hiddenRows.subarray(0, this.#logits) }),
    };
  }

  #samplingViews(): StepSampling {
    const rows = this.#logits;
    const from = this.#sampling;
    return {
      temperature: from.temperature.subarray(0, rows),
      topP: from.topP.subarray(0, rows),
      topK: from.topK.subarray(0, rows),
      minP: from.minP.subarray(0, rows),
      seed: from.seed.subarray(0, rows * 2),
      tokenIndex: from.tokenIndex.subarray(0, rows),
      repetitionPenalty: from.repetitionPenalty.subarray(0, rows),
      frequencyPenalty: from.frequencyPenalty.subarray(0, rows),
      presencePenalty: from.presencePenalty.subarray(0, rows),
      seenStart: from.seenStart.subarray(0, rows + 1),
      seenTokens: this.#seenTokens.view(),
      seenCounts: this.#seenCounts.view(),
      biasStart: from.biasStart.subarray(0, rows + 1),
      biasTokens: this.#biasTokens.view(),
      biasValues: this.#biasValues.subarray(0, this.#biasTokens.length),
      topLogprobs: from.topLogprobs.subarray(0, rows),
      hasTarget: from.hasTarget.subarray(0, rows),
      target: from.target.subarray(0, rows),
    };
  }
}
