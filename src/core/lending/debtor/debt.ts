// The debtor's side of a loan: blocks that are idle, in use, frozen by a settlement, or being returned.
import type { BlockId, InstanceIndex, LoanNumber, RBlockId } from '../../protocol/ids.ts';
import type { Memory } from '../../protocol/lending-report.ts';

/** `asked`: requested. `held`: granted; its blocks are usable. `closing`: returned as a whole, not yet acknowledged. */
export type DebtState = 'asked' | 'held' | 'closing';

/** Priority of a borrow request: `urgent` first, then `reserves`, then others. */
export interface BorrowPriority {
  readonly reserves: boolean;
  readonly urgent: boolean;
}

export class Debt {
  readonly number: LoanNumber;
  readonly creditor: InstanceIndex;
  readonly creditorIncarnation: number;
  readonly memory: Memory;
  /** When it was requested. The creditor granted it later than this. */
  readonly askedUs: number;
  state: DebtState = 'asked';
  /** The blocks must not be used from this time on. */
  leaseEndUs = Number.POSITIVE_INFINITY;
  /** Share of the creditor's step, in thousandths, for attention over these blocks. */
  remoteAttentionPermille = 0;
  priority: BorrowPriority = { reserves: false, urgent: false };
  /** Guaranteed to a running sequence: the creditor does not recall it. */
  guaranteed = false;
  /** After a recall: the number of blocks that the debtor may keep. */
  keep = Number.MAX_SAFE_INTEGER;
  readonly idle: BlockId[] = [];
  readonly used = new Map<BlockId, RBlockId>();
  /** Frozen by a settlement; undefined: no sequence uses the block. */
  readonly frozen = new Map<BlockId, RBlockId | undefined>();
  /** Returned, but not yet acknowledged by the creditor. */
  readonly returning = new Set<BlockId>();
  /** Size of `returning` when the last return was sent. */
  returnsSent = 0;
  /** Blocks in use that the instance has to vacate. */
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

  /** Blocks that are not being returned. */
  get held(): number {
    return this.idle.length + this.used.size + this.frozen.size;
  }

  get isOver(): boolean {
    return this.state === 'held' && this.held === 0 && this.returning.size === 0;
  }

  /** The rBlocks whose only copy lies in this loan. */
  get rblocks(): readonly RBlockId[] {
    return [...this.used.values(), ...[...this.frozen.values()].filter((rblock) => rblock !== undefined)];
  }

  /** Removes all blocks. */
  empty(): void {
    this.idle.length = 0;
    for (const blocks of [this.used, this.frozen, this.vacating]) blocks.clear();
  }

  /** Returns up to `count` idle blocks. */
  returnIdle(count: number): void {
    for (const block of this.idle.splice(Math.max(0, this.idle.length - count))) this.returning.add(block);
  }

  /** Returns idle blocks until `keep` are left. The result lists the rBlocks that must be vacated as well. */
  applyRecall(): readonly RBlockId[] {
    this.returnIdle(Math.max(0, this.held - this.keep));
    const toVacate: RBlockId[] = [];
    let excess = this.held - this.keep - this.vacating.size;
    for (const [block, rblock] of this.used) {
      if (excess <= 0) break;
      if (this.vacating.has(block)) continue;
      this.vacating.add(block);
      toVacate.push(rblock);
      excess--;
    }
    return toVacate;
  }

  /** The sequence frees a block. */
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

  /** Freezes up to `count` blocks, idle ones first, and returns them. */
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

  /** The settlement was committed: the block is returned to its creditor. Returns the rBlock that it held. */
  returnFrozen(block: BlockId): RBlockId | undefined {
    if (!this.frozen.has(block)) return undefined;
    const rblock = this.frozen.get(block);
    this.frozen.delete(block);
    this.returning.add(block);
    return rblock;
  }
}
