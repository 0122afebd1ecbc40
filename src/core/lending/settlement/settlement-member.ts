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
  /** The contents are staged and the vote is yes. */
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
 * Borrowed blocks are returned by ordinary returns, and only after their contents are staged: no block ever has two
 * owners, whichever message is lost.
 * Staged contents take the first free block at home and recall lent blocks, so they come home even if another member
 * never receives the commit.
 */
export class SettlementMember {
  readonly #times: LendingTimes;
  readonly #out: Outbox;
  readonly #parts: SettlementMemberContext;
  /** Capacity of the staging buffer, in blocks. */
  readonly #stagingMax: number;
  /** Staged contents on their way home, in order, with their time-outs. */
  readonly #homecoming = new Map<RBlockId, number>();
  #current: Current | undefined;
  #decided: Decided | undefined;

  constructor(times: LendingTimes, out: Outbox, stagingBlocks: number, parts: SettlementMemberContext) {
    this.#times = times;
    this.#out = out;
    this.#stagingMax = stagingBlocks;
    this.#parts = parts;
  }

  get isFrozen(): boolean {
    return this.#current !== undefined;
  }

  get nextUs(): number {
    const home = this.#homecoming.values().next().value ?? Number.POSITIVE_INFINITY;
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
    // The gManager has started a later settlement: the current one was not committed.
    if (this.#current !== undefined) this.#abort(this.#current);
    const frozen = this.#freeze(message);
    const current = { settlement, memory: message.memory, frozen, prepared: false, askAtUs: 0 };
    this.#current = current;
    const rblocks = this.#contents(current);
    if (frozen.length < message.blocks || rblocks.length + this.#homecoming.size > this.#stagingMax) {
      this.#decline(current);
    } else if (rblocks.length === 0) this.fetched(settlement);
    else this.#out.push({ kind: 'fetch', settlement, rblocks });
  }

  /** The contents are staged. */
  fetched(settlement: SettlementId): void {
    const current = this.#current;
    if (current === undefined || current.prepared || !isSame(current.settlement, settlement)) return;
    current.prepared = true;
    current.askAtUs = this.#out.nowUs + this.#times.inDoubtUs;
    this.#vote(current);
  }

  /** Staging failed: this member cannot settle. */
  fetchFailed(settlement: SettlementId): void {
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

  /** A gManager with a later epoch commits nothing of an earlier epoch. */
  newEpoch(epoch: number): void {
    if (this.#current !== undefined && this.#current.settlement.epoch < epoch) this.#abort(this.#current);
  }

  /** Asks for the outcome when in doubt for too long, then brings staged contents home as memory allows. */
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

  /** The holder frees contents that are still staged. */
  forget(rblock: RBlockId): void {
    this.#homecoming.delete(rblock);
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
      const rblock = this.#parts.debtor.find(loan)?.settle(block);
      if (rblock === undefined) continue;
      this.#parts.table.move(rblock, { kind: 'staged', memory });
      this.#homecoming.set(rblock, this.#out.nowUs + this.#times.homeUs);
    }
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
    this.#out.push({ kind: 'cancelFetch', settlement, rblocks: this.#contents(current) });
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
    for (const [rblock, untilUs] of this.#homecoming) {
      const place = this.#parts.table.find(rblock);
      if (place?.kind !== 'staged') throw new Error(`Settler broken: rBlock ${rblock} comes home from nowhere`);
      const { memory } = place;
      const block = missing[memory] === 0 ? this.#parts.memories[memory].allocate('local') : undefined;
      if (block !== undefined) {
        this.#parts.table.move(rblock, { kind: 'home', memory, block });
        this.#homecoming.delete(rblock);
        this.#out.push({ kind: 'placed', rblock });
      } else if (this.#out.nowUs >= untilUs) lost.push(rblock);
      else missing[memory]++;
    }
    for (const rblock of lost) {
      this.#homecoming.delete(rblock);
      this.#parts.table.remove(rblock);
    }
    this.#out.lose(lost);
    for (const memory of ['device', 'host'] as const) {
      if (missing[memory] > 0) this.#parts.creditor.recall(memory, missing[memory]);
    }
  }

  /** Throws unless staged contents are those on their way home, and frozen blocks belong to the current settlement. */
  check(): void {
    let staged = 0;
    for (const [rblock, { kind }] of this.#parts.table.entries()) {
      if (kind !== 'staged') continue;
      staged++;
      if (!this.#homecoming.has(rblock)) throw new Error(`Settler broken: rBlock ${rblock} is staged and forgotten`);
    }
    if (staged !== this.#homecoming.size || staged > this.#stagingMax)
      throw new Error(
        `Settler broken: ${staged} rBlocks staged, ${this.#homecoming.size} come home, ${this.#stagingMax} fit`,
      );
    let frozen = 0;
    for (const debt of this.#parts.debtor.debts) frozen += debt.frozen.size;
    if (frozen > (this.#current?.frozen.length ?? 0))
      throw new Error(
        `Settler broken: ${frozen} blocks are frozen, ${this.#current?.frozen.length ?? 0} by a settlement`,
      );
  }
}

function isSame(a: SettlementId, b: SettlementId): boolean {
  return a.epoch === b.epoch && a.number === b.number;
}

function isAfter(a: SettlementId, b: SettlementId): boolean {
  return a.epoch > b.epoch || (a.epoch === b.epoch && a.number > b.number);
}
