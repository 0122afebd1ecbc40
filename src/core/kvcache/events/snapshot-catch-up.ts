// How a gateway comes to know what instances hold that it has heard too little of: copies that they keep, journals since, and their own listing where that fails.

import type { InstanceIndex } from '../../protocol/ids.ts';
import type { KvEventBatch, KvSnapshot } from '../../protocol/kv-events.ts';

export interface CatchUpTimes {
  /** What has not been read by then is not waited for. */
  readonly readUs: number;
  /** An instance that has not answered for so long is asked again. */
  readonly askAgainUs: number;
}

export const defaultCatchUpTimes: CatchUpTimes = { readUs: 3_000_000, askAgainUs: 10_000_000 };

/** Changes that are kept for one instance while its copy is read: with more of them it tells all itself. */
const changesMax = 1_000_000;

export type CatchUpEvent =
  /** Something of what the instance holds is not known. */
  | { readonly kind: 'wanted'; readonly instance: InstanceIndex }
  /** `stored`: the copy of that number is to be read, and journals are those since; `blocks`: all that it holds. */
  | {
      readonly kind: 'told';
      readonly instance: InstanceIndex;
      readonly journals: readonly KvEventBatch[];
      readonly stored?: number | undefined;
      readonly blocks?: KvSnapshot | undefined;
    }
  /** Undefined: there is none, or none that can be used. */
  | { readonly kind: 'read'; readonly ticket: number; readonly snapshot: KvSnapshot | undefined }
  /** It is there no more, or anew: what was said before counts no more. */
  | { readonly kind: 'gone'; readonly instance: InstanceIndex }
  | { readonly kind: 'wake' };

export type CatchUpEffect =
  /** `unread`: the copy that it told of could not be used. */
  | { readonly kind: 'ask'; readonly instance: InstanceIndex; readonly unread: boolean }
  /** The instance's copy of that number, or a later one of the same life. */
  | { readonly kind: 'read'; readonly instance: InstanceIndex; readonly ticket: number; readonly number: number }
  /** To the conductor. */
  | { readonly kind: 'snapshot'; readonly instance: InstanceIndex; readonly snapshot: KvSnapshot }
  | { readonly kind: 'journal'; readonly instance: InstanceIndex; readonly journal: KvEventBatch };

interface Asked {
  readonly kind: 'asked';
  readonly sinceUs: number;
}

interface Named {
  readonly kind: 'named';
  readonly number: number;
  /** Since the copy, in order. */
  readonly journals: KvEventBatch[];
  changes: number;
}

/** Copies are read one after another, so that one of them is in memory at most. The conductor drops what it knows, and says when something is missing. */
export class SnapshotCatchUp {
  readonly #times: CatchUpTimes;
  /** Of whom something is missing, in the order in which their copies are read. */
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

  /** `nowUs` never goes back. The effects are to be carried out in order. */
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

  /** What has been heard meanwhile may be all that was missing. */
  #giveUp(nowUs: number, instance: InstanceIndex): void {
    this.#release(instance);
    this.#ask(nowUs, instance, true);
  }

  /** Nothing is waited for any more. */
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
