// Tokens served to each tenant: the waiting tenant with the fewest is next (virtual token counter of Sheng et al., OSDI
// 2024).
import type { Sequence } from './sequence.ts';

/** Prompt tokens that one output token is worth, as in the paper. */
const outputWeight = 2;
/** Maximum number of idle tenants that are remembered; beyond it those with the fewest tokens are forgotten. */
const idleMax = 4096;

/**
 * A tenant's counter rises with the prompt tokens computed for it and with its output. When an idle tenant returns, its
 * counter rises to the minimum of the waiting tenants: idle time earns no shares.
 */
export class FairShares {
  readonly #served = new Map<string, number>();
  /** Tenants that have waited since the last arrangement. */
  #waited = new Set<string>();
  /** Counter of the tenant that started a sequence last. */
  #lastStarted = 0;

  /** Tokens served to a tenant, in prompt tokens; 0 for an unknown tenant. */
  served(tenant: string): number {
    return this.#served.get(tenant) ?? 0;
  }

  /** The sequence starts: `tokens` of its prompt are computed here. */
  start({ tenant }: Sequence, tokens: number): void {
    this.#add(tenant, tokens);
    this.#lastStarted = this.served(tenant);
  }

  /** The tenant has no waiting sequence any more. */
  tenantLeft(tenant: string): void {
    this.#waited.delete(tenant);
  }

  /** Charges the tenant for the sequence's output so far. */
  charge(sequence: Sequence): void {
    const outputs = Math.max(0, sequence.length - sequence.promptLength);
    if (outputs > sequence.chargedOutputs)
      this.#add(sequence.tenant, outputWeight * (outputs - sequence.chargedOutputs));
    sequence.chargedOutputs = outputs;
  }

  /**
   * The waiting sequences in the order in which they start: by priority, then by `rankOf`, which receives the tokens
   * that their tenant will have been served when their turn comes. @param waiting in the order of ties
   */
  arrange(waiting: readonly Sequence[], rankOf: (sequence: Sequence, tenantTokens: number) => number): Sequence[] {
    this.#lift(waiting);
    // Tokens that each tenant will have been served once its earlier sequences in this list have started.
    const will = new Map<string, number>();
    const order = waiting.map((sequence) => {
      const key = `${sequence.priority}\n${sequence.tenant}`;
      const before = will.get(key) ?? this.served(sequence.tenant);
      will.set(key, before + sequence.promptLength);
      return { sequence, rank: rankOf(sequence, before) };
    });
    // Sorting is stable: ties stay in order of arrival.
    order.sort((a, b) => b.sequence.priority - a.sequence.priority || a.rank - b.rank);
    return order.map(({ sequence }) => sequence);
  }

  #lift(waiting: readonly Sequence[]): void {
    const tenants = new Set(waiting.map(({ tenant }) => tenant));
    const stayed = [...tenants].filter((tenant) => this.#waited.has(tenant));
    const least = stayed.length === 0 ? this.#lastStarted : Math.min(...stayed.map((tenant) => this.served(tenant)));
    for (const tenant of tenants)
      if (!this.#waited.has(tenant)) this.#served.set(tenant, Math.max(least, this.served(tenant)));
    this.#waited = tenants;
    if (this.#served.size > 2 * idleMax) this.#forget(tenants);
  }

  #add(tenant: string, tokens: number): void {
    this.#served.set(tenant, this.served(tenant) + tokens);
  }

  /** A forgotten tenant that returns gets the minimum counter, like any other. */
  #forget(waiting: ReadonlySet<string>): void {
    const idle = [...this.#served].filter(([tenant]) => !waiting.has(tenant)).sort(([, a], [, b]) => a - b);
    for (const [tenant] of idle.slice(0, Math.max(0, idle.length - idleMax))) this.#served.delete(tenant);
  }
}
