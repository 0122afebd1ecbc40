// The lending side of an instance: grants loans from its own memory, refuses when short, recalls, and reclaims loans
// that are not renewed.

import type { LendingMemory } from '../../kvcache/lending-memory.ts';
import type { BlockId, InstanceIndex, LoanNumber } from '../../protocol/ids.ts';
import type { Envelope, LendingMessage } from '../../protocol/lending-messages.ts';
import type { LoanTotal, Memory } from '../../protocol/lending-report.ts';
import {
  blocksLendable,
  type LendingPolicy,
  remoteAttentionPermille,
  remoteAttentionPermilleMin,
  slackPermille,
  upToUnits,
  wholeUnits,
} from '../lending-policy.ts';
import type { Outbox } from '../outbox.ts';
import type { LendingTimes } from '../times.ts';

interface Loan {
  readonly number: LoanNumber;
  readonly memory: Memory;
  readonly granted: readonly BlockId[];
  readonly blocks: Set<BlockId>;
  leaseEndUs: number;
  /** Guaranteed to a running sequence of the debtor: not recalled. */
  guaranteed: boolean;
  /** After a recall: blocks that the debtor may keep. */
  keep: number;
  /** From this time on the lease is not renewed while the debtor holds more than `keep`. */
  recallEndUs: number;
}

interface Debtor {
  readonly instance: InstanceIndex;
  incarnation: number;
  readonly loans: Map<LoanNumber, Loan>;
  /** Ended loans that late messages of the debtor may still name. */
  readonly closed: Set<LoanNumber>;
  closedBelow: LoanNumber;
  stamp: number;
}

type MessageOf<Kind extends LendingMessage['kind']> = Extract<LendingMessage, { kind: Kind }>;

/** The part of a creditor's steps that queries of a debtor may take. */
export interface AttentionShare {
  readonly debtor: InstanceIndex;
  readonly permille: number;
}

const averagedSteps = 8;

/** Memory that the instance of this creditor requires itself. */
export interface OwnDemand {
  /** The instance has to borrow. */
  readonly isShort: boolean;
  /** It lends nothing more. */
  readonly isDraining: boolean;
  /** Device blocks guaranteed to running sequences. */
  readonly guaranteedBlocks: number;
  /** The part of `guaranteedBlocks` that idle borrowed blocks do not cover. */
  readonly guaranteedMissingBlocks: number;
}

/**
 * Answers each message in the step that receives it and never borrows to do so: no chain of waiting instances can form.
 */
export class Creditor {
  readonly #memories: Readonly<Record<Memory, LendingMemory>>;
  readonly #policy: LendingPolicy;
  readonly #times: LendingTimes;
  readonly #out: Outbox;
  readonly #debtors = new Map<InstanceIndex, Debtor>();
  readonly #own: OwnDemand;
  /** The admission hold for a debtor's reservation. */
  #hold: { readonly debtor: InstanceIndex; readonly number: number; untilUs: number } | undefined;
  #holds = 0;
  /** Share of the instance's steps for remote attention, in thousandths. */
  #sharePermille: number;

  constructor(
    memories: Readonly<Record<Memory, LendingMemory>>,
    policy: LendingPolicy,
    times: LendingTimes,
    out: Outbox,
    own: OwnDemand,
  ) {
    this.#own = own;
    this.#memories = memories;
    this.#policy = policy;
    this.#sharePermille = policy.remoteAttentionPermilleMax;
    this.#times = times;
    this.#out = out;
  }

  /** A short instance lends from neither memory: otherwise two instances could borrow from each other without end. */
  lendable(memory: Memory): number {
    if (this.#own.isShort || this.#own.isDraining) return 0;
    const { totals } = this.#memories[memory];
    const reserved = memory === 'device' ? this.#own.guaranteedMissingBlocks : 0;
    return blocksLendable({ ...totals, available: totals.available - reserved }, this.#policy);
  }

  /** Additional blocks that could be lent once all local sequences end. */
  lendableLater(memory: Memory): number {
    if (this.#own.isDraining) return 0;
    const { total, lent } = this.#memories[memory].totals;
    return blocksLendable({ total, available: total - lent, lent }, this.#policy);
  }

  /** Lent blocks that are not guaranteed. */
  recallable(memory: Memory): number {
    let blocks = 0;
    for (const { loans } of this.#debtors.values())
      for (const loan of loans.values()) if (loan.memory === memory && !loan.guaranteed) blocks += loan.blocks.size;
    return blocks;
  }

  /** Blocks that can be lent to a reservation: all except those guaranteed to local sequences. */
  #lendableForReservation(memory: Memory): number {
    if (this.#own.isDraining) return 0;
    const guaranteed = memory === 'device' ? this.#own.guaranteedBlocks : 0;
    const { totals } = this.#memories[memory];
    const spare = totals.available - this.#policy.lowWaterBlocks - guaranteed;
    return wholeUnits(Math.max(0, Math.min(blocksLendable(totals, this.#policy), spare)), this.#policy);
  }

  /**
   * Number of the current admission hold. During a hold, only requests that waited at the end of the previous one start.
   */
  get hold(): number | undefined {
    return this.#hold?.number;
  }

  get totals(): readonly LoanTotal[] {
    const totals: LoanTotal[] = [];
    for (const [debtor, { loans }] of this.#debtors) {
      for (const memory of ['device', 'host'] as const) {
        let blocks = 0;
        for (const loan of loans.values()) if (loan.memory === memory) blocks += loan.blocks.size;
        if (blocks > 0) totals.push({ debtor, memory, blocks });
      }
    }
    return totals;
  }

  /** Blocks of a loan, for checkers; undefined if there is no such loan. */
  blocksOf(debtor: InstanceIndex, incarnation: number, loan: LoanNumber): ReadonlySet<BlockId> | undefined {
    const known = this.#debtors.get(debtor);
    return known?.incarnation === incarnation ? known.loans.get(loan)?.blocks : undefined;
  }

  /** When the next lease or the hold ends. */
  get nextUs(): number {
    let next = this.#hold?.untilUs ?? Number.POSITIVE_INFINITY;
    for (const { loans } of this.#debtors.values())
      for (const loan of loans.values()) next = Math.min(next, loan.leaseEndUs);
    return next;
  }

  /** Reclaims loans that were not renewed in time: the debtor failed, is disconnected, or did not obey a recall. */
  expire(): void {
    if (this.#hold !== undefined && this.#hold.untilUs <= this.#out.nowUs) this.#hold = undefined;
    for (const debtor of this.#debtors.values()) {
      for (const loan of debtor.loans.values()) {
        if (loan.leaseEndUs <= this.#out.nowUs) this.#close(debtor, loan);
      }
    }
  }

  /** The debtor restarted: the blocks of its earlier incarnation become free. */
  restarted(instance: InstanceIndex): void {
    const debtor = this.#debtors.get(instance);
    if (debtor === undefined) return;
    for (const loan of debtor.loans.values()) this.#close(debtor, loan);
    this.#debtors.delete(instance);
  }

  /** @param sequence of this creditor's last heartbeat */
  borrow({ from, fromIncarnation }: Envelope, message: MessageOf<'borrow'>, sequence: number): void {
    const debtor = this.#debtor(from as InstanceIndex, fromIncarnation, message.closedBelow);
    const known = debtor.loans.get(message.loan);
    if (known !== undefined) {
      this.#out.countAnomaly('duplicate', 'borrow');
      this.#lend(from as InstanceIndex, fromIncarnation, known);
      return;
    }
    if (message.loan < debtor.closedBelow || debtor.closed.has(message.loan)) {
      this.#out.countAnomaly('late', 'borrow');
      return;
    }
    const { memory } = message;
    if (message.urgent) this.#hold = undefined;
    const lendable = this.#lendableTo(from as InstanceIndex, message);
    const count = Math.min(message.blocks, lendable);
    const makesRoom = message.reserves && (this.#hold === undefined || this.#hold.debtor === from);
    if (makesRoom && count < message.blocks) this.#makeRoom(from as InstanceIndex, memory, message.blocks - count);
    if (count < (message.reserves ? Math.min(message.blocks, this.#policy.loanBlocksMin) : 1)) {
      this.#out.send(from, fromIncarnation, { kind: 'refuse', loan: message.loan, memory, sequence });
      return;
    }
    const granted: BlockId[] = [];
    while (granted.length < count) {
      const block = this.#memories[memory].allocate('remote');
      if (block === undefined)
        throw new Error(`Cannot lend a block: ${memory} memory is full: ${count} blocks were lendable`);
      granted.push(block);
    }
    const loan: Loan = {
      number: message.loan,
      memory,
      granted,
      blocks: new Set(granted),
      leaseEndUs: this.#out.nowUs + this.#times.leaseUs,
      guaranteed: false,
      keep: Number.MAX_SAFE_INTEGER,
      recallEndUs: Number.POSITIVE_INFINITY,
    };
    debtor.loans.set(message.loan, loan);
    this.#out.push({ kind: 'granted', debtor: debtor.instance, memory, blocks: granted });
    this.#lend(from as InstanceIndex, fromIncarnation, loan);
  }

  /** During a hold, other debtors borrow nothing. */
  #lendableTo(debtor: InstanceIndex, { memory, reserves }: MessageOf<'borrow'>): number {
    if (this.#hold !== undefined && this.#hold.debtor !== debtor) return 0;
    return reserves ? this.#lendableForReservation(memory) : this.lendable(memory);
  }

  #makeRoom(debtor: InstanceIndex, memory: Memory, blocks: number): void {
    const untilUs = this.#out.nowUs + this.#times.holdUs;
    if (this.#hold?.debtor === debtor) this.#hold.untilUs = untilUs;
    else this.#hold = { debtor, number: ++this.#holds, untilUs };
    this.recall(memory, blocks, debtor);
  }

  renew({ from, fromIncarnation }: Envelope, message: MessageOf<'renew'>): void {
    const debtor = this.#debtor(from as InstanceIndex, fromIncarnation, message.closedBelow);
    if (message.stamp <= debtor.stamp) {
      this.#out.countAnomaly(message.stamp === debtor.stamp ? 'duplicate' : 'late', 'renew');
      return;
    }
    debtor.stamp = message.stamp;
    const known = message.loans.flatMap((number) => debtor.loans.get(number) ?? []);
    for (const loan of known) this.#setGuaranteed(loan, message.committed.includes(loan.number));
    if (message.reservationEnded && this.#hold?.debtor === from) this.#hold = undefined;
    const renewed = known.filter((loan) => loan.blocks.size <= loan.keep || this.#out.nowUs < loan.recallEndUs);
    for (const loan of renewed) loan.leaseEndUs = this.#out.nowUs + this.#times.leaseUs;
    this.#out.send(from, fromIncarnation, {
      kind: 'renewed',
      stamp: message.stamp,
      loans: renewed.map((loan) => ({
        loan: loan.number,
        keep: loan.keep,
        remoteAttentionPermille: this.#bound(loan),
      })),
      unknown: message.loans.filter((number) => !debtor.loans.has(number)),
    });
  }

  #setGuaranteed(loan: Loan, guaranteed: boolean): void {
    loan.guaranteed = guaranteed;
    if (!guaranteed) return;
    loan.keep = Number.MAX_SAFE_INTEGER;
    loan.recallEndUs = Number.POSITIVE_INFINITY;
  }

  /**
   * Takes back the blocks that are still lent; others were returned before. Every return is acknowledged, so that the
   * debtor stops sending it.
   */
  takeBack({ from, fromIncarnation }: Envelope, message: MessageOf<'return'>): void {
    const debtor = this.#debtor(from as InstanceIndex, fromIncarnation, message.closedBelow);
    const loan = debtor.loans.get(message.loan);
    const blocks = (message.blocks ?? [...(loan?.blocks ?? [])]).filter((block) => loan?.blocks.has(block));
    if (loan === undefined) this.#out.countAnomaly(debtor.closed.has(message.loan) ? 'duplicate' : 'late', 'return');
    else if (blocks.length === 0) this.#out.countAnomaly('duplicate', 'return');
    if (loan !== undefined) this.#free(debtor, loan, blocks);
    if (loan?.blocks.size === 0) this.#close(debtor, loan);
    // If the return overtook its request, the late request must not be granted.
    if (message.blocks === undefined && message.loan >= debtor.closedBelow) debtor.closed.add(message.loan);
    this.#out.send(from, fromIncarnation, { kind: 'returned', loan: message.loan, blocks: message.blocks });
  }

  /** Recalls at least `blocks` blocks, of those without a guarantee, of a memory, counting those that are recalled already. */
  recall(memory: Memory, blocks: number, except?: InstanceIndex): void {
    let missing = blocks;
    const loans = [...this.#debtors].flatMap(([instance, debtor]) =>
      [...debtor.loans.values()]
        .filter((loan) => loan.memory === memory && !loan.guaranteed && instance !== except)
        .map((loan) => ({ instance, incarnation: debtor.incarnation, loan })),
    );
    for (const { loan } of loans) missing -= Math.max(0, loan.blocks.size - loan.keep);
    // The largest loans first, so that few debtors are affected.
    loans.sort((a, b) => b.loan.blocks.size - a.loan.blocks.size || a.instance - b.instance);
    for (const { instance, incarnation, loan } of loans) {
      if (missing <= 0) return;
      const kept = Math.min(loan.keep, loan.blocks.size);
      const count = Math.min(upToUnits(missing, this.#policy), kept);
      if (count === 0) continue;
      missing -= count;
      loan.keep = kept - count;
      loan.recallEndUs = Math.min(loan.recallEndUs, this.#out.nowUs + this.#times.recallUs);
      this.#out.send(instance, incarnation, { kind: 'recall', loan: loan.number, keep: loan.keep });
    }
  }

  /** Recalls all loans without a guarantee. */
  recallAll(): void {
    for (const memory of ['device', 'host'] as const) this.recall(memory, this.#memories[memory].totals.lent);
  }

  #debtor(instance: InstanceIndex, incarnation: number, closedBelow: LoanNumber): Debtor {
    let debtor = this.#debtors.get(instance);
    if (debtor === undefined) {
      debtor = { instance, incarnation, loans: new Map(), closed: new Set(), closedBelow: 0, stamp: 0 };
      this.#debtors.set(instance, debtor);
    }
    if (closedBelow > debtor.closedBelow) {
      debtor.closedBelow = closedBelow;
      for (const number of debtor.closed) if (number < closedBelow) debtor.closed.delete(number);
    }
    return debtor;
  }

  #lend(to: InstanceIndex, incarnation: number, loan: Loan): void {
    this.#out.send(to, incarnation, {
      kind: 'lend',
      loan: loan.number,
      blocks: loan.granted,
      leaseUs: this.#times.leaseUs,
      remoteAttentionPermille: this.#bound(loan),
    });
  }

  /** The loan's part of the creditor's steps for remote attention, in thousandths. */
  #bound(loan: Loan): number {
    const lent = this.#memories.device.totals.lent + this.#memories.host.totals.lent;
    return remoteAttentionPermille(loan.blocks.size, lent, this.#sharePermille);
  }

  /** The instance runs a step of its own. @param stepUs predicted, without attention for debtors @param tbtUsMax strictest objective of its requests */
  stepRuns(stepUs: number, tbtUsMax: number): void {
    const permille = slackPermille(stepUs, tbtUsMax, this.#policy);
    // Averaged over some steps: a single step with a chunk of a prompt changes little.
    this.#sharePermille += Math.round((permille - this.#sharePermille) / averagedSteps);
  }

  /** Bound of each debtor's queries: the sum over its loans, in thousandths of a step. */
  get attentionShares(): readonly AttentionShare[] {
    return [...this.#debtors].flatMap(([debtor, { loans }]) => {
      if (loans.size === 0) return [];
      const bounds = [...loans.values()].reduce((sum, loan) => sum + this.#bound(loan), 0);
      return [{ debtor, permille: Math.max(remoteAttentionPermilleMin, bounds) }];
    });
  }

  #close(debtor: Debtor, loan: Loan): void {
    this.#free(debtor, loan, [...loan.blocks]);
    debtor.loans.delete(loan.number);
    if (loan.number >= debtor.closedBelow) debtor.closed.add(loan.number);
  }

  #free({ instance: debtor }: Debtor, { blocks: lent, memory }: Loan, blocks: readonly BlockId[]): void {
    if (blocks.length === 0) return;
    for (const block of blocks) {
      lent.delete(block);
      this.#memories[memory].free('remote', block);
    }
    this.#out.push({ kind: 'reclaimed', debtor, memory, blocks });
  }

  /** Throws unless the blocks of all loans are exactly the lent blocks. */
  check(): void {
    for (const memory of ['device', 'host'] as const) {
      const blocks = new Set<BlockId>();
      let count = 0;
      for (const { loans } of this.#debtors.values()) {
        for (const loan of loans.values()) {
          if (loan.memory !== memory) continue;
          for (const block of loan.blocks) blocks.add(block);
          count += loan.blocks.size;
        }
      }
      const { lent, total } = this.#memories[memory].totals;
      if (blocks.size !== count || count !== lent)
        throw new Error(
          `Creditor broken: ${count} ${memory} blocks in loans, ${blocks.size} of them different, ${lent} lent`,
        );
      if (lent > Math.floor(total * this.#policy.lentShareMax))
        throw new Error(`Creditor broken: ${lent} ${memory} blocks of ${total} are lent: more than the share`);
    }
  }
}
