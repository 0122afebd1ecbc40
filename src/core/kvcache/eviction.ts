// Which cached block goes first: LRU, LFU, length-aware and FIFO behind one order, and the queue that applies it.
import { type HeapOrder, IndexedHeap } from '../../util/indexed-heap.ts';
import type { BlockId } from '../protocol/ids.ts';

export const evictionKinds = ['lru', 'lfu', 'length-aware', 'fifo'] as const;
export type EvictionKind = (typeof evictionKinds)[number];

/** What is known of each block's use; arrays are indexed by block. */
export interface BlockUse {
  /** Counts uses of the pool, not time. */
  readonly lastUse: Float64Array;
  readonly uses: Float64Array;
  /** When it came into the cache, in the pool's own count. */
  readonly since: Float64Array;
  /** Blocks before it in its prefix, plus one. */
  readonly depth: Int32Array;
}

/** Negative: `a` goes before `b`. */
export type EvictionOrder = (use: BlockUse, a: BlockId, b: BlockId) => number;

function difference(values: Float64Array, a: BlockId, b: BlockId): number {
  return values[a] - values[b];
}

/** Apart from the other: code for one kind of array is faster than code for two. */
function deeper({ depth }: BlockUse, a: BlockId, b: BlockId): number {
  return depth[b] - depth[a];
}

/** All end with the deepest first, then the lowest id, so that every order is total. */
export const evictionOrders: Readonly<Record<EvictionKind, EvictionOrder>> = {
  lru: (use, a, b) => difference(use.lastUse, a, b) || deeper(use, a, b) || a - b,
  lfu: (use, a, b) => difference(use.uses, a, b) || difference(use.lastUse, a, b) || deeper(use, a, b) || a - b,
  // Mooncake's LengthAwareCache: LFU, but among equals the blocks that come later in a prompt go first.
  'length-aware': (use, a, b) =>
    difference(use.uses, a, b) || deeper(use, a, b) || difference(use.lastUse, a, b) || a - b,
  fifo: (use, a, b) => difference(use.since, a, b) || deeper(use, a, b) || a - b,
};

type GrowingUse = { -readonly [K in keyof BlockUse]: BlockUse[K] };

/** Blocks that may be evicted now, numbered through. Every operation is O(log n). */
export class EvictionQueue<Id extends number = BlockId> implements HeapOrder {
  readonly #order: EvictionOrder;
  readonly #use: GrowingUse;
  readonly #heap: IndexedHeap;
  #clock = 0;

  constructor(blocks: number, kind: EvictionKind) {
    const use: GrowingUse = {
      lastUse: new Float64Array(blocks),
      uses: new Float64Array(blocks),
      since: new Float64Array(blocks),
      depth: new Int32Array(blocks),
    };
    this.#order = evictionOrders[kind];
    this.#use = use;
    this.#heap = new IndexedHeap(blocks, this);
  }

  before(a: Id, b: Id): boolean {
    return this.#order(this.#use, a, b) < 0;
  }

  get size(): number {
    return this.#heap.size;
  }

  has(block: Id): boolean {
    return this.#heap.has(block);
  }

  /** Blocks touched between two ticks count as used at once. */
  tick(): void {
    this.#clock++;
  }

  /** A block came into the cache for the first time. */
  begin(block: Id, depth: number): void {
    this.#use.depth[block] = depth;
    this.#use.uses[block] = 1;
    this.#use.since[block] = this.#clock;
    this.#use.lastUse[block] = this.#clock;
  }

  /** A sequence reuses the block. It must not be in the queue. */
  reuse(block: Id): void {
    this.#use.uses[block] = this.#use.uses[block] + 1;
    this.#use.lastUse[block] = this.#clock;
  }

  /** A sequence lets go of the block: used until now, but not once more; `cold`: as if never used, if nobody else did. It must not be in the queue. */
  letGo(block: Id, cold: boolean): void {
    const unused = cold && (this.#use.uses[block] as number) <= 1;
    this.#use.lastUse[block] = unused ? 0 : this.#clock;
    if (unused) this.#use.since[block] = 0;
  }

  /** The block is used once more, in the queue or not. */
  touch(block: Id): void {
    this.reuse(block);
    this.#heap.moved(block);
  }

  depth(block: Id): number {
    return this.#use.depth[block];
  }

  /** Room for block ids up to `blocks`, no less than before. */
  grow(blocks: number): void {
    const use = this.#use;
    use.lastUse = grown(use.lastUse, blocks);
    use.uses = grown(use.uses, blocks);
    use.since = grown(use.since, blocks);
    const depth = new Int32Array(blocks);
    depth.set(use.depth);
    use.depth = depth;
    this.#heap.grow(blocks);
  }

  add(block: Id): void {
    this.#heap.push(block);
  }

  /** False when the block was not in. */
  remove(block: Id): boolean {
    return this.#heap.remove(block);
  }

  /** Takes out the block to evict next. */
  pop(): Id | undefined {
    return this.#heap.pop() as Id | undefined;
  }
}

function grown(values: Float64Array, length: number): Float64Array {
  const more = new Float64Array(length);
  more.set(values);
  return more;
}
