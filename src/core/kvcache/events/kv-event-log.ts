// KV events of an instance: numbered batches of changes to its blocks, and snapshots of all blocks.
import { digestWords } from '../../../util/blake2s.ts';
import { blockChange, type KvEventBatch, type KvSnapshot } from '../../protocol/kv-events.ts';

/** Receives every block that a cache stores or removes. */
export interface BlockListener {
  /**
   * The block of the digest at `words[at..at+4]` was stored or removed. For a stored block, `depth` is the number of
   * blocks before it plus one, and `block` its id if it is in the pool.
   */
  record(words: Uint32Array, at: number, stored: boolean, depth: number, block?: number): void;
}

/** Receives changes over all tiers, and which blocks only SSD holds. */
export interface TierListener extends BlockListener {
  /** `onSsd`: from now on only SSD holds the stored block; false: memory holds it again. */
  setSsdOnly(words: Uint32Array, at: number, onSsd: boolean): void;
}

/** Collects changes for the next batch, in arrays that the following batch reuses. */
export class KvEventLog implements TierListener {
  readonly #incarnation: number;
  #number = 0;
  #changes = 0;
  #words = new Uint32Array(64 * digestWords);
  #stored = new Uint8Array(64);

  constructor(incarnation: number) {
    this.#incarnation = incarnation;
  }

  /** The block of the digest at `words[at..at+4]` was stored or removed. */
  record(words: Uint32Array, at: number, stored: boolean): void {
    this.#add(words, at, stored ? blockChange.inMemory : blockChange.removed);
  }

  setSsdOnly(words: Uint32Array, at: number, onSsd: boolean): void {
    this.#add(words, at, onSsd ? blockChange.onSsd : blockChange.inMemory);
  }

  #add(words: Uint32Array, at: number, change: number): void {
    if (this.#changes === this.#stored.length) this.#grow();
    for (let i = 0; i < digestWords; i++) this.#words[this.#changes * digestWords + i] = words[at + i];
    this.#stored[this.#changes++] = change;
  }

  /** Number of the last batch; 0: none. */
  get number(): number {
    return this.#number;
  }

  /** Changes since the last batch. */
  get changes(): number {
    return this.#changes;
  }

  /** The changes since the last batch. Its arrays are valid until the next change. */
  take(): KvEventBatch {
    const changes = this.#changes;
    this.#changes = 0;
    return {
      incarnation: this.#incarnation,
      number: ++this.#number,
      changes,
      words: this.#words,
      stored: this.#stored,
    };
  }

  /** All blocks; changes were taken before. @param onSsd number of blocks, at the end, that are on SSD only */
  snapshot(words: Uint32Array, onSsd = 0): KvSnapshot {
    const snapshot = {
      incarnation: this.#incarnation,
      number: this.#number,
      blocks: words.length / digestWords,
      words,
    };
    return onSsd === 0 ? snapshot : { ...snapshot, onSsd };
  }

  #grow(): void {
    const words = new Uint32Array(2 * this.#words.length);
    words.set(this.#words);
    this.#words = words;
    const stored = new Uint8Array(2 * this.#stored.length);
    stored.set(this.#stored);
    this.#stored = stored;
  }
}
