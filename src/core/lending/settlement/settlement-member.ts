// A member's side of a settlement: freezes and stages its blocks, votes, and after the commit returns the borrowed
// blocks and brings the contents home.

import type { LendingMemory } from '../../kvcache/lending-memory.ts';
import type { BlockId, LoanNumber, RBlockId, SettlementId } from '../../protocol/ids.ts';
import type { LendingMessage } from '../../protocol/lending-messages.ts';
import type { Memory } from '../../protocol/lending-report.ts';
import type { Creditor } from '../creditor/creditor.ts';
import type { Debtor } from '../debtor/debtor.ts';
import type { Outbox } from '../outbox.ts';
import type { RBlockTable } from '../rblock-table.ts';
import type { LendingTimes } from '../times.ts';

type MessageOf<Kind extends LendingMessage['kind']> = Extract<LendingMessage, { kind: Kind }>;

interface Current {
  readonly settlement: SettlementId;
  readonly memory: Memory;
  readonly frozen: readonly { readonly loan: LoanNumber; readonly block: BlockId }[];
  /** The contents are staged, and the member has voted. */
  prepared: boolean;
  askAtUs: number;
}

interface Decided {
  readonly settlement: SettlementId;
  readonly outcome: 'committed' | 'aborted';
}

export interface SettlementMemberContext {
  readonly memories: Readonly<Record<Memory, LendingMemory>>;
  readonly table: RBlockTable;
  readonly creditor: Creditor;
  readonly debtor: Debtor;
}

/**
 * Borrowed blocks are returned by ordinary returns, after their contents are staged: no block has two owners, whichever
 * message is lost. Staged contents take the first free block at home, and recall lent blocks. So they come home even if
 * another member does not receive the commit.
 */
export class SettlementMember {
  readonly #times: LendingTimes;
  readonly #out: Outbox;
  readonly #parts: SettlementMemberContext;
  /** Capacity of the staging buffer, in blocks. */
  readonly #stagingMax: number;
  #committed = 0;
  /** Staged contents that wait for memory at home, in order, with their time-outs. */
  readonly #comingHome = new Map<RBlockId, number>();
  #current: Current | undefined;
  #decided: Decided | undefined;

  constructor(times: LendingTimes, out: Outbox, stagingBlocks: number, parts: SettlementMemberContext) {
    this.#times = times;
    this.#out = out;
    this.#stagingMax = stagingBlocks;
    this.#parts = parts;
  }

  /** Blocks that could be staged by another settlement now. */
  get stagingBlocks(): number {
    const frozen = this.#current?.frozen.length ?? 0;
    return Math.max(0, this.#stagingMax - this.#comingHome.size - frozen);
  }

  /** Settlements in which blocks were returned. */
  get committed(): number {
    return this.#committed;
  }

  get isFrozen(): boolean {
    return this.#current !== undefined;
  }

  get nextUs(): number {
    const home = this.#comingHome.values().next().value ?? Number.POSITIVE_INFINITY;
    return Math.min(home, this.#current?.prepared === true ? this.#current.askAtUs : home);
  }

  prepare(message: MessageOf<'prepare'>): void {
    const { settlement } = message;
    const last = this.#current ?? this.#decided;
    if (last !== undefined && !isAfter(settlement, last.settlement)) {
      const same = !isAfter(last.settlement, settlement);
      this.#out.countAnomaly(same ? 'duplicate' : 'late', 'prepare');
      if (same && this.#current?.prepared === true) this.#vote(this.#current);
      return;
    }
    // A later settlement implies that the current one was not committed.
    if (this.#current !== undefined) this.#abort(this.#current);
    const frozen = this.#freeze(message);
    const current = { settlement, memory: message.memory, frozen, prepared: false, askAtUs: 0 };
    this.#current = current;
    const rblocks = this.#contents(current);
    if (frozen.length < message.blocks || rblocks.length + this.#comingHome.size > this.#stagingMax) {
      this.#decline(current);
    } else if (rblocks.length === 0) this.staged(settlement);
    else this.#out.push({ kind: 'stage', settlement, rblocks });
  }

  /** The contents are staged. */
  staged(settlement: SettlementId): void {
    const current = this.#current;
    if (current === undefined || current.prepared || !isSame(current.settlement, settlement)) return;
    current.prepared = true;
    current.askAtUs = this.#out.nowUs + this.#times.inDoubtUs;
    this.#vote(current);
  }

  /** Staging failed: this member cannot settle. */
  stagingFailed(settlement: SettlementId): void {
    const current = this.#current;
    if (current === undefined || current.prepared || !isSame(current.settlement, settlement)) return;
    this.#decline(current);
  }

  commit({ settlement }: MessageOf<'commit'>): void {
    const current = this.#current;
    if (current?.prepared === true && isSame(current.settlement, settlement)) this.#apply(current);
    else {
      const committed = this.#decided?.outcome === 'committed' && isSame(this.#decided.settlement, settlement);
      this.#out.countAnomaly(committed ? 'duplicate' : 'late', 'commit');
    }
    // Sent for late commits too, so that the gManager stops resending.
    this.#out.send('gmanager', settlement.epoch, { kind: 'settled', settlement });
  }

  abort({ settlement }: MessageOf<'abort'>): void {
    const current = this.#current;
    if (current !== undefined && isSame(current.settlement, settlement)) {
      this.#abort(current);
      return;
    }
    const decided = this.#decided !== undefined && isSame(this.#decided.settlement, settlement);
    this.#out.countAnomaly(decided ? 'duplicate' : 'late', 'abort');
  }

  /** A gManager commits no settlement of an earlier epoch. */
  newEpoch(epoch: number): void {
    if (this.#current !== undefined && this.#current.settlement.epoch < epoch) this.#abort(this.#current);
  }

  /** Asks for the outcome if in doubt for too long, then brings staged contents home as memory becomes free. */
  tick(): void {
    const current = this.#current;
    if (current?.prepared === true && this.#out.nowUs >= current.askAtUs) {
      this.#out.countAnomaly('lost', 'commit');
      current.askAtUs = this.#out.nowUs + this.#times.inDoubtUs;
      const { settlement } = current;
      this.#out.send('gmanager', undefined, { kind: 'outcome', settlement });
    }
    this.#bringHome();
  }

  /** The sequence frees contents that are still staged. */
  forget(rblock: RBlockId): void {
    this.#comingHome.delete(rblock);
  }

  #freeze({ creditor, memory, blocks }: MessageOf<'prepare'>): Current['frozen'] {
    const frozen: { loan: LoanNumber; block: BlockId }[] = [];
    for (const debt of this.#parts.debtor.debts) {
      if (debt.creditor !== creditor || debt.memory !== memory || debt.state !== 'held') continue;
      for (const block of debt.freeze(blocks - frozen.length)) frozen.push({ loan: debt.number, block });
    }
    return frozen;
  }

  /** The rBlocks whose contents lie in the frozen blocks. */
  #contents({ frozen }: Current): readonly RBlockId[] {
    return frozen.flatMap(({ loan, block }) => this.#parts.debtor.find(loan)?.frozen.get(block) ?? []);
  }

  #vote({ settlement, frozen }: Current): void {
    this.#out.send('gmanager', settlement.epoch, { kind: 'prepared', settlement, blocks: frozen.length });
  }

  #apply(current: Current): void {
    const { settlement, frozen, memory } = current;
    for (const { loan, block } of frozen) {
      const rblock = this.#parts.debtor.find(loan)?.returnFrozen(block);
      if (rblock === undefined) continue;
      this.#parts.table.move(rblock, { kind: 'staged', memory });
      this.#comingHome.set(rblock, this.#out.nowUs + this.#times.homeUs);
    }
    this.#committed++;
    this.#current = undefined;
    this.#decided = { settlement, outcome: 'committed' };
  }

  #decline(current: Current): void {
    const { settlement } = current;
    this.#abort(current);
    this.#out.send('gmanager', settlement.epoch, { kind: 'declined', settlement });
  }

  #abort(current: Current): void {
    const { settlement, frozen } = current;
    this.#out.push({ kind: 'cancelStaging', settlement, rblocks: this.#contents(current) });
    for (const { loan, block } of frozen) {
      const debt = this.#parts.debtor.find(loan);
      debt?.unfreeze(block);
      if (debt !== undefined) this.#parts.debtor.applyRecall(debt);
    }
    this.#current = undefined;
    this.#decided = { settlement, outcome: 'aborted' };
  }

  #bringHome(): void {
    const missing: Record<Memory, number> = { device: 0, host: 0 };
    const lost: RBlockId[] = [];
    for (const [rblock, untilUs] of this.#comingHome) {
      const place = this.#parts.table.find(rblock);
      if (place?.kind !== 'staged')
        throw new Error(`Settlement broken: rBlock ${rblock} waits for memory at home, but is not staged`);
      const { memory } = place;
      const block = missing[memory] === 0 ? this.#parts.memories[memory].allocate('local') : undefined;
      if (block !== undefined) {
        this.#parts.table.move(rblock, { kind: 'home', memory, block });
        this.#comingHome.delete(rblock);
        this.#out.push({ kind: 'placed', rblock });
      } else if (this.#out.nowUs >= untilUs) lost.push(rblock);
      else missing[memory]++;
    }
    for (const rblock of lost) {
      this.#comingHome.delete(rblock);
      this.#parts.table.remove(rblock);
    }
    this.#out.rblocksLost(lost);
    for (const memory of ['device', 'host'] as const) {
      if (missing[memory] > 0) this.#parts.creditor.recall(memory, missing[memory]);
    }
  }

  /** Throws unless all staged contents wait for memory, and all frozen blocks belong to the current settlement. */
  check(): void {
    let staged = 0;
    for (const [rblock, { kind }] of this.#parts.table.entries()) {
      if (kind !== 'staged') continue;
      staged++;
      if (!this.#comingHome.has(rblock))
        throw new Error(`Settlement broken: rBlock ${rblock} is staged, but does not wait for memory at home`);
    }
    if (staged !== this.#comingHome.size || staged > this.#stagingMax)
      throw new Error(
        `Settlement broken: ${staged} rBlocks staged, ${this.#comingHome.size} wait for memory, the buffer has ${this.#stagingMax}`,
      );
    let frozen = 0;
    for (const debt of this.#parts.debtor.debts) frozen += debt.frozen.size;
    if (frozen > (this.#current?.frozen.length ?? 0))
      throw new Error(
        `Settlement broken: ${frozen} blocks are frozen, ${this.#current?.frozen.length ?? 0} by a settlement`,
      );
  }
}

function isSame(a: SettlementId, b: SettlementId): boolean {
  return a.epoch === b.epoch && a.number === b.number;
}

function isAfter(a: SettlementId, b: SettlementId): boolean {
  return a.epoch > b.epoch || (a.epoch === b.epoch && a.number > b.number);
}
