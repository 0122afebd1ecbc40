// Sequences that wait, in the order in which they are to start.
import type { FairShares } from './fair-shares.ts';
import { RankedList } from './ranked-list.ts';
import { outranks, type Sequence } from './sequence.ts';

/** By rank; where more than one tenant waits, by priority and by what their tenants have had. */
export class WaitingList {
  readonly #ranked = new RankedList();
  readonly #shares: FairShares | undefined;
  /** How many sequences each tenant has here. */
  readonly #tenants = new Map<string, number>();
  #arranged: Sequence[] | undefined;

  /** @param shares undefined: tenants are not told apart */
  constructor(shares: FairShares | undefined) {
    this.#shares = shares;
  }

  /** As arranged last; whoever came since is the last of its priority until the next time. */
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

  /** More than one tenant waits: who is next changes with every token. */
  get contested(): boolean {
    return this.#shares !== undefined && this.#tenants.size > 1;
  }

  /** Does one who runs go before one who waits? Where tenants share, who has started goes on. */
  isBehind(running: Sequence, waiting: Sequence): boolean {
    return this.contested ? running.priority >= waiting.priority : outranks(running, waiting);
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
    this.#shares?.left(tenant);
  }

  /** A step is to be planned. */
  arrange(running: readonly Sequence[]): void {
    if (this.#shares === undefined) return;
    if (!this.contested) {
      this.#arranged = undefined;
      return;
    }
    for (const sequence of running) this.#shares.charge(sequence);
    this.#arranged = this.#shares.arrange(this.#ranked.items);
  }
}
