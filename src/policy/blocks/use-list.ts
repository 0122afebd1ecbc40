// Blocks in the order of their last use, as a linked list: what an eviction queue does by `lru`, in constant time.
import type { BlockId } from './block-pool.ts';

/**
 * For blocks that are added as they are used: the last one added goes last. Of those that one tick adds the deepest goes first; so whoever adds
 * many at once adds the deepest first.
 */
export class UseList {
  /** (blocks + 1): block ids plus one, around the list; entry 0: its first and last. */
  #next: Int32Array;
  #previous: Int32Array;
  #in: Uint8Array;
  /** (blocks): when it was last added. */
  #tick: Float64Array;
  #depth: Int32Array;
  #size = 0;
  #clock = 0;

  constructor(blocks: number) {
    this.#next = new Int32Array(blocks + 1);
    this.#previous = new Int32Array(blocks + 1);
    this.#in = new Uint8Array(blocks);
    this.#tick = new Float64Array(blocks);
    this.#depth = new Int32Array(blocks);
  }

  get size(): number {
    return this.#size;
  }

  has(block: BlockId): boolean {
    return this.#in[block] === 1;
  }

  depth(block: BlockId): number {
    return this.#depth[block];
  }

  tick(): void {
    this.#clock++;
  }

  begin(block: BlockId, depth: number): void {
    this.#depth[block] = depth;
  }

  /** It is used until it is added. */
  letGo(_block: BlockId, _cold: boolean): void {}

  touch(block: BlockId): void {
    if (this.remove(block)) this.add(block);
  }

  /** It must not be in. */
  add(block: BlockId): void {
    let before = this.#previous[0];
    while (before !== 0 && this.#tick[before - 1] === this.#clock && this.#depth[before - 1] < this.#depth[block])
      before = this.#previous[before];
    const after = this.#next[before];
    this.#next[before] = block + 1;
    this.#previous[block + 1] = before;
    this.#next[block + 1] = after;
    this.#previous[after] = block + 1;
    this.#in[block] = 1;
    this.#tick[block] = this.#clock;
    this.#size++;
  }

  /** False when the block was not in. */
  remove(block: BlockId): boolean {
    if (this.#in[block] === 0) return false;
    const before = this.#previous[block + 1];
    const after = this.#next[block + 1];
    this.#next[before] = after;
    this.#previous[after] = before;
    this.#in[block] = 0;
    this.#size--;
    return true;
  }

  pop(): BlockId | undefined {
    const first = this.#next[0];
    if (first === 0) return undefined;
    this.remove(first - 1);
    return first - 1;
  }

  /** Room for block ids up to `blocks`, no less than before. */
  grow(blocks: number): void {
    this.#next = grown(this.#next, blocks + 1);
    this.#previous = grown(this.#previous, blocks + 1);
    this.#depth = grown(this.#depth, blocks);
    const isIn = new Uint8Array(blocks);
    isIn.set(this.#in);
    this.#in = isIn;
    const tick = new Float64Array(blocks);
    tick.set(this.#tick);
    this.#tick = tick;
  }
}

function grown(values: Int32Array, length: number): Int32Array {
  const more = new Int32Array(length);
  more.set(values);
  return more;
}
