// When an instance stores a snapshot of its cache where gateways can read it, and what it sends to them: the stored
// snapshot's number, and the batches since.
import { assertNever } from '../../../util/assert-never.ts';
import type { KvEventBatch, KvSnapshot } from '../../protocol/kv-events.ts';

export interface ArchiveLimits {
  /** Changes for which no new snapshot is written, where the stored one has fewer blocks. */
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

/** Cost of a batch besides its changes, in changes. */
export const journalWeight = 8;
/**
 * Batches since the snapshot are kept up to this multiple of the rewrite threshold; beyond that the snapshot is
 * useless.
 */
export const tailsMax = 4;

/** At most one write and one listing run at a time. Each write is answered once. */
export type ArchiveEvent<Gateway> =
  /** A turn of the instance's thread. `blocks` answers a `list`. */
  | { readonly kind: 'heard'; readonly journals: readonly KvEventBatch[]; readonly blocks: KvSnapshot | undefined }
  /** A gateway requests the cache's contents. `unread`: it could not read the stored snapshot. */
  | { readonly kind: 'asked'; readonly gateway: Gateway; readonly unread: boolean }
  | { readonly kind: 'gone'; readonly gateway: Gateway }
  | { readonly kind: 'written' }
  /** The write may have succeeded nevertheless. */
  | { readonly kind: 'unwritten' }
  /** A later process of this name writes to the same place. */
  | { readonly kind: 'replaced' }
  | { readonly kind: 'wake' };

export type ArchiveEffect<Gateway> =
  /** The thread shall send a snapshot. */
  | { readonly kind: 'list' }
  | { readonly kind: 'write'; readonly snapshot: KvSnapshot }
  /** The stored snapshot's number, and all batches received since. */
  | {
      readonly kind: 'tellStored';
      readonly gateway: Gateway;
      readonly number: number;
      readonly journals: readonly KvEventBatch[];
    }
  /** The snapshot that the thread has just sent. */
  | { readonly kind: 'requestSnapshot'; readonly gateway: Gateway }
  /** The snapshot is too large to store, unlike the one before. */
  | { readonly kind: 'refused'; readonly blocks: number };

interface Copy {
  readonly number: number;
  readonly blocks: number;
}

/**
 * Batches arrive in order and without gaps, whatever happens to snapshots; a listing follows the batches before it.
 * Memory is bounded: the batches since the snapshot weigh at most a few times the snapshot itself.
 */
export class SnapshotArchive<Gateway> {
  readonly #limits: ArchiveLimits;
  #stored: (Copy & { readonly atUs: number }) | undefined;
  /** `useful` while the batches since this snapshot are kept. */
  #writing: (Copy & { readonly useful: boolean }) | undefined;
  /** Batches since the stored snapshot, or else since the one being written; empty without either. */
  #tail: KvEventBatch[] = [];
  /** Weight of the tail; without a snapshot, of all batches since the last one. */
  #weight = 0;
  #listing = false;
  /** Gateways that receive the next listing. */
  readonly #waiting = new Set<Gateway>();
  /** Blocks of the last listing, where they are too many to store. */
  #refused: number | undefined;
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
    if (this.#listing || this.#writing !== undefined || this.#replaced) return Number.POSITIVE_INFINITY;
    const outgrown = this.#weight > this.#weightMax;
    const refreshUs =
      this.#stored === undefined ? Number.POSITIVE_INFINITY : this.#stored.atUs + this.#limits.refreshUs;
    return Math.max(this.#retryUs, outgrown || this.#failures > 0 ? 0 : refreshUs);
  }

  /** `nowUs` is monotonic. The caller carries out the effects in order. */
  step(nowUs: number, event: ArchiveEvent<Gateway>): readonly ArchiveEffect<Gateway>[] {
    this.#effects = [];
    switch (event.kind) {
      case 'heard':
        if (event.blocks !== undefined) this.#listed(nowUs, event.blocks);
        for (const journal of event.journals) this.#keep(journal);
        break;
      case 'asked':
        this.#answer(event.gateway, event.unread);
        break;
      case 'gone':
        this.#waiting.delete(event.gateway);
        break;
      case 'written':
        this.#written(nowUs);
        break;
      case 'replaced':
        this.#replaced = true;
        this.#stored = undefined;
        this.#unwritten(nowUs);
        break;
      case 'unwritten':
        this.#unwritten(nowUs);
        break;
      case 'wake':
        break;
      default:
        assertNever(event);
    }
    if (nowUs >= this.nextUs) this.#list();
    return this.#effects;
  }

  /** The snapshot that batches are kept for. */
  get #base(): Copy | undefined {
    return this.#stored ?? (this.#writing?.useful ? this.#writing : undefined);
  }

  /** Weight of batches since the snapshot at which another one is written. */
  get #weightMax(): number {
    return Math.max(this.#limits.changesMin, this.#base?.blocks ?? this.#refused ?? 0);
  }

  #list(): void {
    if (this.#listing) return;
    this.#listing = true;
    this.#effects.push({ kind: 'list' });
  }

  #listed(nowUs: number, snapshot: KvSnapshot): void {
    this.#listing = false;
    for (const gateway of this.#waiting) this.#effects.push({ kind: 'requestSnapshot', gateway });
    this.#waiting.clear();
    if (this.#replaced || this.#writing !== undefined || nowUs < this.#retryUs) return;
    const { number, blocks } = snapshot;
    if (blocks > this.#limits.blocksMax) {
      this.#refuse(blocks);
      return;
    }
    this.#refused = undefined;
    this.#writing = { number, blocks, useful: true };
    this.#effects.push({ kind: 'write', snapshot });
    this.#trim();
  }

  /**
   * The next attempt follows once as many changes have accumulated as there are blocks, or when a gateway requests a
   * listing.
   */
  #refuse(blocks: number): void {
    if (this.#refused === undefined) this.#effects.push({ kind: 'refused', blocks });
    this.#refused = blocks;
    this.#stored = undefined;
    this.#failures = 0;
    this.#weight = 0;
    this.#trim();
  }

  #keep(journal: KvEventBatch): void {
    const base = this.#base;
    if (base !== undefined && journal.number <= base.number) return;
    this.#weight += weightOf(journal);
    if (base === undefined) return;
    this.#tail.push(journal);
    if (this.#weight <= tailsMax * this.#weightMax) return;
    // The snapshot being written, or else a later one, may still be useful.
    if (this.#stored === undefined && this.#writing !== undefined) this.#writing = { ...this.#writing, useful: false };
    this.#stored = undefined;
    this.#trim();
  }

  #answer(gateway: Gateway, unread: boolean): void {
    if (unread) {
      this.#stored = undefined;
      this.#trim();
    }
    if (this.#stored === undefined) {
      this.#waiting.add(gateway);
      this.#list();
      return;
    }
    const { number } = this.#stored;
    this.#effects.push({ kind: 'tellStored', gateway, number, journals: [...this.#tail] });
  }

  #written(nowUs: number): void {
    const copy = this.#writing;
    this.#writing = undefined;
    if (copy?.useful) {
      this.#failures = 0;
      this.#stored = { number: copy.number, blocks: copy.blocks, atUs: nowUs };
      this.#trim();
    } else this.#wait(nowUs);
  }

  #unwritten(nowUs: number): void {
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
    if (base !== undefined) this.#weight = this.#tail.reduce((weight, journal) => weight + weightOf(journal), 0);
  }
}

function weightOf({ changes }: KvEventBatch): number {
  return changes + journalWeight;
}
