// The batcher's view of a request: its tokens, its blocks, and how many of them are computed.

import { wideZero } from '../../../util/wide-zero.ts';
import { LastMatch } from '../../kvcache/block-cache.ts';
import { BlockTable } from '../../kvcache/block-table.ts';
import type { ReceivedPrompt } from '../../kvcache/receive-pages.ts';
import type { PageChoice, SequenceSparsity } from '../../kvcache/sparsity/sparse-plan.ts';
import type { BlockChain } from '../../protocol/kv-events.ts';

/** The content of a sequence. Its owner appends tokens; the batcher reads its length and its block digests. */
export interface SequenceContent {
  /** Known tokens: prompt, then output. */
  readonly length: number;
  readonly chain: BlockChain;
  /** Extends the chain by the digests of the full blocks in the first `length` tokens, as far as they can be shared. */
  digest(length: number): void;
}

export interface SequenceSpec {
  readonly content: SequenceContent;
  readonly promptLength: number;
  /** Maximum number of tokens; undefined: no memory is reserved for it. */
  readonly lengthMax?: number;
  /** Layer groups of the model. */
  readonly groups: number;
  /** Larger runs first. */
  readonly priority: number;
  /** A batch job: it ranks below all others, whatever its priority. */
  readonly background?: boolean;
  /** Tenants of one priority share by tokens. */
  readonly tenant?: string | undefined;
  /** Unique and rising: the order within a priority. */
  readonly arrival: number;
  /** False: only the prompt is computed. */
  readonly samples: boolean;
  /** Undefined: no row is scored. */
  readonly scores?: ScoredRange | undefined;
  /** One step computes all rows, since each attends to all keys: no cached block is reused. */
  readonly isWhole?: boolean | undefined;
  /** Undefined: it keeps all tokens. */
  readonly sparsity?: SequenceSparsity | undefined;
  /** Undefined: its rows read all pages. */
  readonly pageChoice?: PageChoice | undefined;
}

/** Prompt rows from..to that yield a result besides the sampled token: a log-probability, or a hidden state. */
export interface ScoredRange {
  readonly from: number;
  readonly to: number;
}

/** Blocks in transit: a sequence may start ahead of them. */
export interface ArrivingPrefix {
  readonly blocks: number;
  /** Predicted time until the last block arrives: a step of this sequence alone takes at least as long. */
  readonly arrivalUs: number;
  /** Appends all of them to an empty table, with a reference to each. */
  share(table: BlockTable): void;
}

/** Reads pages of a sequence while it computes. */
export interface BlockCopier {
  /** True while it has no receive buffer to copy to. */
  readonly isWaiting: boolean;
  /** Pages of tokens from `fromToken` on leave the sequence: the copier stops reading them before they are reused. */
  releasePages(fromToken: number): void;
}

/** `parked`: computed as far as required here; keeps its blocks until they are copied. */
export type SequenceState = 'new' | 'waiting' | 'running' | 'parked' | 'ended';

/** Only the batcher changes its state and its blocks. Its owner appends sampled tokens. */
export class Sequence {
  readonly priority: number;
  readonly background: boolean;
  readonly tenant: string;
  readonly arrival: number;
  readonly promptLength: number;
  readonly lengthMax: number;
  readonly samples: boolean;
  /** End of the prompt rows that are scored; 0: none is. */
  readonly scoredTo: number;
  readonly content: SequenceContent;
  readonly isWhole: boolean;
  readonly sparsity: SequenceSparsity | undefined;
  readonly pageChoice: PageChoice | undefined;
  readonly table: BlockTable;
  /** Index of the attention worker with its blocks, where each sequence lies whole at one; 0 before its first start. */
  worker = 0;
  /** Its prefix in the cache. */
  known = new LastMatch();
  state: SequenceState = 'new';
  /** It has been in this batcher since then. */
  queuedUs: number = wideZero;
  /** Times that it was preempted. */
  preemptions = 0;
  /** Leading tokens that have keys and values in the table's blocks. */
  computed = 0;
  /** Leading tokens that have received keys and values, ready to load at the start; lost at a preemption. */
  receivedTokens = 0;
  /** The pages of the received KV, where those are pool pages. */
  receivedPages: ReceivedPrompt | undefined;
  /** Prompt rows before this one are not scored any more. */
  scored: number;
  /** Rows of the planned or running step: positions computed..computed+planned-1. */
  planned = 0;
  /** Output tokens that its tenant has been charged for. */
  chargedOutputs = 0;
  /** Copies its blocks to another instance. */
  copier: BlockCopier | undefined;
  /** Prompt tokens that came from the cache at its first start. */
  cachedTokens: number | undefined;
  /** Full blocks that it claims to compute, from..to: others wait for them. */
  claimedFrom = 0;
  claimedTo = 0;
  /** Its number among the owners of block claims (`BlockClaims`), while it runs; kept afterwards, without meaning. */
  slot = 0;
  /**
   * It is admitted only once its decode instance has memory. Memory reserved for it is available to others while it
   * waits.
   */
  waitsForDecodeMemory = false;
  /** Blocks of its prefix are in transit: it is not admitted while it waits. */
  loading = false;
  /** Its grammar is being compiled: it is not admitted. */
  waitsForGrammar = false;
  /** Blocks in transit that the sequence may start ahead of; while it runs, they have not arrived. */
  arriving: ArrivingPrefix | undefined;
  /**
   * Its blocks before this one may be shared; undefined: all may. The others are not in the block index, so that they can
   * move.
   */
  sharedBlocks: number | undefined;
  /** Number of its blocks, from `remoteFrom` on, that other instances hold. */
  remoteBlocks = 0;
  remoteFrom = 0;
  /** Its blocks before this one have been offered to a store. */
  offeredBlocks = 0;
  /** Index of the block that it waits for while another sequence computes it. */
  waitsForBlock: number | undefined;

  constructor(spec: SequenceSpec) {
    this.background = spec.background ?? false;
    this.priority = this.background ? Number.NEGATIVE_INFINITY : spec.priority;
    this.tenant = spec.tenant ?? '';
    this.arrival = spec.arrival;
    this.promptLength = spec.promptLength;
    this.lengthMax = spec.lengthMax ?? 0;
    this.samples = spec.samples;
    this.scored = spec.scores?.from ?? 0;
    this.scoredTo = spec.scores?.to ?? 0;
    this.isWhole = spec.isWhole ?? false;
    this.content = spec.content;
    this.sparsity = spec.sparsity;
    this.pageChoice = spec.pageChoice;
    this.table = new BlockTable(spec.groups, spec.content.chain.blocks + 2);
    this.table.tenant = this.tenant;
  }

  /** It starts with the blocks of this worker. */
  placeAt(worker: number): void {
    if (this.worker === worker) return;
    this.worker = worker;
    this.known = new LastMatch();
  }

  /** The tokens from this one on have other, equal pages now, or none: their old pages are free. */
  pagesChanged(fromToken: number): void {
    this.copier?.releasePages(fromToken);
  }

  /** Some received KV is not loaded into the table yet. */
  get loadPending(): boolean {
    return this.receivedTokens > this.computed;
  }

  /** It has no blocks any more: its received KV is lost. */
  reset(): void {
    this.computed = 0;
    this.planned = 0;
    this.receivedTokens = 0;
    this.receivedPages = undefined;
    this.pagesChanged(0);
  }

  /** It has no private or remote blocks any more. */
  clearSharing(): void {
    this.sharedBlocks = undefined;
    this.remoteBlocks = 0;
    this.remoteFrom = 0;
  }

  /** Known tokens: prompt, then output. */
  get length(): number {
    return this.content.length;
  }

  get chain(): BlockChain {
    return this.content.chain;
  }

  /** Known tokens still to compute. */
  get remaining(): number {
    return this.length - this.computed;
  }

  /**
   * Full blocks that may come from the cache: never with the last token, which must yield logits, nor with a prompt row
   * still to be scored, nor with rows that select the kept tokens.
   */
  reusableBlocks(blockTokens: number): number {
    const known = Math.min(this.length - 1, this.observedFrom ?? Number.POSITIVE_INFINITY);
    return Math.floor((this.scoring ? Math.min(known, this.scored) : known) / blockTokens);
  }

  /** The first of the rows that one step computes: those that select the kept tokens, or all. Undefined: there are none. */
  get observedFrom(): number | undefined {
    if (this.isWhole) return 0;
    return this.sparsity && Math.max(0, this.promptLength - this.sparsity.observed);
  }

  /** It has a KV budget: all of its memory lies at home. */
  get hasBudget(): boolean {
    return this.sparsity !== undefined || this.pageChoice !== undefined;
  }

  /** Its prompt is computed, and it has a KV budget: it holds no blocks of sparse layers any more. */
  get isSelected(): boolean {
    return this.sparsity !== undefined && this.computed >= this.promptLength;
  }

  /** It has a KV budget and its prompt is computed: its rows read some keys only, so their results are its own. */
  get readsPart(): boolean {
    return this.hasBudget && this.computed >= this.promptLength;
  }

  /** Known tokens that the next step may compute: with a KV budget, no step has rows of the prompt and later ones. */
  get plannable(): number {
    return !this.hasBudget || this.readsPart ? this.remaining : this.promptLength - this.computed;
  }

  /** At most `rows` rows of the next step, so that one step computes all rows that select; 0: they do not fit. */
  rowsWithin(rows: number): number {
    const { observedFrom, computed, promptLength } = this;
    const end = computed + rows;
    if (observedFrom === undefined || end <= observedFrom || end >= promptLength) return rows;
    return Math.max(0, observedFrom - computed);
  }

  get scoring(): boolean {
    return this.scored < this.scoredTo;
  }

  /** Position of the first planned row that is scored, and the number of scored rows. */
  get scoredRowsFrom(): number {
    return Math.max(this.computed, this.scored);
  }

  get scoredRows(): number {
    if (!this.scoring) return 0;
    return Math.max(0, Math.min(this.computed + this.planned, this.scoredTo) - this.scoredRowsFrom);
  }

  /** True when the last planned row is that of the last known token. */
  get samplesNow(): boolean {
    return this.samples && this.planned > 0 && this.planned === this.remaining;
  }
}

/** The rank: larger priority first, then earlier arrival. */
export function outranks(a: Sequence, b: Sequence): boolean {
  return a.priority === b.priority ? a.arrival < b.arrival : a.priority > b.priority;
}
