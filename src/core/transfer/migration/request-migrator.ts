// Requests that outgrow the memory of their instance go on at a bigger one: their instance's side of live migration.

import type { BlockCache } from '../../kvcache/block-cache.ts';
import type { Outgrows } from '../../protocol/effects.ts';
import type { RequestId } from '../../protocol/ids.ts';
import type { Batcher } from '../../scheduler/batching/batcher.ts';
import type { OffloadState, OverflowMemory } from '../../scheduler/batching/overflow-memory.ts';
import type { Sequence } from '../../scheduler/batching/sequence.ts';
import type { DecodeLeg } from '../hand-off/kv-sender.ts';
import { type MigrationPolicy, mayOutgrow, outgrowing } from './outgrowing.ts';

export interface MigrationConfig extends MigrationPolicy {
  /** Tokens of the longest sequence that a bigger instance could hold. */
  readonly capacityTokens: number;
}

/** The instance, as its mover sees it. */
interface Owner {
  readonly push: (effect: Outgrows) => void;
  readonly idOf: (sequence: Sequence) => RequestId | undefined;
  /** It is parked: its keys and values are to leave, and it with them. */
  readonly leave: (sequence: Sequence, to: DecodeLeg) => void;
}

export interface MigrationTotals {
  readonly moved: number;
  readonly movedTokens: number;
  /** Sequences that could not grow, or were on their way, and for how long in all. */
  readonly stalls: number;
  readonly stallUs: number;
}

/**
 * A sequence that has no room to grow and may outgrow the memory here waits for a bigger instance, instead of taking blocks from others. When
 * that one is there it stops between two steps, and all of its keys and values are copied.
 */
export class RequestMigrator implements OverflowMemory {
  readonly reservesWhole = false;
  readonly freePages = 0;
  readonly slackPages = 0;
  readonly #config: MigrationConfig;
  readonly #cache: BlockCache;
  readonly #owner: Owner;
  /** What a bigger instance has been asked for. */
  readonly #asked = new Set<Sequence>();
  /** Where those go that have one, between two steps. */
  readonly #granted = new Map<RequestId, DecodeLeg>();
  /** Since when sequences have had no row. */
  readonly #stalledUs = new Map<Sequence, number>();
  #nowUs = 0;
  readonly #totals = { moved: 0, movedTokens: 0, stalls: 0, stallUs: 0 };

  constructor(config: MigrationConfig, cache: BlockCache, owner: Owner) {
    this.#config = config;
    this.#cache = cache;
    this.#owner = owner;
  }

  get totals(): MigrationTotals {
    return this.#totals;
  }

  /** Sequences that wait for a bigger instance: nothing need run. */
  get awaited(): number {
    return this.#stalledUs.size;
  }

  admits(): boolean {
    return true;
  }

  /** Only those who decode move: a prompt that does not fit is not taken. */
  offload(sequence: Sequence): OffloadState {
    if (sequence.remaining > 1 || !mayOutgrow(sequence, this.#cache)) return 'none';
    this.#stall(sequence);
    this.#ask(sequence);
    return 'pending';
  }

  remotePrefix(): undefined {
    return undefined;
  }

  takeRemotePrefix(): number {
    return 0;
  }

  release(sequence: Sequence): void {
    this.#asked.delete(sequence);
    this.#resume(sequence);
  }

  /** The bigger instance is there. Of a request that has ended, or was preempted and asks anew when it has grown again: nothing to do. */
  grant(id: RequestId, to: DecodeLeg): void {
    this.#granted.set(id, to);
  }

  /** No step is in flight. */
  between(nowUs: number, batcher: Batcher): void {
    this.#nowUs = nowUs;
    if (this.#granted.size === 0) return;
    for (const sequence of [...this.#asked]) {
      const id = this.#owner.idOf(sequence);
      const to = id === undefined ? undefined : this.#granted.get(id);
      if (to === undefined || sequence.state !== 'running') continue;
      this.#stall(sequence);
      batcher.park(sequence);
      this.#asked.delete(sequence);
      this.#totals.moved++;
      this.#totals.movedTokens += sequence.computed;
      this.#owner.leave(sequence, to);
    }
    this.#granted.clear();
  }

  /** A plan is made: who got a row has room again; who fills more than the mark is to move. */
  planned(running: readonly Sequence[]): void {
    for (const sequence of [...this.#stalledUs.keys()]) if (sequence.planned > 0) this.#resume(sequence);
    for (const sequence of outgrowing(running, this.#cache, this.#config)) this.#ask(sequence);
  }

  /** Who has had no answer asks again. */
  askAgain(): void {
    for (const sequence of this.#asked) this.#tell(sequence);
  }

  #ask(sequence: Sequence): void {
    if (this.#asked.has(sequence)) return;
    this.#asked.add(sequence);
    this.#tell(sequence);
  }

  #tell(sequence: Sequence): void {
    const id = this.#owner.idOf(sequence);
    if (id !== undefined) this.#owner.push({ kind: 'outgrows', id, tokens: sequence.lengthMax });
  }

  #stall(sequence: Sequence): void {
    if (this.#stalledUs.has(sequence)) return;
    this.#stalledUs.set(sequence, this.#nowUs);
    this.#totals.stalls++;
  }

  #resume(sequence: Sequence): void {
    const sinceUs = this.#stalledUs.get(sequence);
    if (sinceUs === undefined) return;
    this.#totals.stallUs += this.#nowUs - sinceUs;
    this.#stalledUs.delete(sequence);
  }

  /** Whatever its instance hears, it is `nowUs`. */
  hear(nowUs: number): void {
    this.#nowUs = nowUs;
  }
}
