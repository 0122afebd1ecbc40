// The debt ledger: who lends how many blocks to whom, as the last heartbeats say. Nothing else is needed to rebuild it.
import type { InstanceIndex } from '../../protocol/ids.ts';
import type { Candidate, LendingReport, Memory, Refusal } from '../../protocol/lending-terms.ts';

export interface LedgerEdge {
  readonly debtor: InstanceIndex;
  readonly creditor: InstanceIndex;
  readonly blocks: number;
}

/** How a heartbeat stands to those heard before. */
export type HeartbeatVerdict = 'new' | 'gap' | 'doubled' | 'late' | 'orphan';

interface Entry {
  incarnation: number;
  report: LendingReport;
  receivedUs: number;
  /** Offered to a debtor since the last heartbeat, so that competing debtors are sent elsewhere. */
  readonly offered: Map<InstanceIndex, { readonly memory: Memory; readonly blocks: number }>;
  /** Refused with this heartbeat being its last: not offered before a later one with space. */
  readonly refusedAt: Map<Memory, number>;
}

/** Candidates of one query at most (Infinite-LLM, section 5). */
const candidatesMax = 3;

/** Loosely consistent: what an instance says is true when it is said. An instance whose heartbeats stop is forgotten. */
export class DebtLedger {
  readonly #entries = new Map<InstanceIndex, Entry>();
  /** Steps of the topology between two instances. */
  readonly #distance: (a: InstanceIndex, b: InstanceIndex) => number;

  constructor(distance: (a: InstanceIndex, b: InstanceIndex) => number) {
    this.#distance = distance;
  }

  /** `late`, `doubled` and `orphan` (of an earlier life) change nothing; `gap`: heartbeats before this one are missing. */
  update(nowUs: number, instance: InstanceIndex, incarnation: number, report: LendingReport): HeartbeatVerdict {
    const known = this.#entries.get(instance);
    if (known === undefined || incarnation > known.incarnation) {
      const entry = { incarnation, report, receivedUs: nowUs, offered: new Map(), refusedAt: new Map() };
      this.#entries.set(instance, entry);
      return 'new';
    }
    if (incarnation < known.incarnation) return 'orphan';
    const last = known.report.sequence;
    if (report.sequence <= last) return report.sequence === last ? 'doubled' : 'late';
    known.report = report;
    known.receivedUs = nowUs;
    known.offered.clear();
    for (const [memory, sequence] of known.refusedAt) {
      if (report.sequence > sequence && report.lendable[memory] > 0) known.refusedAt.delete(memory);
    }
    return report.sequence > last + 1 ? 'gap' : 'new';
  }

  /** Forgets those not heard since `sinceUs`. Returns them. */
  forgetSilent(sinceUs: number): readonly InstanceIndex[] {
    const silent = [...this.#entries]
      .filter(([, { receivedUs }]) => receivedUs < sinceUs)
      .map(([instance]) => instance);
    for (const instance of silent) this.#entries.delete(instance);
    return silent;
  }

  /** The life of an instance that is known. */
  incarnation(instance: InstanceIndex): number | undefined {
    return this.#entries.get(instance)?.incarnation;
  }

  /** A refusal corrects the view at once. One of an earlier life, or from before the last heartbeat, is out of date. */
  refuse({ instance, incarnation, memory, sequence }: Refusal): void {
    const entry = this.#entries.get(instance);
    if (entry === undefined || entry.incarnation !== incarnation || entry.report.sequence > sequence) return;
    entry.refusedAt.set(memory, sequence);
  }

  /** Blocks that an instance is thought to be able to lend to `debtor`. */
  lendable(instance: InstanceIndex, memory: Memory, debtor: InstanceIndex): number {
    const entry = this.#entries.get(instance);
    if (entry === undefined || entry.refusedAt.has(memory)) return 0;
    let blocks = entry.report.lendable[memory];
    for (const [other, offer] of entry.offered) {
      if (other !== debtor && offer.memory === memory) blocks -= offer.blocks;
    }
    return Math.max(0, blocks);
  }

  /**
   * Up to three creditors, nearest first, then most free, then by number. Those that can lend all of it, if there are any, else those with
   * something. The first one's space is promised until its next heartbeat; asking again replaces a debtor's promise.
   */
  candidates(debtor: InstanceIndex, memory: Memory, blocks: number): readonly Candidate[] {
    for (const { offered } of this.#entries.values()) offered.delete(debtor);
    if (blocks === 0) return [];
    const able: Candidate[] = [];
    for (const [instance, { incarnation }] of this.#entries) {
      const lendable = this.lendable(instance, memory, debtor);
      if (instance !== debtor && lendable > 0) able.push({ instance, incarnation, blocks: lendable });
    }
    const whole = able.filter((candidate) => candidate.blocks >= blocks);
    const chosen = (whole.length > 0 ? whole : able)
      .sort(
        (a, b) =>
          this.#distance(debtor, a.instance) - this.#distance(debtor, b.instance) ||
          b.blocks - a.blocks ||
          a.instance - b.instance,
      )
      .slice(0, candidatesMax);
    if (chosen.length > 0) {
      const first = chosen[0];
      const offer = { memory, blocks: Math.min(blocks, first.blocks) };
      this.#entries.get(first.instance)?.offered.set(debtor, offer);
    }
    return chosen;
  }

  /**
   * Up to three creditors for one who has the turn, of those that could lend it all in time (the nearest, then the largest): who can lend now
   * goes first, then the others in rotation, so that all of them hear that they are to make room.
   */
  candidatesForReservation(debtor: InstanceIndex, memory: Memory, blocks: number, round: number): readonly Candidate[] {
    for (const { offered } of this.#entries.values()) offered.delete(debtor);
    const all = [...this.#entries]
      .map(([instance, { incarnation }]) => ({
        instance,
        incarnation,
        inTime: this.#lendableLater(instance, memory, debtor),
      }))
      .filter(({ instance, inTime }) => instance !== debtor && inTime > 0)
      .sort(
        (a, b) =>
          this.#distance(debtor, a.instance) - this.#distance(debtor, b.instance) ||
          b.inTime - a.inTime ||
          a.instance - b.instance,
      );
    const ready: Candidate[] = [];
    const others: Candidate[] = [];
    let sum = 0;
    for (const { instance, incarnation, inTime } of all) {
      if (sum >= blocks) break;
      sum += inTime;
      const lendable = this.lendable(instance, memory, debtor);
      (lendable > 0 ? ready : others).push({ instance, incarnation, blocks: lendable });
    }
    const first = others.length === 0 ? 0 : round % others.length;
    return [...ready, ...others.slice(first), ...others.slice(0, first)].slice(0, candidatesMax);
  }

  /** Once its own sequences are over, and others have given back what they were not promised. */
  #lendableLater(instance: InstanceIndex, memory: Memory, debtor: InstanceIndex): number {
    const { report } = this.#entries.get(instance) ?? {};
    if (report === undefined) return 0;
    const ofOthers = report.recallable[memory] - this.lent(instance, debtor, memory);
    return report.lendableLater[memory] + Math.max(0, ofOthers);
  }

  /** Blocks of a loan as its creditor says, which owns the pages. */
  lent(creditor: InstanceIndex, debtor: InstanceIndex, memory: Memory): number {
    let blocks = 0;
    for (const loan of this.#entries.get(creditor)?.report.loans ?? []) {
      if (loan.debtor === debtor && loan.memory === memory) blocks += loan.blocks;
    }
    return blocks;
  }

  /** Debts that both sides know of, the smaller figure of the two. Sorted by debtor, then creditor. */
  edges(memory: Memory): readonly LedgerEdge[] {
    const edges: LedgerEdge[] = [];
    for (const [debtor, { report }] of this.#entries) {
      for (const debt of report.debts) {
        if (debt.memory !== memory) continue;
        const blocks = Math.min(debt.blocks, this.lent(debt.creditor, debtor, memory));
        if (blocks > 0) edges.push({ debtor, creditor: debt.creditor, blocks });
      }
    }
    return edges.sort((a, b) => a.debtor - b.debtor || a.creditor - b.creditor);
  }
}
