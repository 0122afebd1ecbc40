// Tokens served to each tenant, so that whoever waits and has had least goes first (the virtual token counter of Sheng et al., OSDI 2024).
import type { Sequence } from './sequence.ts';

/** A token of output is worth so many prompt tokens (theirs). */
const outputWeight = 2;
/** Tenants remembered who have nothing here; then the one that has had least goes. */
const idleMax = 4096;

/**
 * A counter of each tenant rises with the prompt tokens that are computed for it and with its output. A tenant that comes back is lifted to
 * the least of those who wait: nobody saves up shares by staying away.
 */
export class FairShares {
  readonly #served = new Map<string, number>();
  /** Tenants who wait since an arrangement. */
  #waited = new Set<string>();
  /** Counter of the tenant whose sequence started last. */
  #last = 0;

  /** What a tenant has had, in prompt tokens; 0 for one that is not known. */
  served(tenant: string): number {
    return this.#served.get(tenant) ?? 0;
  }

  /** Its prompt starts: `tokens` of it are computed here. */
  start({ tenant }: Sequence, tokens: number): void {
    this.#add(tenant, tokens);
    this.#last = this.served(tenant);
  }

  /** None of its sequences waits any more. */
  left(tenant: string): void {
    this.#waited.delete(tenant);
  }

  /** Its output so far. */
  charge(sequence: Sequence): void {
    const outputs = Math.max(0, sequence.length - sequence.promptLength);
    if (outputs > sequence.chargedOutputs)
      this.#add(sequence.tenant, outputWeight * (outputs - sequence.chargedOutputs));
    sequence.chargedOutputs = outputs;
  }

  /**
   * Those who wait in the order in which they are to start: by priority, then whose tenant will have had least when it is their turn, the
   * sequences of one tenant in their own order. @param waiting by rank
   */
  arrange(waiting: readonly Sequence[]): Sequence[] {
    this.#lift(waiting);
    // What each tenant will have had, were those before it in this list to have started.
    const will = new Map<string, number>();
    const order = waiting.map((sequence) => {
      const key = `${sequence.priority}\n${sequence.tenant}`;
      const before = will.get(key) ?? this.served(sequence.tenant);
      will.set(key, before + sequence.promptLength);
      return { sequence, before };
    });
    // Sorting is stable: equal ones stay in order of arrival.
    order.sort((a, b) => b.sequence.priority - a.sequence.priority || a.before - b.before);
    return order.map(({ sequence }) => sequence);
  }

  #lift(waiting: readonly Sequence[]): void {
    const tenants = new Set(waiting.map(({ tenant }) => tenant));
    const stayed = [...tenants].filter((tenant) => this.#waited.has(tenant));
    const least = stayed.length === 0 ? this.#last : Math.min(...stayed.map((tenant) => this.served(tenant)));
    for (const tenant of tenants)
      if (!this.#waited.has(tenant)) this.#served.set(tenant, Math.max(least, this.served(tenant)));
    this.#waited = tenants;
    if (this.#served.size > 2 * idleMax) this.#forget(tenants);
  }

  #add(tenant: string, tokens: number): void {
    this.#served.set(tenant, this.served(tenant) + tokens);
  }

  /** Whoever comes back unknown is lifted to those who wait, like everybody. */
  #forget(waiting: ReadonlySet<string>): void {
    const idle = [...this.#served].filter(([tenant]) => !waiting.has(tenant)).sort(([, a], [, b]) => a - b);
    for (const [tenant] of idle.slice(0, Math.max(0, idle.length - idleMax))) this.#served.delete(tenant);
  }
}
