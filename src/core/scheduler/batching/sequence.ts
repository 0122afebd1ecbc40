// A request as the batcher sees it: how many tokens, which blocks, and how far both have come.
import { KnownPrefix } from '../../kvcache/block-cache.ts';
import { BlockTable } from '../../kvcache/block-table.ts';
import type { ReceivedPrompt } from '../../kvcache/receive-pages.ts';
import type { BlockChain } from '../../protocol/kv-events.ts';

/** What a sequence is made of. Its owner appends to it; the batcher asks how long it is and what its blocks are called. */
export interface SequenceContent {
  /** Known tokens: prompt, then output. */
  readonly length: number;
  readonly chain: BlockChain;
  /** Makes the digests of the full blocks in the first `length` tokens known to the chain, as far as anybody could share them. */
  digest(length: number): void;
}

export interface SequenceSpec {
  readonly content: SequenceContent;
  readonly promptLength: number;
  /** Tokens that it may come to; undefined: nobody reserves memory for it. */
  readonly lengthMax?: number;
  /** Layer groups of the model. */
  readonly groups: number;
  /** Larger runs first. */
  readonly priority: number;
  /** A batch job: it ranks below all others, whatever its priority. */
  readonly background?: boolean;
  /** Whose it is: tenants of one priority share by tokens. */
  readonly tenant?: string | undefined;
  /** Unique and rising: the order inside a priority. */
  readonly arrival: number;
  /** False: only the prompt is computed. */
  readonly samples: boolean;
  /** Every prompt row but the last needs logits. */
  readonly scoresPrompt: boolean;
}

/** Blocks that are still on their way when a sequence starts behind them. */
export interface ArrivingPrefix {
  readonly blocks: number;
  /** Until the last is predicted to be here: a step that starts behind them alone takes that long anyway. */
  readonly comesUs: number;
  /** Gives an empty table all of them, pinned. */
  lend(table: BlockTable): void;
}

/** Reads pages of a sequence while it computes. */
export interface BlockCopier {
  /** It has nowhere to copy to yet. */
  readonly waits: boolean;
  /** Those of tokens from `fromToken` on are the sequence's no more: they are read no more before anybody has them. */
  letGo(fromToken: number): void;
}

/** `parked`: computed as far as it is to be here, and holding its blocks until they have been copied. */
export type SequenceState = 'new' | 'waiting' | 'running' | 'parked' | 'ended';

/** The batcher alone moves it between states and hands it blocks; its owner appends the tokens that were sampled. */
export class Sequence {
  readonly priority: number;
  readonly background: boolean;
  readonly tenant: string;
  readonly arrival: number;
  readonly promptLength: number;
  readonly lengthMax: number;
  readonly samples: boolean;
  readonly scoresPrompt: boolean;
  readonly content: SequenceContent;
  readonly table: BlockTable;
  /** What the cache has of its chain. */
  readonly known = new KnownPrefix();
  state: SequenceState = 'new';
  /** Leading tokens whose keys and values are in the table's blocks. */
  computed = 0;
  /** Leading tokens whose keys and values lie ready to be loaded when it starts; they are lost when it is preempted. */
  landed = 0;
  /** The pages that they lie in, where those are of the pool. */
  landedPages: ReceivedPrompt | undefined;
  /** Leading prompt rows whose log-probabilities have been reported. */
  scored = 0;
  /** Rows of the step that is planned or in flight: positions computed..computed+planned-1. */
  planned = 0;
  /** Of its output, what its tenant has been charged with. */
  chargedOutputs = 0;
  /** Copies what its blocks hold to another instance. */
  copier: BlockCopier | undefined;
  /** Prompt tokens that came from the cache when it first started. */
  cachedTokens: number | undefined;
  /** Full blocks that it has promised to compute, for others to wait for: from..to. */
  claimedFrom = 0;
  claimedTo = 0;
  /** Its place among the running ones, while it runs. */
  slot = 0;
  /** It is not let in before there is memory where it goes on: what it gathers is not kept from others while it waits. */
  awaitsLanding = false;
  /** Blocks of its prefix are on their way here: while it waits it is not let in. */
  loading = false;
  /** It may start behind these; once it runs: they are not known to be here. */
  arriving: ArrivingPrefix | undefined;
  /** Its blocks before this one may be shared; undefined: all may. Those that follow have left the index, so that they can move. */
  sharedBlocks: number | undefined;
  /** How many of its blocks, from `awayFrom` on, are not in the table but away. */
  awayBlocks = 0;
  awayFrom = 0;
  /** Its blocks before this one have been offered to a store. */
  offeredBlocks = 0;
  /** Index of a block that another sequence is computing, while waiting for it. */
  waitsForBlock: number | undefined;

  constructor(spec: SequenceSpec) {
    this.background = spec.background ?? false;
    this.priority = this.background ? Number.NEGATIVE_INFINITY : spec.priority;
    this.tenant = spec.tenant ?? '';
    this.arrival = spec.arrival;
    this.promptLength = spec.promptLength;
    this.lengthMax = spec.lengthMax ?? 0;
    this.samples = spec.samples;
    this.scoresPrompt = spec.scoresPrompt;
    this.content = spec.content;
    this.table = new BlockTable(spec.groups, spec.content.chain.blocks + 2);
  }

  /** Tokens from this one on lie in other pages than when they were computed, equal ones, or in none: the pages that they lay in are free. */
  swapped(fromToken: number): void {
    this.copier?.letGo(fromToken);
  }

  /** Not all that has landed is in the table, or was. */
  get isLanding(): boolean {
    return this.landed > this.computed;
  }

  /** It holds nothing any more: what had landed is of no use. */
  empty(): void {
    this.computed = 0;
    this.planned = 0;
    this.landed = 0;
    this.landedPages = undefined;
    this.swapped(0);
  }

  /** It holds nothing any more that others could not share. */
  unshare(): void {
    this.sharedBlocks = undefined;
    this.awayBlocks = 0;
    this.awayFrom = 0;
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

  /** Full blocks that may come from the cache: never the last token, whose logits are wanted, nor a prompt row still to be scored. */
  reusableBlocks(blockTokens: number): number {
    const known = this.length - 1;
    return Math.floor((this.scoring ? Math.min(known, this.scored) : known) / blockTokens);
  }

  get scoring(): boolean {
    return this.scoresPrompt && this.scored < this.promptLength - 1;
  }

  /** Position of the first planned row that is scored, and how many there are. */
  get scoredRowsFrom(): number {
    return Math.max(this.computed, this.scored);
  }

  get scoredRows(): number {
    if (!this.scoring) return 0;
    return Math.max(0, Math.min(this.computed + this.planned, this.promptLength - 1) - this.scoredRowsFrom);
  }

  /** True when the last planned row is that of the last known token. */
  get samplesNow(): boolean {
    return this.samples && this.planned > 0 && this.planned === this.remaining;
  }
}

/** The order of everything: larger priority first, then earlier arrival. */
export function outranks(a: Sequence, b: Sequence): boolean {
  return a.priority === b.priority ? a.arrival < b.arrival : a.priority > b.priority;
}
