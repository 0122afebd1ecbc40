// Waiting sequences, in the order in which they start.
import type { FairShares } from './fair-shares.ts';
import { RankedList } from './ranked-list.ts';
import { outranks, type Sequence } from './sequence.ts';

/** Ordered by rank. If several tenants wait: by priority, then by the tokens served to their tenants. */
export class WaitingList {
  readonly #ranked = new RankedList();
  readonly #shares: FairShares | undefined;
  /** Number of waiting sequences of each tenant. */
  readonly #tenants = new Map<string, number>();
  #arranged: Sequence[] | undefined;

  /** @param shares undefined: tenants are not distinguished */
  constructor(shares: FairShares | undefined) {
    this.#shares = shares;
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

  /** Several tenants wait: the order changes with every token served. */
  get isContested(): boolean {
    return this.#shares !== undefined && this.#tenants.size > 1;
  }

  /**
   * True if the running sequence is served before the waiting one. Between tenants, fairness never interrupts a running
   * request: a waiting one of the same priority does not overtake it, even if it arrived earlier.
   */
  runsBefore(running: Sequence, waiting: Sequence): boolean {
    const overtakes = this.#shares === undefined || running.tenant === waiting.tenant;
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
    this.#shares?.tenantLeft(tenant);
  }

  /** Called before a step is planned. */
  arrange(running: readonly Sequence[]): void {
    if (this.#shares === undefined) return;
    if (!this.isContested) {
      this.#arranged = undefined;
      return;
    }
    for (const sequence of running) this.#shares.charge(sequence);
    this.#arranged = this.#shares.arrange(this.#ranked.items);
  }
}
