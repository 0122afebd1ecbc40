// What an instance says of the blocks it holds: numbered journals of what changed, and snapshots of everything.
import { digestWords } from '../../../util/blake2s.ts';
import { blockChange, type KvEventBatch, type KvSnapshot } from '../../protocol/kv-events.ts';

/** Hears of every block that a cache comes to hold or loses. */
export interface BlockListener {
  /** The block of the digest at `words[at..at+4]` was stored or removed. Of one that was stored `depth` is blocks before it plus one, and `block` which one of the pool it is, if it is there. */
  record(words: Uint32Array, at: number, stored: boolean, depth: number, block?: number): void;
}

/** Hears of tiers together, and which of their blocks SSD alone has. */
export interface TierListener extends BlockListener {
  /** Of a block that is held: it is on SSD alone from now on, or is not any more. */
  sank(words: Uint32Array, at: number, onSsd: boolean): void;
}

/** Gathers changes for the next journal, in arrays that are used again for the one after. */
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

  sank(words: Uint32Array, at: number, onSsd: boolean): void {
    this.#add(words, at, onSsd ? blockChange.onSsd : blockChange.inMemory);
  }

  #add(words: Uint32Array, at: number, change: number): void {
    if (this.#changes === this.#stored.length) this.#grow();
    for (let i = 0; i < digestWords; i++) this.#words[this.#changes * digestWords + i] = words[at + i];
    this.#stored[this.#changes++] = change;
  }

  /** Of the last journal; 0: none. */
  get number(): number {
    return this.#number;
  }

  /** Changes since the last journal. */
  get changes(): number {
    return this.#changes;
  }

  /** What changed since the last journal. Its arrays are valid until the next change. */
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

  /** Of all blocks, once all changes have been told. @param onSsd the last so many are on SSD alone */
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
