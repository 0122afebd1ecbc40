// The lending side of an instance: grants from its own memory alone, refuses when short, recalls, and reclaims what is not renewed.

import type { LendingMemory } from '../../kvcache/lending-memory.ts';
import type { BlockId, InstanceIndex, LoanNumber } from '../../protocol/ids.ts';
import type { Envelope, LendingMessage } from '../../protocol/lending-messages.ts';
import type { LoanTotal, Memory } from '../../protocol/lending-terms.ts';
import {
  blocksLendable,
  type LendingPolicy,
  remoteAttentionPermille,
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
  /** A prompt that runs was promised it: it is not recalled. */
  firm: boolean;
  /** Recalled: the debtor may keep so many. */
  keep: number;
  /** From here on the lease is not renewed while more are held. */
  recallEndUs: number;
}

interface Debtor {
  readonly instance: InstanceIndex;
  incarnation: number;
  readonly loans: Map<LoanNumber, Loan>;
  /** Loans that are over, as far as the debtor might still speak of them. */
  readonly closed: Set<LoanNumber>;
  closedBelow: LoanNumber;
  stamp: number;
}

type Said<Kind extends LendingMessage['kind']> = Extract<LendingMessage, { kind: Kind }>;

/** What its instance needs itself. */
interface Needs {
  /** Does it want to borrow? */
  readonly isShort: () => boolean;
  /** Of device memory, for those who run; and what of that it has not in hand. */
  readonly promisedBlocks: () => number;
  readonly keptBlocks: () => number;
}

/** Answers every message in the step that heard it, and never borrows to do so: nobody who waits for it waits for a third. */
export class Creditor {
  readonly #memories: Readonly<Record<Memory, LendingMemory>>;
  readonly #policy: LendingPolicy;
  readonly #times: LendingTimes;
  readonly #out: Outbox;
  readonly #debtors = new Map<InstanceIndex, Debtor>();
  readonly #needs: Needs;
  /** Room is made for one who gathers. */
  #hold: { readonly debtor: InstanceIndex; readonly number: number; untilUs: number } | undefined;
  #holds = 0;

  constructor(
    memories: Readonly<Record<Memory, LendingMemory>>,
    policy: LendingPolicy,
    times: LendingTimes,
    out: Outbox,
    needs: Needs,
  ) {
    this.#needs = needs;
    this.#memories = memories;
    this.#policy = policy;
    this.#times = times;
    this.#out = out;
  }

  /** One that is short lends nothing, of no memory: or two would borrow from one another for ever. */
  lendable(memory: Memory): number {
    if (this.#needs.isShort()) return 0;
    const { figures } = this.#memories[memory];
    const kept = memory === 'device' ? this.#needs.keptBlocks() : 0;
    return blocksLendable({ ...figures, available: figures.available - kept }, this.#policy);
  }

  /** What could be lent besides, were all sequences here over. */
  lendableLater(memory: Memory): number {
    const { total, lent } = this.#memories[memory].figures;
    return blocksLendable({ total, available: total - lent, lent }, this.#policy);
  }

  /** Lent to those who were promised none of it. */
  recallable(memory: Memory): number {
    let blocks = 0;
    for (const { loans } of this.#debtors.values())
      for (const loan of loans.values()) if (loan.memory === memory && !loan.firm) blocks += loan.blocks.size;
    return blocks;
  }

  /** To one who gathers: all but what those who run here were promised. */
  #lendableInTurn(memory: Memory): number {
    const promised = memory === 'device' ? this.#needs.promisedBlocks() : 0;
    const { figures } = this.#memories[memory];
    const most = figures.available - this.#policy.lowWaterBlocks - promised;
    return wholeUnits(Math.max(0, Math.min(blocksLendable(figures, this.#policy), most)), this.#policy);
  }

  /** Which hold it is: while there is one, nobody who came since the last one ended starts here. */
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

  /** Blocks of a loan, for checkers; undefined when there is none. */
  blocksOf(debtor: InstanceIndex, incarnation: number, loan: LoanNumber): ReadonlySet<BlockId> | undefined {
    const known = this.#debtors.get(debtor);
    return known?.incarnation === incarnation ? known.loans.get(loan)?.blocks : undefined;
  }

  /** When the next lease or a hold ends. */
  get nextUs(): number {
    let next = this.#hold?.untilUs ?? Number.POSITIVE_INFINITY;
    for (const { loans } of this.#debtors.values())
      for (const loan of loans.values()) next = Math.min(next, loan.leaseEndUs);
    return next;
  }

  /** Reclaims what was not renewed in time: its debtor is dead, cut off, or did not heed a recall. */
  expire(): void {
    if (this.#hold !== undefined && this.#hold.untilUs <= this.#out.nowUs) this.#hold = undefined;
    for (const debtor of this.#debtors.values()) {
      for (const loan of debtor.loans.values()) {
        if (loan.leaseEndUs <= this.#out.nowUs) this.#close(debtor, loan);
      }
    }
  }

  /** An instance began a new life: what the last one held is free. */
  restarted(instance: InstanceIndex): void {
    const debtor = this.#debtors.get(instance);
    if (debtor === undefined) return;
    for (const loan of debtor.loans.values()) this.#close(debtor, loan);
    this.#debtors.delete(instance);
  }

  /** `sequence` of our last heartbeat. */
  borrow({ from, fromIncarnation }: Envelope, message: Said<'borrow'>, sequence: number): void {
    const debtor = this.#debtor(from as InstanceIndex, fromIncarnation, message.closedBelow);
    const known = debtor.loans.get(message.loan);
    if (known !== undefined) {
      this.#out.met('doubled', 'borrow');
      this.#lend(from as InstanceIndex, fromIncarnation, known);
      return;
    }
    if (message.loan < debtor.closedBelow || debtor.closed.has(message.loan)) {
      this.#out.met('late', 'borrow');
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
      if (block === undefined) throw new Error(`Cannot lend a block: ${memory} memory has none: of ${count} lendable`);
      granted.push(block);
    }
    const loan: Loan = {
      number: message.loan,
      memory,
      granted,
      blocks: new Set(granted),
      leaseEndUs: this.#out.nowUs + this.#times.leaseUs,
      firm: false,
      keep: Number.MAX_SAFE_INTEGER,
      recallEndUs: Number.POSITIVE_INFINITY,
    };
    debtor.loans.set(message.loan, loan);
    this.#out.push({ kind: 'granted', debtor: debtor.instance, memory, blocks: granted });
    this.#lend(from as InstanceIndex, fromIncarnation, loan);
  }

  /** While room is made for one, others get nothing. */
  #lendableTo(debtor: InstanceIndex, { memory, reserves: gathers }: Said<'borrow'>): number {
    if (this.#hold !== undefined && this.#hold.debtor !== debtor) return 0;
    return gathers ? this.#lendableInTurn(memory) : this.lendable(memory);
  }

  #makeRoom(debtor: InstanceIndex, memory: Memory, blocks: number): void {
    const untilUs = this.#out.nowUs + this.#times.holdUs;
    if (this.#hold?.debtor === debtor) this.#hold.untilUs = untilUs;
    else this.#hold = { debtor, number: ++this.#holds, untilUs };
    this.recall(memory, blocks, debtor);
  }

  renew({ from, fromIncarnation }: Envelope, message: Said<'renew'>): void {
    const debtor = this.#debtor(from as InstanceIndex, fromIncarnation, message.closedBelow);
    if (message.stamp <= debtor.stamp) {
      this.#out.met(message.stamp === debtor.stamp ? 'doubled' : 'late', 'renew');
      return;
    }
    debtor.stamp = message.stamp;
    const known = message.loans.flatMap((number) => debtor.loans.get(number) ?? []);
    for (const loan of known) this.#heed(loan, message.committed.includes(loan.number));
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

  #heed(loan: Loan, firm: boolean): void {
    loan.firm = firm;
    if (!firm) return;
    loan.keep = Number.MAX_SAFE_INTEGER;
    loan.recallEndUs = Number.POSITIVE_INFINITY;
  }

  /** Takes back what is still lent of it; a block that is not was given back before. Always answered, or it would be said for ever. */
  takeBack({ from, fromIncarnation }: Envelope, message: Said<'return'>): void {
    const debtor = this.#debtor(from as InstanceIndex, fromIncarnation, message.closedBelow);
    const loan = debtor.loans.get(message.loan);
    const blocks = (message.blocks ?? [...(loan?.blocks ?? [])]).filter((block) => loan?.blocks.has(block));
    if (loan === undefined) this.#out.met(debtor.closed.has(message.loan) ? 'doubled' : 'late', 'return');
    else if (blocks.length === 0) this.#out.met('doubled', 'return');
    if (loan !== undefined) this.#free(debtor, loan, blocks);
    if (loan?.blocks.size === 0) this.#close(debtor, loan);
    // Given up before it was heard of: it must not be granted when it comes after all.
    if (message.blocks === undefined && message.loan >= debtor.closedBelow) debtor.closed.add(message.loan);
    this.#out.send(from, fromIncarnation, { kind: 'returned', loan: message.loan, blocks: message.blocks });
  }

  /** Sees to it that at least `blocks` of a memory have been asked back or are here again, as far as nobody was promised them. */
  recall(memory: Memory, blocks: number, except?: InstanceIndex): void {
    let missing = blocks;
    const loans = [...this.#debtors].flatMap(([instance, debtor]) =>
      [...debtor.loans.values()]
        .filter((loan) => loan.memory === memory && !loan.firm && instance !== except)
        .map((loan) => ({ instance, incarnation: debtor.incarnation, loan })),
    );
    for (const { loan } of loans) missing -= Math.max(0, loan.blocks.size - loan.keep);
    // The largest first: few debtors are disturbed.
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

  #bound(loan: Loan): number {
    return remoteAttentionPermille(loan.blocks.size, this.#memories[loan.memory].figures.lent, this.#policy);
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

  /** Throws unless the blocks of all loans are those that are lent. */
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
      const { lent, total } = this.#memories[memory].figures;
      if (blocks.size !== count || count !== lent)
        throw new Error(
          `Creditor broken: ${count} ${memory} blocks in loans, ${blocks.size} of them different, ${lent} lent`,
        );
      if (lent > Math.floor(total * this.#policy.lentShareMax))
        throw new Error(`Creditor broken: ${lent} ${memory} blocks of ${total} are lent: more than its share`);
    }
  }
}
