// Brings a gateway up to date with the cache of an instance after missing KV events: from a stored snapshot and the
// batches since, or from a snapshot that the instance sends.

import { assertNever } from '../../../util/assert-never.ts';
import type { InstanceIndex } from '../../protocol/ids.ts';
import type { KvEventBatch, KvSnapshot } from '../../protocol/kv-events.ts';

export interface CatchUpTimes {
  /** Timeout of reading a stored snapshot. */
  readonly readUs: number;
  /** An instance that has not answered for this time receives another request. */
  readonly requestAgainUs: number;
}

export const defaultCatchUpTimes: CatchUpTimes = { readUs: 3_000_000, requestAgainUs: 10_000_000 };

/**
 * Maximum number of changes kept for one instance while its stored snapshot is read; beyond it the instance itself
 * sends one.
 */
const changesMax = 1_000_000;

export type CatchUpEvent =
  /** The index of the gateway lacks blocks of the instance. */
  | { readonly kind: 'behind'; readonly instance: InstanceIndex }
  /**
   * KV events of an instance. `storedNumber`: the stored snapshot to read; `batches` follow it. `snapshot`: sent by the
   * instance itself.
   */
  | {
      readonly kind: 'received';
      readonly instance: InstanceIndex;
      readonly batches: readonly KvEventBatch[];
      readonly storedNumber?: number | undefined;
      readonly snapshot?: KvSnapshot | undefined;
    }
  /** A read has ended. `snapshot` undefined: there is no usable one. */
  | { readonly kind: 'read'; readonly readNumber: number; readonly snapshot: KvSnapshot | undefined }
  /** The instance has left or restarted: its earlier reports are void. */
  | { readonly kind: 'instanceLeft'; readonly instance: InstanceIndex }
  | { readonly kind: 'wake' };

export type CatchUpEffect =
  /** `unreadable`: the stored snapshot was of no use. */
  | { readonly kind: 'requestSnapshot'; readonly instance: InstanceIndex; readonly unreadable: boolean }
  /** Read the instance's stored snapshot `number`, or a later one of the same incarnation. Answer with `read`. */
  | { readonly kind: 'read'; readonly instance: InstanceIndex; readonly readNumber: number; readonly number: number }
  /** For the conductor. */
  | { readonly kind: 'snapshot'; readonly instance: InstanceIndex; readonly snapshot: KvSnapshot }
  | { readonly kind: 'kvEvents'; readonly instance: InstanceIndex; readonly batch: KvEventBatch };

/** The instance has not answered. */
interface Requested {
  readonly kind: 'requested';
  readonly sinceUs: number;
}

/** A stored snapshot is to be read. */
interface ToRead {
  readonly kind: 'toRead';
  readonly number: number;
  /** Batches since that snapshot, in order. */
  readonly batches: KvEventBatch[];
  changes: number;
}

/**
 * Stored snapshots are read one after another, so that at most one is in memory. The conductor discards what it has
 * applied already, and reports missing batches.
 */
export class SnapshotCatchUp {
  readonly #times: CatchUpTimes;
  /** Instances with missing blocks, in the order in which their snapshots are read. */
  readonly #missing = new Map<InstanceIndex, Requested | ToRead>();
  #reading: { readonly instance: InstanceIndex; readonly readNumber: number; readonly untilUs: number } | undefined;
  #reads = 0;
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
      case 'behind':
        this.#onBehind(nowUs, event.instance);
        break;
      case 'received':
        this.#receive(nowUs, event);
        break;
      case 'read':
        if (event.readNumber === this.#reading?.readNumber) this.#read(nowUs, this.#reading.instance, event.snapshot);
        break;
      case 'instanceLeft':
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

  #onBehind(nowUs: number, instance: InstanceIndex): void {
    const known = this.#missing.get(instance);
    if (known?.kind === 'toRead') return;
    if (known !== undefined && nowUs < known.sinceUs + this.#times.requestAgainUs) return;
    this.#requestSnapshot(nowUs, instance, false);
  }

  #requestSnapshot(nowUs: number, instance: InstanceIndex, unreadable: boolean): void {
    this.#missing.set(instance, { kind: 'requested', sinceUs: nowUs });
    this.#effects.push({ kind: 'requestSnapshot', instance, unreadable });
  }

  #receive(
    nowUs: number,
    { instance, batches, storedNumber, snapshot }: Extract<CatchUpEvent, { kind: 'received' }>,
  ): void {
    if (snapshot !== undefined) {
      this.#effects.push({ kind: 'snapshot', instance, snapshot });
      this.#release(instance);
    }
    if (storedNumber !== undefined && this.#missing.get(instance)?.kind === 'requested') {
      this.#missing.delete(instance);
      this.#missing.set(instance, { kind: 'toRead', number: storedNumber, batches: [], changes: 0 });
    }
    const known = this.#missing.get(instance);
    if (known?.kind !== 'toRead') {
      this.#pass(instance, batches);
      return;
    }
    for (const batch of batches) {
      known.batches.push(batch);
      known.changes += batch.changes;
    }
    if (known.changes > changesMax) this.#giveUp(nowUs, instance);
  }

  #read(nowUs: number, instance: InstanceIndex, snapshot: KvSnapshot | undefined): void {
    this.#reading = undefined;
    const known = this.#missing.get(instance);
    if (known?.kind !== 'toRead') return;
    if (snapshot === undefined || snapshot.number < known.number) {
      this.#giveUp(nowUs, instance);
      return;
    }
    this.#effects.push({ kind: 'snapshot', instance, snapshot });
    this.#release(instance);
  }

  /** The kept batches are passed on: they may be all that was missing. */
  #giveUp(nowUs: number, instance: InstanceIndex): void {
    this.#release(instance);
    this.#requestSnapshot(nowUs, instance, true);
  }

  /** Passes on what was received while waiting. */
  #release(instance: InstanceIndex): void {
    const known = this.#missing.get(instance);
    this.#forget(instance);
    if (known?.kind === 'toRead') this.#pass(instance, known.batches);
  }

  #pass(instance: InstanceIndex, batches: readonly KvEventBatch[]): void {
    for (const batch of batches) this.#effects.push({ kind: 'kvEvents', instance, batch });
  }

  #forget(instance: InstanceIndex): void {
    this.#missing.delete(instance);
    if (this.#reading?.instance === instance) this.#reading = undefined;
  }

  #readNext(nowUs: number): void {
    if (this.#reading !== undefined) return;
    for (const [instance, known] of this.#missing) {
      if (known.kind !== 'toRead') continue;
      const readNumber = ++this.#reads;
      this.#reading = { instance, readNumber, untilUs: nowUs + this.#times.readUs };
      this.#effects.push({ kind: 'read', instance, readNumber, number: known.number });
      return;
    }
  }
}
