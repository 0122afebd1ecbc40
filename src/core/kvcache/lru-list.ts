// Blocks in the order of their last use, as a linked list: an eviction queue for `lru` in constant time.
import type { BlockId } from '../protocol/ids.ts';

/**
 * (blocks + 1, 4 words): entry 0 holds the ends of the list, entry `block + 1` a block. The fields of an entry are
 * adjacent.
 */
const entryWords = 4;
/** The next entry plus one; 0: the block is not in the list. */
const nextAt = 0;
const previousAt = 1;
const depthAt = 2;
/** Tick of the last `add`. */
const tickAt = 3;

/**
 * For blocks that are added when they are used: the block added last is evicted last. Among blocks of one tick the
 * deepest is evicted first, so a caller that adds many adds the deepest first.
 */
export class LruList<Id extends number = BlockId> {
  #entries: Uint32Array;
  #size = 0;
  /** Wraps around: only recent ticks matter. */
  #clock = 0;

  constructor(blocks: number) {
    this.#entries = new Uint32Array((blocks + 1) * entryWords);
    this.#entries[nextAt] = 1;
  }

  get size(): number {
    return this.#size;
  }

  has(block: Id): boolean {
    return this.#entries[(block + 1) * entryWords + nextAt] !== 0;
  }

  depth(block: Id): number {
    return this.#entries[(block + 1) * entryWords + depthAt];
  }

  tick(): void {
    this.#clock = (this.#clock + 1) >>> 0;
  }

  stored(block: Id, depth: number): void {
    this.#entries[(block + 1) * entryWords + depthAt] = depth;
  }

  /** A block counts as used until it is added. */
  release(_block: Id, _cold: boolean): void {}

  touch(block: Id): void {
    if (this.remove(block)) this.add(block);
  }

  /** The block must not be in the list. */
  add(block: Id): void {
    const entries = this.#entries;
    const own = (block + 1) * entryWords;
    const depth = entries[own + depthAt];
    let before = entries[previousAt];
    while (before !== 0) {
      const at = before * entryWords;
      if (entries[at + tickAt] !== this.#clock || entries[at + depthAt] >= depth) break;
      before = entries[at + previousAt];
    }
    const after = entries[before * entryWords + nextAt] - 1;
    entries[before * entryWords + nextAt] = block + 2;
    entries[own + previousAt] = before;
    entries[own + nextAt] = after + 1;
    entries[after * entryWords + previousAt] = block + 1;
    entries[own + tickAt] = this.#clock;
    this.#size++;
  }

  /** False when the block was not in the list. */
  remove(block: Id): boolean {
    const entries = this.#entries;
    const own = (block + 1) * entryWords;
    if (entries[own + nextAt] === 0) return false;
    const before = entries[own + previousAt];
    const after = entries[own + nextAt] - 1;
    entries[before * entryWords + nextAt] = after + 1;
    entries[after * entryWords + previousAt] = before;
    entries[own + nextAt] = 0;
    this.#size--;
    return true;
  }

  pop(): Id | undefined {
    const first = this.#entries[nextAt] - 1;
    if (first === 0) return undefined;
    const id = (first - 1) as Id;
    this.remove(id);
    return id;
  }

  /** Makes space for block ids below `blocks`, at least as many as before. */
  grow(blocks: number): void {
    const entries = new Uint32Array((blocks + 1) * entryWords);
    entries.set(this.#entries);
    this.#entries = entries;
  }
}
