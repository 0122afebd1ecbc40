// How a gateway learns the blocks of instances after missing KV events: from a stored snapshot and the batches since,
// or from a snapshot that the instance sends.

import { assertNever } from '../../../util/assert-never.ts';
import type { InstanceIndex } from '../../protocol/ids.ts';
import type { KvEventBatch, KvSnapshot } from '../../protocol/kv-events.ts';

export interface CatchUpTimes {
  /** Timeout of reading a stored snapshot. */
  readonly readUs: number;
  /** An instance that has not answered for this time receives another request. */
  readonly askAgainUs: number;
}

export const defaultCatchUpTimes: CatchUpTimes = { readUs: 3_000_000, askAgainUs: 10_000_000 };

/**
 * Maximum number of changes kept for one instance while its snapshot is read; beyond it the instance is asked to send
 * one.
 */
const changesMax = 1_000_000;

export type CatchUpEvent =
  /** The gateway lacks a part of the instance's blocks. */
  | { readonly kind: 'wanted'; readonly instance: InstanceIndex }
  /**
   * `stored`: number of the stored snapshot to read; `journals` follow it. `blocks`: a snapshot of the instance itself.
   */
  | {
      readonly kind: 'told';
      readonly instance: InstanceIndex;
      readonly journals: readonly KvEventBatch[];
      readonly stored?: number | undefined;
      readonly blocks?: KvSnapshot | undefined;
    }
  /** Undefined: there is no usable snapshot. */
  | { readonly kind: 'read'; readonly ticket: number; readonly snapshot: KvSnapshot | undefined }
  /** The instance has left or restarted: its earlier reports are void. */
  | { readonly kind: 'gone'; readonly instance: InstanceIndex }
  | { readonly kind: 'wake' };

export type CatchUpEffect =
  /** `unread`: the stored snapshot could not be used. */
  | { readonly kind: 'ask'; readonly instance: InstanceIndex; readonly unread: boolean }
  /** Reads the instance's stored snapshot of that number, or a later one of the same incarnation. */
  | { readonly kind: 'read'; readonly instance: InstanceIndex; readonly ticket: number; readonly number: number }
  /** For the conductor. */
  | { readonly kind: 'snapshot'; readonly instance: InstanceIndex; readonly snapshot: KvSnapshot }
  | { readonly kind: 'journal'; readonly instance: InstanceIndex; readonly journal: KvEventBatch };

interface Asked {
  readonly kind: 'asked';
  readonly sinceUs: number;
}

interface Named {
  readonly kind: 'named';
  readonly number: number;
  /** Since the snapshot, in order. */
  readonly journals: KvEventBatch[];
  changes: number;
}

/**
 * Stored snapshots are read one after another, so that at most one is in memory. The conductor discards what it has
 * already, and reports missing batches.
 */
export class SnapshotCatchUp {
  readonly #times: CatchUpTimes;
  /** Instances with missing blocks, in the order in which their snapshots are read. */
  readonly #missing = new Map<InstanceIndex, Asked | Named>();
  #reading: { readonly instance: InstanceIndex; readonly ticket: number; readonly untilUs: number } | undefined;
  #ticket = 0;
  #effects: CatchUpEffect[] = [];

  constructor(times: CatchUpTimes = defaultCatchUpTimes) {
    this.#times = times;
  }

  /** When a `wake` is due. */
  get nextUs(): number {
    return this.#reading?.untilUs ?? Number.POSITIVE_INFINITY;
  }

  /** `nowUs` is monotonic. The caller carries out the effects in order. */
  step(nowUs: number, event: CatchUpEvent): readonly CatchUpEffect[] {
    this.#effects = [];
    switch (event.kind) {
      case 'wanted':
        this.#want(nowUs, event.instance);
        break;
      case 'told':
        this.#hear(nowUs, event);
        break;
      case 'read':
        if (event.ticket === this.#reading?.ticket) this.#read(nowUs, this.#reading.instance, event.snapshot);
        break;
      case 'gone':
        this.#forget(event.instance);
        break;
      case 'wake':
        if (this.#reading !== undefined && nowUs >= this.#reading.untilUs)
          this.#read(nowUs, this.#reading.instance, undefined);
        break;
      default:
        assertNever(event);
    }
    this.#readNext(nowUs);
    return this.#effects;
  }

  #want(nowUs: number, instance: InstanceIndex): void {
    const known = this.#missing.get(instance);
    if (known?.kind === 'named') return;
    if (known !== undefined && nowUs < known.sinceUs + this.#times.askAgainUs) return;
    this.#ask(nowUs, instance, false);
  }

  #ask(nowUs: number, instance: InstanceIndex, unread: boolean): void {
    this.#missing.set(instance, { kind: 'asked', sinceUs: nowUs });
    this.#effects.push({ kind: 'ask', instance, unread });
  }

  #hear(nowUs: number, { instance, journals, stored, blocks }: Extract<CatchUpEvent, { kind: 'told' }>): void {
    if (blocks !== undefined) {
      this.#effects.push({ kind: 'snapshot', instance, snapshot: blocks });
      this.#release(instance);
    }
    if (stored !== undefined && this.#missing.get(instance)?.kind === 'asked') {
      this.#missing.delete(instance);
      this.#missing.set(instance, { kind: 'named', number: stored, journals: [], changes: 0 });
    }
    const known = this.#missing.get(instance);
    if (known?.kind !== 'named') {
      this.#pass(instance, journals);
      return;
    }
    for (const journal of journals) {
      known.journals.push(journal);
      known.changes += journal.changes;
    }
    if (known.changes > changesMax) this.#giveUp(nowUs, instance);
  }

  #read(nowUs: number, instance: InstanceIndex, snapshot: KvSnapshot | undefined): void {
    this.#reading = undefined;
    const known = this.#missing.get(instance);
    if (known?.kind !== 'named') return;
    if (snapshot === undefined || snapshot.number < known.number) {
      this.#giveUp(nowUs, instance);
      return;
    }
    this.#effects.push({ kind: 'snapshot', instance, snapshot });
    this.#release(instance);
  }

  /** The batches received meanwhile may be all that was missing. */
  #giveUp(nowUs: number, instance: InstanceIndex): void {
    this.#release(instance);
    this.#ask(nowUs, instance, true);
  }

  /** Passes on what was received while waiting. */
  #release(instance: InstanceIndex): void {
    const known = this.#missing.get(instance);
    this.#forget(instance);
    if (known?.kind === 'named') this.#pass(instance, known.journals);
  }

  #pass(instance: InstanceIndex, journals: readonly KvEventBatch[]): void {
    for (const journal of journals) this.#effects.push({ kind: 'journal', instance, journal });
  }

  #forget(instance: InstanceIndex): void {
    this.#missing.delete(instance);
    if (this.#reading?.instance === instance) this.#reading = undefined;
  }

  #readNext(nowUs: number): void {
    if (this.#reading !== undefined) return;
    for (const [instance, known] of this.#missing) {
      if (known.kind !== 'named') continue;
      const ticket = ++this.#ticket;
      this.#reading = { instance, ticket, untilUs: nowUs + this.#times.readUs };
      this.#effects.push({ kind: 'read', instance, ticket, number: known.number });
      return;
    }
  }
}
