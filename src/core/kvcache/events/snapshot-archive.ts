// Decides when an instance stores a snapshot of its cache for gateways, and what it sends to a gateway: the number of
// the stored snapshot with the batches since, or a snapshot of its own.
import { assertNever } from '../../../util/assert-never.ts';
import type { KvEventBatch, KvSnapshot } from '../../protocol/kv-events.ts';

export interface ArchiveLimits {
  /** No new snapshot is written for fewer changes, even if the stored one has fewer blocks. */
  readonly changesMin: number;
  /** Maximum number of blocks that the store accepts. */
  readonly blocksMax: number;
  /** A stored snapshot is rewritten after this time, before the store expires it. */
  readonly refreshUs: number;
  /** Delay after a failed write; it doubles with each further failure in a row. */
  readonly retryUs: number;
  readonly retryUsMax: number;
}

export const defaultArchiveLimits: ArchiveLimits = {
  changesMin: 4096,
  blocksMax: 16_000_000,
  refreshUs: 1_200_000_000,
  retryUs: 1_000_000,
  retryUsMax: 60_000_000,
};

/** Memory of an empty batch, in changes. */
export const batchWeight = 8;
/**
 * Batches since the snapshot are kept up to this multiple of the rewrite threshold; beyond that the snapshot is
 * useless.
 */
export const tailFactorMax = 4;

/** At most one write and one `takeSnapshot` are pending at a time. Each write is answered once. */
export type ArchiveEvent<Gateway> =
  /** The instance's thread has sent KV events. `snapshot` answers a `takeSnapshot`. */
  | {
      readonly kind: 'published';
      readonly batches: readonly KvEventBatch[];
      readonly snapshot: KvSnapshot | undefined;
    }
  /** A gateway requests the cache's contents. `unreadable`: the stored snapshot was of no use to it. */
  | { readonly kind: 'requested'; readonly gateway: Gateway; readonly unreadable: boolean }
  | { readonly kind: 'gatewayLeft'; readonly gateway: Gateway }
  | { readonly kind: 'written' }
  /** The write may have succeeded nevertheless: its response may be lost. */
  | { readonly kind: 'writeFailed' }
  /** A later process of this name writes to the same place. */
  | { readonly kind: 'replaced' }
  | { readonly kind: 'wake' };

export type ArchiveEffect<Gateway> =
  /** Requests a snapshot from the instance's thread. */
  | { readonly kind: 'takeSnapshot' }
  | { readonly kind: 'write'; readonly snapshot: KvSnapshot }
  /** Send the stored snapshot's number, and all batches since. */
  | {
      readonly kind: 'sendStored';
      readonly gateway: Gateway;
      readonly number: number;
      readonly batches: readonly KvEventBatch[];
    }
  /** Send the snapshot that the thread has just sent. */
  | { readonly kind: 'sendSnapshot'; readonly gateway: Gateway }
  /** The snapshot is too large to store, unlike the one before. */
  | { readonly kind: 'tooLarge'; readonly blocks: number };

interface StoredSnapshot {
  readonly number: number;
  readonly blocks: number;
}

/**
 * Batches arrive in order and without gaps, even if snapshots are lost; a snapshot follows the batches before it.
 * Memory is bounded: the batches since the snapshot weigh at most a few times the snapshot itself.
 */
export class SnapshotArchive<Gateway> {
  readonly #limits: ArchiveLimits;
  #stored: (StoredSnapshot & { readonly atUs: number }) | undefined;
  /** The snapshot being written; `useful` while the batches since it are kept. */
  #writing: (StoredSnapshot & { readonly useful: boolean }) | undefined;
  /** Batches since the stored snapshot, or else since the one being written; empty without either. */
  #tail: KvEventBatch[] = [];
  /** Weight of the tail; without a snapshot, of all batches since the last one. */
  #weight = 0;
  #takingSnapshot = false;
  /** Gateways that receive the next snapshot of the thread. */
  readonly #waiting = new Set<Gateway>();
  /** Blocks of the last snapshot if they were too many to store. */
  #tooLarge: number | undefined;
  #failures = 0;
  #retryUs = 0;
  #replaced = false;
  #effects: ArchiveEffect<Gateway>[] = [];

  constructor(limits: ArchiveLimits = defaultArchiveLimits) {
    this.#limits = limits;
  }

  /** Batches that are kept. */
  get tail(): readonly KvEventBatch[] {
    return this.#tail;
  }

  /** When a `wake` is due. */
  get nextUs(): number {
    if (this.#takingSnapshot || this.#writing !== undefined || this.#replaced) return Number.POSITIVE_INFINITY;
    const outgrown = this.#weight > this.#weightMax;
    const refreshUs =
      this.#stored === undefined ? Number.POSITIVE_INFINITY : this.#stored.atUs + this.#limits.refreshUs;
    return Math.max(this.#retryUs, outgrown || this.#failures > 0 ? 0 : refreshUs);
  }

  /** `nowUs` is monotonic. The caller carries out the effects in order. */
  step(nowUs: number, event: ArchiveEvent<Gateway>): readonly ArchiveEffect<Gateway>[] {
    this.#effects = [];
    switch (event.kind) {
      case 'published':
        if (event.snapshot !== undefined) this.#onSnapshot(nowUs, event.snapshot);
        for (const batch of event.batches) this.#append(batch);
        break;
      case 'requested':
        this.#answer(event.gateway, event.unreadable);
        break;
      case 'gatewayLeft':
        this.#waiting.delete(event.gateway);
        break;
      case 'written':
        this.#written(nowUs);
        break;
      case 'replaced':
        this.#replaced = true;
        this.#stored = undefined;
        this.#writeFailed(nowUs);
        break;
      case 'writeFailed':
        this.#writeFailed(nowUs);
        break;
      case 'wake':
        break;
      default:
        assertNever(event);
    }
    if (nowUs >= this.nextUs) this.#takeSnapshot();
    return this.#effects;
  }

  /** The snapshot that batches are kept for. */
  get #base(): StoredSnapshot | undefined {
    return this.#stored ?? (this.#writing?.useful ? this.#writing : undefined);
  }

  /** Weight of batches since the snapshot at which another one is written. */
  get #weightMax(): number {
    return Math.max(this.#limits.changesMin, this.#base?.blocks ?? this.#tooLarge ?? 0);
  }

  #takeSnapshot(): void {
    if (this.#takingSnapshot) return;
    this.#takingSnapshot = true;
    this.#effects.push({ kind: 'takeSnapshot' });
  }

  #onSnapshot(nowUs: number, snapshot: KvSnapshot): void {
    this.#takingSnapshot = false;
    for (const gateway of this.#waiting) this.#effects.push({ kind: 'sendSnapshot', gateway });
    this.#waiting.clear();
    if (this.#replaced || this.#writing !== undefined || nowUs < this.#retryUs) return;
    const { number, blocks } = snapshot;
    if (blocks > this.#limits.blocksMax) {
      this.#rejectTooLarge(blocks);
      return;
    }
    this.#tooLarge = undefined;
    this.#writing = { number, blocks, useful: true };
    this.#effects.push({ kind: 'write', snapshot });
    this.#trim();
  }

  /**
   * The next attempt follows after as many changes as there are blocks, or with the next request of a gateway.
   */
  #rejectTooLarge(blocks: number): void {
    if (this.#tooLarge === undefined) this.#effects.push({ kind: 'tooLarge', blocks });
    this.#tooLarge = blocks;
    this.#stored = undefined;
    this.#failures = 0;
    this.#weight = 0;
    this.#trim();
  }

  #append(batch: KvEventBatch): void {
    const base = this.#base;
    if (base !== undefined && batch.number <= base.number) return;
    this.#weight += weightOf(batch);
    if (base === undefined) return;
    this.#tail.push(batch);
    if (this.#weight <= tailFactorMax * this.#weightMax) return;
    // A stored snapshot is dropped before one that is being written.
    if (this.#stored === undefined && this.#writing !== undefined) this.#writing = { ...this.#writing, useful: false };
    this.#stored = undefined;
    this.#trim();
  }

  #answer(gateway: Gateway, unreadable: boolean): void {
    if (unreadable) {
      this.#stored = undefined;
      this.#trim();
    }
    if (this.#stored === undefined) {
      this.#waiting.add(gateway);
      this.#takeSnapshot();
      return;
    }
    const { number } = this.#stored;
    this.#effects.push({ kind: 'sendStored', gateway, number, batches: [...this.#tail] });
  }

  #written(nowUs: number): void {
    const written = this.#writing;
    this.#writing = undefined;
    if (written?.useful) {
      this.#failures = 0;
      this.#stored = { number: written.number, blocks: written.blocks, atUs: nowUs };
      this.#trim();
    } else this.#wait(nowUs);
  }

  #writeFailed(nowUs: number): void {
    this.#writing = undefined;
    this.#wait(nowUs);
    this.#trim();
  }

  /** Delays the next write. */
  #wait(nowUs: number): void {
    this.#retryUs = nowUs + Math.min(this.#limits.retryUsMax, this.#limits.retryUs * 2 ** this.#failures);
    this.#failures++;
  }

  /** Keeps the batches after the current snapshot. */
  #trim(): void {
    const base = this.#base;
    this.#tail = base === undefined ? [] : this.#tail.filter(({ number }) => number > base.number);
    if (base !== undefined) this.#weight = this.#tail.reduce((weight, batch) => weight + weightOf(batch), 0);
  }
}

function weightOf({ changes }: KvEventBatch): number {
  return changes + batchWeight;
}
