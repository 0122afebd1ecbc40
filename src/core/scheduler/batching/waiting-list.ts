// Waiting sequences, in the order in which they start.

import { wideZero } from '../../../util/wide-zero.ts';
import { type BatchingPolicy, type BatchingRule, batchingOrders, type WaitingSequence } from './batching-order.ts';
import { FairShares } from './fair-shares.ts';
import { RankedList } from './ranked-list.ts';
import type { ReusablePrefixes } from './reusable-prefixes.ts';
import { outranks, type Sequence } from './sequence.ts';

/** Ordered by priority, then by the batching order. It is computed only where it may differ from the order of arrival. */
export class WaitingList {
  readonly #ranked = new RankedList();
  readonly #rule: BatchingRule;
  readonly #view: WaitingView;
  /** Undefined: the order is that of arrival. */
  readonly shares: FairShares | undefined;
  /** Number of waiting sequences of each tenant. */
  readonly #tenants = new Map<string, number>();
  #arranged: Sequence[] | undefined;

  constructor(rule: BatchingRule, prefixes: ReusablePrefixes) {
    this.#rule = rule;
    this.#view = new WaitingView(prefixes);
    this.shares = rule === 'arrival' ? undefined : new FairShares();
  }

  /** In the order of the last arrangement; a new sequence is the last of its priority until the next one. */
  get items(): readonly Sequence[] {
    return this.#arranged ?? this.#ranked.items;
  }

  get length(): number {
    return this.#ranked.length;
  }

  get last(): Sequence | undefined {
    return this.items.at(-1);
  }

  /** By rank. */
  get ranked(): readonly Sequence[] {
    return this.#ranked.items;
  }

  /** The order may change with every step: by a policy, or because several tenants wait. */
  get isContested(): boolean {
    if (this.#rule === 'arrival') return false;
    return this.#rule === 'tokens' ? this.#tenants.size > 1 : this.length > 1;
  }

  /**
   * True if the running sequence is served before the waiting one. Between tenants, fairness never interrupts a running
   * request: a waiting one of the same priority does not overtake it, even if it arrived earlier.
   */
  runsBefore(running: Sequence, waiting: Sequence): boolean {
    const overtakes = this.shares === undefined || running.tenant === waiting.tenant;
    return overtakes && !this.isContested ? outranks(running, waiting) : running.priority >= waiting.priority;
  }

  insert(sequence: Sequence): void {
    this.#ranked.insert(sequence);
    if (this.#arranged !== undefined) {
      const place = this.#arranged.findIndex(({ priority }) => priority < sequence.priority);
      this.#arranged.splice(place < 0 ? this.#arranged.length : place, 0, sequence);
    }
    this.#tenants.set(sequence.tenant, (this.#tenants.get(sequence.tenant) ?? 0) + 1);
  }

  remove(sequence: Sequence): void {
    this.#ranked.remove(sequence);
    if (this.#arranged !== undefined) this.#arranged.splice(this.#arranged.indexOf(sequence), 1);
    const left = (this.#tenants.get(sequence.tenant) ?? 0) - 1;
    if (left > 0) this.#tenants.set(sequence.tenant, left);
    else this.#leave(sequence.tenant);
  }

  #leave(tenant: string): void {
    this.#tenants.delete(tenant);
    this.shares?.tenantLeft(tenant);
  }

  /** Called before a step is planned. */
  arrange(running: readonly Sequence[], nowUs: number): void {
    if (this.shares === undefined) return;
    if (!this.isContested) {
      this.#arranged = undefined;
      return;
    }
    for (const sequence of running) this.shares.charge(sequence);
    const policy: BatchingPolicy = typeof this.#rule === 'string' ? batchingOrders[this.#rule] : this.#rule;
    const view = this.#view;
    view.nowUs = nowUs;
    this.#arranged = this.shares.arrange(this.#ranked.items, (sequence, tenantTokens) => {
      view.show(sequence, tenantTokens);
      const rank = policy(view);
      if (Number.isNaN(rank)) throw new Error(`Cannot order waiting sequences: the rank of one is ${rank}`);
      return rank;
    });
  }
}

/** A sequence as its policy receives it: what the policy does not rank by costs nothing. */
class WaitingView implements WaitingSequence {
  readonly #prefixes: ReusablePrefixes;
  #sequence: Sequence | undefined;
  nowUs: number = wideZero;
  tenantTokens: number = wideZero;

  constructor(prefixes: ReusablePrefixes) {
    this.#prefixes = prefixes;
  }

  show(sequence: Sequence, tenantTokens: number): void {
    this.#sequence = sequence;
    this.tenantTokens = tenantTokens;
  }

  get #shown(): Sequence {
    if (this.#sequence === undefined) throw new Error('Cannot rank a sequence: none is waiting');
    return this.#sequence;
  }

  get queuedUs(): number {
    return this.#shown.queuedUs;
  }

  get arrival(): number {
    return this.#shown.arrival;
  }

  get priority(): number {
    return this.#shown.priority;
  }

  get tenant(): string {
    return this.#shown.tenant;
  }

  get promptTokens(): number {
    return this.#shown.promptLength;
  }

  get uncachedTokens(): number {
    return this.#prefixes.remainingTokens(this.#shown);
  }

  get outputTokens(): number {
    return this.#shown.length - this.#shown.promptLength;
  }

  get outputTokensMax(): number {
    return Math.max(0, this.#shown.lengthMax - this.#shown.promptLength);
  }

  get preemptions(): number {
    return this.#shown.preemptions;
  }
}
