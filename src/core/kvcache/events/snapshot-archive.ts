// When an instance keeps a copy of what its cache holds where all can read it, and what it tells those who ask: that copy, and the journals since.
import type { KvEventBatch, KvSnapshot } from '../../protocol/kv-events.ts';

export interface ArchiveLimits {
  /** Changes of the cache that no copy is written for, where the copy before has fewer blocks. */
  readonly changesMin: number;
  /** The store has no room for more. */
  readonly blocksMax: number;
  /** A copy is written anew so long after it was, though little has changed: it is forgotten later than that. */
  readonly refreshUs: number;
  /** After the first write that failed; each further one in a row waits twice as long. */
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

/** What a journal costs besides its changes, in changes. */
export const journalWeight = 8;
/** Journals since the copy are kept up to so many times of what is wanted: then it is of no use any more. */
export const tailsMax = 4;

/** One write is under way at a time, and answered once; so is one listing. */
export type ArchiveEvent<Gateway> =
  /** A turn of the instance's own thread: blocks are an answer to `list`. */
  | { readonly kind: 'heard'; readonly journals: readonly KvEventBatch[]; readonly blocks: KvSnapshot | undefined }
  /** `unread`: the copy that it was told of was not there. */
  | { readonly kind: 'asked'; readonly gateway: Gateway; readonly unread: boolean }
  | { readonly kind: 'gone'; readonly gateway: Gateway }
  | { readonly kind: 'written' }
  /** It may have been all the same. */
  | { readonly kind: 'unwritten' }
  /** A later process of this name writes there. */
  | { readonly kind: 'replaced' }
  | { readonly kind: 'wake' };

export type ArchiveEffect<Gateway> =
  /** The thread is to tell all that it holds. */
  | { readonly kind: 'list' }
  | { readonly kind: 'write'; readonly snapshot: KvSnapshot }
  /** The copy of that number, and all journals since that have been heard. */
  | {
      readonly kind: 'tellStored';
      readonly gateway: Gateway;
      readonly number: number;
      readonly journals: readonly KvEventBatch[];
    }
  /** What the thread has just listed. */
  | { readonly kind: 'requestSnapshot'; readonly gateway: Gateway }
  /** No copy of so many is written, unlike before. */
  | { readonly kind: 'refused'; readonly blocks: number };

interface Copy {
  readonly number: number;
  readonly blocks: number;
}

/**
 * Journals come in order and without gaps, whatever becomes of copies; a listing stands after those before it. What is kept is bounded: the journals since the
 * copy, a few times as much as the copy itself.
 */
export class SnapshotArchive<Gateway> {
  readonly #limits: ArchiveLimits;
  #stored: (Copy & { readonly atUs: number }) | undefined;
  /** Useful while the journals since are kept. */
  #writing: (Copy & { readonly useful: boolean }) | undefined;
  /** Since the copy that is stored, or else the one that is being written; empty where there is none. */
  #tail: KvEventBatch[] = [];
  /** Of the tail; where there is none, of all journals since there was one. */
  #weight = 0;
  #listing = false;
  /** They are told what is listed. */
  readonly #waiting = new Set<Gateway>();
  /** That were listed last, where they are too many for a copy. */
  #refused: number | undefined;
  #failures = 0;
  #retryUs = 0;
  #replaced = false;
  #effects: ArchiveEffect<Gateway>[] = [];

  constructor(limits: ArchiveLimits = defaultArchiveLimits) {
    this.#limits = limits;
  }

  /** Journals that are kept. */
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

  /** `nowUs` never goes back. The effects are to be carried out in order. */
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
    }
    if (nowUs >= this.nextUs) this.#list();
    return this.#effects;
  }

  /** The copy that journals are kept for. */
  get #base(): Copy | undefined {
    return this.#stored ?? (this.#writing?.useful ? this.#writing : undefined);
  }

  /** Of journals since the copy, before another one is wanted. */
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

  /** Until as much has changed as there is, or somebody has it listed, it will not have shrunk. */
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
    // What is being written may be of use instead, and if not, what will be.
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

  /** Before the next one is written. */
  #wait(nowUs: number): void {
    this.#retryUs = nowUs + Math.min(this.#limits.retryUsMax, this.#limits.retryUs * 2 ** this.#failures);
    this.#failures++;
  }

  /** Keeps what comes after the copy that there is. */
  #trim(): void {
    const base = this.#base;
    this.#tail = base === undefined ? [] : this.#tail.filter(({ number }) => number > base.number);
    if (base !== undefined) this.#weight = this.#tail.reduce((weight, journal) => weight + weightOf(journal), 0);
  }
}

function weightOf({ changes }: KvEventBatch): number {
  return changes + journalWeight;
}
