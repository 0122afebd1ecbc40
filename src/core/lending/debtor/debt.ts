// One loan as its debtor sees it: which of its blocks are in hand, in use, frozen by a settlement, or on their way back.
import type { BlockId, InstanceIndex, LoanNumber, RBlockId } from '../../protocol/ids.ts';
import type { Memory } from '../../protocol/lending-terms.ts';

/** `asked`: not answered yet. `held`: its blocks are here to use. `closing`: given back as a whole, whatever it holds. */
export type DebtState = 'asked' | 'held' | 'closing';

/** By which it was asked for: before others' wishes, and before those of whoever has the turn. */
export interface BorrowPriority {
  readonly reserves: boolean;
  readonly urgent: boolean;
}

export class Debt {
  readonly number: LoanNumber;
  readonly creditor: InstanceIndex;
  readonly creditorIncarnation: number;
  readonly memory: Memory;
  /** When it was first asked for: the creditor granted it later than this. */
  readonly askedUs: number;
  state: DebtState = 'asked';
  /** Its blocks must not be used from here on. */
  leaseEndUs = Number.POSITIVE_INFINITY;
  /** Share of the creditor's step that work on these blocks may take. */
  remoteAttentionPermille = 0;
  priority: BorrowPriority = { reserves: false, urgent: false };
  /** Promised to a prompt that runs: its creditor does not recall it. */
  committed = false;
  /** Recalled: more than so many must go. */
  keep = Number.MAX_SAFE_INTEGER;
  readonly idle: BlockId[] = [];
  readonly used = new Map<BlockId, RBlockId>();
  /** Of a settlement that is prepared; undefined: nobody uses it (any more). */
  readonly frozen = new Map<BlockId, RBlockId | undefined>();
  /** Until the creditor acknowledged that it has them. */
  readonly returning = new Set<BlockId>();
  /** How many of those were returning when a return was last sent. */
  returnsSent = 0;
  /** Those of `used` that the instance was asked to vacate. */
  readonly vacating = new Set<BlockId>();

  constructor(
    number: LoanNumber,
    creditor: InstanceIndex,
    creditorIncarnation: number,
    memory: Memory,
    askedUs: number,
  ) {
    this.number = number;
    this.creditor = creditor;
    this.creditorIncarnation = creditorIncarnation;
    this.memory = memory;
    this.askedUs = askedUs;
  }

  /** Blocks that are not on their way back. */
  get held(): number {
    return this.idle.length + this.used.size + this.frozen.size;
  }

  get isOver(): boolean {
    return this.state === 'held' && this.held === 0 && this.returning.size === 0;
  }

  /** All rBlocks whose contents lie there alone. */
  get rblocks(): readonly RBlockId[] {
    return [...this.used.values(), ...[...this.frozen.values()].filter((rblock) => rblock !== undefined)];
  }

  /** Nothing of it is used any more. */
  empty(): void {
    this.idle.length = 0;
    for (const blocks of [this.used, this.frozen, this.vacating]) blocks.clear();
  }

  /** Sends back blocks that nobody uses, `count` at most. */
  returnIdle(count: number): void {
    for (const block of this.idle.splice(Math.max(0, this.idle.length - count))) this.returning.add(block);
  }

  /** Brings it down to `keep` as far as that goes at once; returns the rBlocks that have to be vacated besides. */
  applyRecall(): readonly RBlockId[] {
    this.returnIdle(Math.max(0, this.held - this.keep));
    const asked: RBlockId[] = [];
    let excess = this.held - this.keep - this.vacating.size;
    for (const [block, rblock] of this.used) {
      if (excess <= 0) break;
      if (this.vacating.has(block)) continue;
      this.vacating.add(block);
      asked.push(rblock);
      excess--;
    }
    return asked;
  }

  /** Its holder lets go of a block. */
  free(block: BlockId): void {
    if (this.frozen.has(block)) {
      this.frozen.set(block, undefined);
      return;
    }
    if (!this.used.delete(block)) throw new Error(`Cannot free a borrowed block: it is not in use: block ${block}`);
    this.vacating.delete(block);
    if (this.held >= this.keep) this.returning.add(block);
    else this.idle.push(block);
  }

  /** Freezes up to `count` blocks, those that nobody uses first; returns them. */
  freeze(count: number): readonly BlockId[] {
    const chosen = this.idle.splice(Math.max(0, this.idle.length - count));
    for (const block of chosen) this.frozen.set(block, undefined);
    for (const [block, rblock] of [...this.used]) {
      if (chosen.length >= count) break;
      if (this.vacating.has(block)) continue;
      this.used.delete(block);
      this.frozen.set(block, rblock);
      chosen.push(block);
    }
    return chosen;
  }

  /** The settlement was aborted. */
  unfreeze(block: BlockId): void {
    if (!this.frozen.has(block)) return;
    const rblock = this.frozen.get(block);
    this.frozen.delete(block);
    if (rblock === undefined) this.idle.push(block);
    else this.used.set(block, rblock);
  }

  /** The settlement is committed: the block goes back. Returns whose contents it had. */
  settle(block: BlockId): RBlockId | undefined {
    if (!this.frozen.has(block)) return undefined;
    const rblock = this.frozen.get(block);
    this.frozen.delete(block);
    this.returning.add(block);
    return rblock;
  }
}
