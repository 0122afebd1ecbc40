// The global debt ledger (Infinite-LLM, section 5): how many blocks each instance lends to which others, from the last
// heartbeats alone.

import { type LinksByPeer, linkDistance, linksByPeer } from '../../cost/links/link-distance.ts';
import type { InstanceIndex } from '../../protocol/ids.ts';
import type { CreditorCandidate, CreditorRefusal, LendingReport, Memory } from '../../protocol/lending-report.ts';

export interface LedgerEdge {
  readonly debtor: InstanceIndex;
  readonly creditor: InstanceIndex;
  readonly blocks: number;
  readonly distance: number;
}

/** How a heartbeat relates to earlier ones. */
export type HeartbeatVerdict = 'new' | 'gap' | 'duplicate' | 'late' | 'orphan';

interface Entry {
  incarnation: number;
  report: LendingReport;
  links: LinksByPeer;
  receivedUs: number;
  /** Blocks offered to debtors since the last heartbeat: competing debtors are sent to other creditors. */
  readonly offered: Map<InstanceIndex, { readonly memory: Memory; readonly blocks: number }>;
  /** Heartbeat sequence at the last refusal. Nothing is offered before a later heartbeat with lendable blocks. */
  readonly refusedAt: Map<Memory, number>;
}

/** Largest number of candidates of one query (Infinite-LLM, section 5). */
const candidatesMax = 3;

/** Loosely consistent: each report was correct when it was sent. An instance whose heartbeats stop is forgotten. */
export class DebtLedger {
  readonly #entries = new Map<InstanceIndex, Entry>();
  /** `late`, `duplicate` and `orphan` (an earlier incarnation) change nothing; `gap`: earlier heartbeats are missing. */
  update(nowUs: number, instance: InstanceIndex, incarnation: number, report: LendingReport): HeartbeatVerdict {
    const known = this.#entries.get(instance);
    if (known === undefined || incarnation > known.incarnation) {
      const links = linksByPeer(report.links);
      const entry = { incarnation, report, links, receivedUs: nowUs, offered: new Map(), refusedAt: new Map() };
      this.#entries.set(instance, entry);
      return 'new';
    }
    if (incarnation < known.incarnation) return 'orphan';
    const last = known.report.sequence;
    if (report.sequence <= last) return report.sequence === last ? 'duplicate' : 'late';
    if (report.links !== known.report.links) known.links = linksByPeer(report.links);
    known.report = report;
    known.receivedUs = nowUs;
    known.offered.clear();
    for (const [memory, sequence] of known.refusedAt) {
      if (report.sequence > sequence && report.lendable[memory] > 0) known.refusedAt.delete(memory);
    }
    return report.sequence > last + 1 ? 'gap' : 'new';
  }

  /** Forgets the instances without a heartbeat since `sinceUs`, and returns them. */
  forgetSilent(sinceUs: number): readonly InstanceIndex[] {
    const silent = [...this.#entries]
      .filter(([, { receivedUs }]) => receivedUs < sinceUs)
      .map(([instance]) => instance);
    for (const instance of silent) this.#entries.delete(instance);
    return silent;
  }

  /** The current incarnation of a known instance. */
  incarnation(instance: InstanceIndex): number | undefined {
    return this.#entries.get(instance)?.incarnation;
  }

  /**
   * Records a refusal. One of an earlier incarnation, or from before the last heartbeat, is ignored.
   */
  refuse({ instance, incarnation, memory, sequence }: CreditorRefusal): void {
    const entry = this.#entries.get(instance);
    if (entry === undefined || entry.incarnation !== incarnation || entry.report.sequence > sequence) return;
    entry.refusedAt.set(memory, sequence);
  }

  /** Blocks that the instance can stage in a settlement; undefined if its heartbeats do not report it. */
  stagingBlocks(instance: InstanceIndex): number | undefined {
    return this.#entries.get(instance)?.report.stagingBlocks;
  }

  /** Distance between two instances, from the last heartbeats of both. */
  distance(a: InstanceIndex, b: InstanceIndex): number {
    return linkDistance([this.#entries.get(a)?.links.get(b), this.#entries.get(b)?.links.get(a)]);
  }

  /** Blocks that an instance is expected to be able to lend to `debtor`. */
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
   * Up to three creditors that can lend everything, else up to three that can lend something: nearest first, then most
   * lendable blocks, then lowest index. The blocks of the first count as offered until its next heartbeat. A new query
   * replaces a debtor's offer.
   */
  candidates(debtor: InstanceIndex, memory: Memory, blocks: number): readonly CreditorCandidate[] {
    for (const { offered } of this.#entries.values()) offered.delete(debtor);
    if (blocks === 0) return [];
    const candidates: CreditorCandidate[] = [];
    for (const [instance, { incarnation }] of this.#entries) {
      const lendable = this.lendable(instance, memory, debtor);
      if (instance !== debtor && lendable > 0) candidates.push({ instance, incarnation, blocks: lendable });
    }
    const whole = candidates.filter((candidate) => candidate.blocks >= blocks);
    const chosen = (whole.length > 0 ? whole : candidates)
      .sort(
        (a, b) =>
          this.distance(debtor, a.instance) - this.distance(debtor, b.instance) ||
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
   * Up to three creditors for a reservation, among those that together could lend all of it later (nearest, then
   * largest). Creditors with lendable blocks come first, then the others in rotation, so that each of them recalls its
   * loans.
   */
  candidatesForReservation(
    debtor: InstanceIndex,
    memory: Memory,
    blocks: number,
    round: number,
  ): readonly CreditorCandidate[] {
    for (const { offered } of this.#entries.values()) offered.delete(debtor);
    const all = [...this.#entries]
      .map(([instance, { incarnation }]) => ({
        instance,
        incarnation,
        lendableLater: this.#lendableLater(instance, memory, debtor),
      }))
      .filter(({ instance, lendableLater }) => instance !== debtor && lendableLater > 0)
      .sort(
        (a, b) =>
          this.distance(debtor, a.instance) - this.distance(debtor, b.instance) ||
          b.lendableLater - a.lendableLater ||
          a.instance - b.instance,
      );
    const ready: CreditorCandidate[] = [];
    const others: CreditorCandidate[] = [];
    let sum = 0;
    for (const { instance, incarnation, lendableLater } of all) {
      if (sum >= blocks) break;
      sum += lendableLater;
      const lendable = this.lendable(instance, memory, debtor);
      (lendable > 0 ? ready : others).push({ instance, incarnation, blocks: lendable });
    }
    const first = others.length === 0 ? 0 : round % others.length;
    return [...ready, ...others.slice(first), ...others.slice(0, first)].slice(0, candidatesMax);
  }

  /** Blocks lendable once local sequences end and loans without a guarantee are returned. */
  #lendableLater(instance: InstanceIndex, memory: Memory, debtor: InstanceIndex): number {
    const { report } = this.#entries.get(instance) ?? {};
    if (report === undefined) return 0;
    const ofOthers = report.recallable[memory] - this.lent(instance, debtor, memory);
    return report.lendableLater[memory] + Math.max(0, ofOthers);
  }

  /** Blocks lent by one instance to another, as the creditor reports, which owns the pages. */
  lent(creditor: InstanceIndex, debtor: InstanceIndex, memory: Memory): number {
    let blocks = 0;
    for (const loan of this.#entries.get(creditor)?.report.loans ?? []) {
      if (loan.debtor === debtor && loan.memory === memory) blocks += loan.blocks;
    }
    return blocks;
  }

  /** Debts that both sides report, with the smaller of the two figures. Sorted by debtor, then creditor. */
  edges(memory: Memory): readonly LedgerEdge[] {
    const edges: LedgerEdge[] = [];
    for (const [debtor, { report }] of this.#entries) {
      for (const debt of report.debts) {
        if (debt.memory !== memory) continue;
        const blocks = Math.min(debt.blocks, this.lent(debt.creditor, debtor, memory));
        if (blocks === 0) continue;
        edges.push({ debtor, creditor: debt.creditor, blocks, distance: this.distance(debtor, debt.creditor) });
      }
    }
    return edges.sort((a, b) => a.debtor - b.debtor || a.creditor - b.creditor);
  }
}
