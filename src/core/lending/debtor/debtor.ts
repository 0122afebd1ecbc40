// The borrowing side of an instance: loans, their leases, and returns that are resent until acknowledged.

import type { InstanceIndex, LoanNumber, RBlockId } from '../../protocol/ids.ts';
import type { Envelope, LendingMessage, Party } from '../../protocol/lending-messages.ts';
import type { DebtTotal, Memory } from '../../protocol/lending-report.ts';
import { blocksWithinBound, type LendingPolicy, wholeUnits } from '../lending-policy.ts';
import type { Outbox } from '../outbox.ts';
import type { RBlockTable } from '../rblock-table.ts';
import type { LendingTimes } from '../times.ts';
import { type BorrowPriority, Debt } from './debt.ts';

type MessageOf<Kind extends LendingMessage['kind']> = Extract<LendingMessage, { kind: Kind }>;

interface Renewal {
  stamp: number;
  ackedStamp: number;
  /** When each unanswered renewal was sent. */
  readonly sentUs: Map<number, number>;
}

/**
 * A block is used only while its lease certainly runs at the creditor: a lease counts from its request, not from the
 * answer.
 */
export class Debtor {
  readonly #times: LendingTimes;
  readonly #out: Outbox;
  readonly #table: RBlockTable;
  readonly #policy: LendingPolicy;
  readonly #debts = new Map<LoanNumber, Debt>();
  readonly #renewals = new Map<InstanceIndex, Renewal>();
  /**
   * Creditors that were asked for a reservation, with their incarnations. They may hold admission until it ends.
   */
  readonly #askedForReservation = new Map<InstanceIndex, number>();
  /** The next renewals report the end of the reservation. */
  #isReservationEnded = false;
  #nextLoan: LoanNumber = 1;
  #renewAtUs = Number.POSITIVE_INFINITY;

  constructor(times: LendingTimes, out: Outbox, table: RBlockTable, policy: LendingPolicy) {
    this.#policy = policy;
    this.#times = times;
    this.#out = out;
    this.#table = table;
  }

  get debts(): IterableIterator<Debt> {
    return this.#debts.values();
  }

  find(loan: LoanNumber): Debt | undefined {
    return this.#debts.get(loan);
  }

  /** Idle borrowed blocks. */
  get idleBlocks(): number {
    let blocks = 0;
    for (const debt of this.#debts.values()) blocks += debt.idle.length;
    return blocks;
  }

  get totals(): readonly DebtTotal[] {
    const totals = new Map<string, DebtTotal>();
    for (const { creditor, memory, held } of this.#debts.values()) {
      const key = `${creditor} ${memory}`;
      const blocks = (totals.get(key)?.blocks ?? 0) + held;
      if (blocks > 0) totals.set(key, { creditor, memory, blocks });
    }
    return [...totals.values()];
  }

  /** When a lease ends or renewals are due. */
  get nextUs(): number {
    let next = this.#renewAtUs;
    for (const debt of this.#debts.values()) {
      if (debt.returning.size > debt.returnsSent) return this.#out.nowUs;
      next = Math.min(next, debt.leaseEndUs);
    }
    return next;
  }

  /** Requests blocks of a creditor, which answers with `lend` or `refuse`. */
  ask(
    creditor: InstanceIndex,
    creditorIncarnation: number,
    memory: Memory,
    blocks: number,
    priority: BorrowPriority,
  ): Debt {
    const debt = new Debt(this.#nextLoan++, creditor, creditorIncarnation, memory, this.#out.nowUs);
    debt.priority = priority;
    if (priority.reserves) this.#askedForReservation.set(creditor, creditorIncarnation);
    this.#debts.set(debt.number, debt);
    this.resend(debt, blocks);
    this.#renewAtUs = Math.min(this.#renewAtUs, this.#out.nowUs + this.#times.renewUs);
    return debt;
  }

  resend({ number, creditor, creditorIncarnation, memory, priority }: Debt, blocks: number): void {
    const closedBelow = this.#closedBelow();
    this.#out.send(creditor, creditorIncarnation, {
      kind: 'borrow',
      loan: number,
      memory,
      blocks,
      ...priority,
      closedBelow,
    });
  }

  /** Returns the whole loan. */
  returnLoan(debt: Debt): void {
    debt.state = 'closing';
    // If the creditor does not answer, it has reclaimed the loan by then.
    debt.leaseEndUs = this.#out.nowUs + this.#times.leaseUs;
    this.#sendReturn(debt);
  }

  /** The request was refused: there is nothing to return. */
  forget(debt: Debt): void {
    this.#debts.delete(debt.number);
  }

  /** True when the message answers a pending request. */
  lent({ from, fromIncarnation }: Envelope, message: MessageOf<'lend'>): boolean {
    const debt = this.#debtOf(from, message.loan);
    if (debt === undefined) {
      const isOver = message.loan < this.#nextLoan;
      this.#out.countAnomaly(isOver ? 'late' : 'orphan', 'lend');
      const { loan } = message;
      this.#out.send(from, fromIncarnation, {
        kind: 'return',
        loan,
        blocks: undefined,
        closedBelow: this.#closedBelow(),
      });
      return false;
    }
    if (debt.state !== 'asked') {
      this.#out.countAnomaly(debt.state === 'held' ? 'duplicate' : 'late', 'lend');
      return false;
    }
    debt.leaseEndUs = debt.askedUs + message.leaseUs - this.#times.leaseGuardUs;
    debt.remoteAttentionPermille = message.remoteAttentionPermille;
    if (debt.leaseEndUs <= this.#out.nowUs) {
      this.returnLoan(debt);
      return true;
    }
    debt.state = 'held';
    debt.idle.push(...message.blocks);
    return true;
  }

  renewed({ from }: Envelope, message: MessageOf<'renewed'>): void {
    const renewal = this.#renewals.get(from as InstanceIndex);
    const sentUs = renewal?.sentUs.get(message.stamp);
    if (renewal === undefined || sentUs === undefined) {
      this.#out.countAnomaly(renewal?.ackedStamp === message.stamp ? 'duplicate' : 'late', 'renewed');
      return;
    }
    renewal.ackedStamp = message.stamp;
    for (const stamp of renewal.sentUs.keys()) if (stamp <= message.stamp) renewal.sentUs.delete(stamp);
    for (const { loan, keep, remoteAttentionPermille } of message.loans) {
      const debt = this.#debtOf(from, loan);
      if (debt?.state !== 'held') continue;
      debt.leaseEndUs = Math.max(debt.leaseEndUs, sentUs + this.#times.leaseUs - this.#times.leaseGuardUs);
      debt.remoteAttentionPermille = remoteAttentionPermille;
      if (keep < debt.keep && !debt.guaranteed) {
        this.#out.countAnomaly('lost', 'recall');
        this.#reduceTo(debt, keep);
      }
    }
    for (const loan of message.unknown) {
      const debt = this.#debtOf(from, loan);
      if (debt !== undefined) this.#loseLoan(debt);
    }
  }

  recalled({ from, fromIncarnation }: Envelope, { loan, keep }: MessageOf<'recall'>): void {
    const debt = this.#debtOf(from, loan);
    if (debt === undefined) {
      this.#out.countAnomaly('orphan', 'recall');
      this.#out.send(from, fromIncarnation, {
        kind: 'return',
        loan,
        blocks: undefined,
        closedBelow: this.#closedBelow(),
      });
    } else if (keep === debt.keep) this.#out.countAnomaly('duplicate', 'recall');
    else if (debt.guaranteed) this.#out.countAnomaly('late', 'recall');
    else if (debt.state !== 'held' || keep > debt.keep || debt.held <= keep) {
      this.#out.countAnomaly('late', 'recall');
      debt.keep = Math.min(debt.keep, keep);
    } else this.#reduceTo(debt, keep);
  }

  returned({ from }: Envelope, message: MessageOf<'returned'>): void {
    const debt = this.#debtOf(from, message.loan);
    const known = message.blocks?.filter((block) => debt?.returning.has(block));
    if (debt === undefined) this.#out.countAnomaly('late', 'returned');
    else if (known === undefined ? debt.state !== 'closing' : known.length === 0)
      this.#out.countAnomaly('duplicate', 'returned');
    else if (known === undefined) this.#debts.delete(debt.number);
    else {
      for (const block of known) debt.returning.delete(block);
      this.#forgetIfOver(debt);
    }
  }

  /** Attention at a creditor exceeded its bound: the excess blocks are returned. */
  limitRemoteAttention(creditor: InstanceIndex, takenPermille: number): void {
    const debts = [...this.#debts.values()].filter((debt) => debt.creditor === creditor && debt.state === 'held');
    const bound = debts.reduce((sum, { remoteAttentionPermille }) => sum + remoteAttentionPermille, 0);
    for (const debt of debts) {
      const within = wholeUnits(blocksWithinBound(debt.held, bound, takenPermille), this.#policy);
      this.#reduceTo(debt, Math.min(debt.keep, within));
    }
  }

  /** Guarantees the held loans to a prompt that was just admitted. The creditors are notified at once. */
  guaranteeLoans(): void {
    for (const debt of this.#debts.values()) {
      if (debt.state !== 'held') continue;
      debt.guaranteed = true;
      debt.keep = Number.MAX_SAFE_INTEGER;
    }
    this.endReservation();
    if (this.#debts.size > 0) this.#renewAtUs = this.#out.nowUs;
  }

  /**
   * The reserving prompt was admitted or has ended: creditors that hold admission are notified at once. If that message
   * is lost, their hold times out.
   */
  endReservation(): void {
    if (this.#askedForReservation.size === 0) return;
    this.#isReservationEnded = true;
    this.#renewAtUs = this.#out.nowUs;
  }

  /** The last sequence with guaranteed memory has ended. */
  releaseGuarantee(): void {
    for (const debt of this.#debts.values()) debt.guaranteed = false;
  }

  /** Ends the loans that creditors may reclaim from now on. */
  expire(): void {
    for (const debt of this.#debts.values()) if (debt.leaseEndUs <= this.#out.nowUs) this.#loseLoan(debt);
  }

  /** The creditor is unreachable: its blocks count as lost, and are returned once it is reachable. */
  abandon(creditor: InstanceIndex): void {
    for (const debt of this.#debts.values()) {
      if (debt.creditor !== creditor || debt.state !== 'held') continue;
      this.#loseBlocks(debt);
      debt.empty();
      this.returnLoan(debt);
    }
  }

  /** The creditor restarted: its earlier memory is gone. */
  restarted(instance: InstanceIndex): void {
    for (const debt of this.#debts.values()) if (debt.creditor === instance) this.#loseLoan(debt);
    this.#renewals.delete(instance);
    this.#askedForReservation.delete(instance);
  }

  /**
   * Takes `count` idle blocks of one loan: device memory before host memory, guaranteed loans before others, then the
   * latest lease. Undefined if no loan has that many.
   */
  take(count: number): readonly RBlockId[] | undefined {
    let best: Debt | undefined;
    for (const debt of this.#debts.values()) {
      if (debt.idle.length < count || debt.leaseEndUs <= this.#out.nowUs) continue;
      if (best === undefined || isBefore(debt, best)) best = debt;
    }
    if (best === undefined) return undefined;
    const { creditor, memory, number, idle, used } = best;
    return idle
      .splice(idle.length - count)
      .reverse()
      .map((block) => {
        const rblock = this.#table.add({ kind: 'remote', instance: creditor, memory, block, loan: number });
        used.set(block, rblock);
        return rblock;
      });
  }

  /** Returns up to `count` idle blocks. */
  returnIdle(count: number): void {
    let left = count;
    for (const debt of this.#debts.values()) {
      const returned = Math.min(left, debt.idle.length);
      debt.returnIdle(returned);
      left -= returned;
    }
  }

  /** Sends new returns at once; when due, renews leases and resends unacknowledged returns. */
  flush(): void {
    const due = this.#out.nowUs >= this.#renewAtUs;
    for (const debt of this.#debts.values()) this.#flushReturns(debt, due);
    if (!due) return;
    const creditors = new Map<InstanceIndex, Debt[]>();
    for (const debt of this.#debts.values()) {
      const group = creditors.get(debt.creditor) ?? [];
      if (debt.state === 'held') creditors.set(debt.creditor, [...group, debt]);
    }
    for (const [creditor, debts] of creditors) this.#renew(creditor, debts[0].creditorIncarnation, debts);
    if (this.#isReservationEnded) this.#notifyAsked(creditors);
    this.#renewAtUs = this.#debts.size === 0 ? Number.POSITIVE_INFINITY : this.#out.nowUs + this.#times.renewUs;
  }

  /** Notifies the creditors that were asked and have lent nothing. */
  #notifyAsked(creditors: ReadonlyMap<InstanceIndex, unknown>): void {
    for (const [creditor, incarnation] of this.#askedForReservation)
      if (!creditors.has(creditor)) this.#renew(creditor, incarnation, []);
    this.#askedForReservation.clear();
    this.#isReservationEnded = false;
  }

  #renew(creditor: InstanceIndex, incarnation: number, debts: readonly Debt[]): void {
    const renewal = this.#renewals.get(creditor) ?? { stamp: 0, ackedStamp: 0, sentUs: new Map<number, number>() };
    this.#renewals.set(creditor, renewal);
    if (renewal.sentUs.size > 0) this.#out.countAnomaly('lost', 'renew');
    for (const [stamp, sentUs] of renewal.sentUs) {
      if (sentUs + this.#times.leaseUs <= this.#out.nowUs) renewal.sentUs.delete(stamp);
    }
    const stamp = ++renewal.stamp;
    renewal.sentUs.set(stamp, this.#out.nowUs);
    const loans = debts.map(({ number }) => number);
    const committed = debts.filter((debt) => debt.guaranteed).map(({ number }) => number);
    const reservationEnded = this.#isReservationEnded || committed.length > 0;
    const closedBelow = this.#closedBelow();
    this.#out.send(creditor, incarnation, { kind: 'renew', stamp, loans, committed, reservationEnded, closedBelow });
  }

  #flushReturns(debt: Debt, due: boolean): void {
    const { returnsSent } = debt;
    if (debt.returning.size > returnsSent || (due && (debt.returning.size > 0 || debt.state === 'closing'))) {
      if (due && (returnsSent > 0 || debt.state === 'closing')) this.#out.countAnomaly('lost', 'return');
      this.#sendReturn(debt);
    }
    debt.returnsSent = debt.returning.size;
  }

  #sendReturn({ number, creditor, creditorIncarnation, state, returning }: Debt): void {
    const blocks = state === 'closing' ? undefined : [...returning];
    const closedBelow = this.#closedBelow();
    this.#out.send(creditor, creditorIncarnation, { kind: 'return', loan: number, blocks, closedBelow });
  }

  #reduceTo(debt: Debt, keep: number): void {
    debt.keep = keep;
    this.applyRecall(debt);
  }

  /** Returns recalled blocks that are idle, and has the others vacated. */
  applyRecall(debt: Debt): void {
    const rblocks = debt.applyRecall();
    if (rblocks.length > 0) this.#out.push({ kind: 'vacate', rblocks });
  }

  #loseLoan(debt: Debt): void {
    this.#loseBlocks(debt);
    this.#debts.delete(debt.number);
  }

  #loseBlocks({ rblocks }: Debt): void {
    for (const rblock of rblocks) this.#table.remove(rblock);
    this.#out.rblocksLost(rblocks);
  }

  #debtOf(creditor: Party, loan: LoanNumber): Debt | undefined {
    const debt = this.#debts.get(loan);
    return debt?.creditor === creditor ? debt : undefined;
  }

  #forgetIfOver(debt: Debt): void {
    if (debt.isOver) this.#debts.delete(debt.number);
  }

  #closedBelow(): LoanNumber {
    let open = this.#nextLoan;
    for (const number of this.#debts.keys()) open = Math.min(open, number);
    return open;
  }

  /** Throws unless the remote rBlocks of the table are exactly the blocks in use of all loans. */
  check(): void {
    let remote = 0;
    for (const [rblock, place] of this.#table.entries()) {
      if (place.kind !== 'remote') continue;
      remote++;
      const debt = this.#debts.get(place.loan);
      if (debt?.used.get(place.block) !== rblock && debt?.frozen.get(place.block) !== rblock)
        throw new Error(`Debtor broken: rBlock ${rblock} is not in loan ${place.loan}`);
    }
    let used = 0;
    for (const debt of this.#debts.values()) {
      used += debt.rblocks.length;
      const distinct = new Set([...debt.idle, ...debt.used.keys(), ...debt.frozen.keys(), ...debt.returning]);
      if (distinct.size !== debt.held + debt.returning.size)
        throw new Error(`Debtor broken: a block of loan ${debt.number} is held twice`);
    }
    if (used !== remote) throw new Error(`Debtor broken: ${used} borrowed blocks in use, ${remote} remote rBlocks`);
  }
}

function isBefore(a: Debt, b: Debt): boolean {
  if (a.memory !== b.memory) return a.memory === 'device';
  return a.guaranteed === b.guaranteed ? a.leaseEndUs > b.leaseEndUs : a.guaranteed;
}
