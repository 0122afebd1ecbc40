// Eviction orders of cached blocks, and the queue that applies one. To add an order, add an entry to `evictionOrders`:
// options, help and checks read the names from there. `growingQueue` is the queue of lower tiers.
import { type HeapOrder, IndexedHeap } from '../../util/indexed-heap.ts';
import type { BlockId } from '../protocol/ids.ts';
import { LruList } from './lru-list.ts';

/** How blocks were used, for the comparisons of eviction orders. Arrays are indexed by block. */
export interface BlockUse {
  /** The queue's tick of the last use: it counts uses of the pool, not time. */
  readonly lastUse: Float64Array;
  readonly uses: Float64Array;
  /** The queue's tick when the block was stored. */
  readonly storedAt: Float64Array;
  /** Blocks before it in its prefix, plus one. */
  readonly depth: Int32Array;
}

/** Negative: `a` is evicted before `b`. */
export type EvictionOrder = (use: BlockUse, a: BlockId, b: BlockId) => number;

function difference(values: Float64Array, a: BlockId, b: BlockId): number {
  return values[a] - values[b];
}

/** Separate from `difference`: code for one kind of array is faster than code for two. */
function deeper({ depth }: BlockUse, a: BlockId, b: BlockId): number {
  return depth[b] - depth[a];
}

/** Every order ends with the lowest id, so that it is total. */
export const evictionOrders = {
  lru: (use, a, b) => difference(use.lastUse, a, b) || deeper(use, a, b) || a - b,
  lfu: (use, a, b) => difference(use.uses, a, b) || difference(use.lastUse, a, b) || deeper(use, a, b) || a - b,
  // Mooncake's LengthAwareCache: LFU, but among equals the blocks that come later in a prompt are evicted first.
  'length-aware': (use, a, b) =>
    difference(use.uses, a, b) || deeper(use, a, b) || difference(use.lastUse, a, b) || a - b,
  fifo: (use, a, b) => difference(use.storedAt, a, b) || deeper(use, a, b) || a - b,
} satisfies Readonly<Record<string, EvictionOrder>>;

export type EvictionKind = keyof typeof evictionOrders;
export const evictionKinds = Object.keys(evictionOrders) as readonly EvictionKind[];

type GrowingUse = { -readonly [K in keyof BlockUse]: BlockUse[K] };

/**
 * A queue for callers that add blocks when they are used. It grows with the blocks; `lru` has an implementation in
 * constant time.
 */
export function growingQueue<Id extends number>(kind: EvictionKind): EvictionQueue<Id> | LruList<Id> {
  return kind === 'lru' ? new LruList<Id>(0) : new EvictionQueue<Id>(0, kind);
}

/** A priority queue of the blocks that may be evicted now. An operation takes O(log n) time. */
export class EvictionQueue<Id extends number = BlockId> implements HeapOrder {
  readonly #order: EvictionOrder;
  readonly #use: GrowingUse;
  readonly #heap: IndexedHeap;
  #clock = 0;

  constructor(blocks: number, kind: EvictionKind) {
    const use: GrowingUse = {
      lastUse: new Float64Array(blocks),
      uses: new Float64Array(blocks),
      storedAt: new Float64Array(blocks),
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

  /** Blocks used between two ticks count as used at the same time. */
  tick(): void {
    this.#clock++;
  }

  /** The block is stored for the first time. */
  stored(block: Id, depth: number): void {
    this.#use.depth[block] = depth;
    this.#use.uses[block] = 1;
    this.#use.storedAt[block] = this.#clock;
    this.#use.lastUse[block] = this.#clock;
  }

  /** A sequence reuses the block, which must not be in the queue. */
  reuse(block: Id): void {
    this.#use.uses[block] = this.#use.uses[block] + 1;
    this.#use.lastUse[block] = this.#clock;
  }

  /**
   * A sequence releases the block, which must not be in the queue: its last use is now, and its use count stays. With
   * `cold`, a block used by one sequence only counts as never used.
   */
  release(block: Id, cold: boolean): void {
    const unused = cold && (this.#use.uses[block] as number) <= 1;
    this.#use.lastUse[block] = unused ? 0 : this.#clock;
    if (unused) this.#use.storedAt[block] = 0;
  }

  /** Counts a use of the block, in the queue or not. */
  touch(block: Id): void {
    this.reuse(block);
    this.#heap.moved(block);
  }

  depth(block: Id): number {
    return this.#use.depth[block];
  }

  /** Makes space for block ids below `blocks`, at least as many as before. */
  grow(blocks: number): void {
    const use = this.#use;
    use.lastUse = grown(use.lastUse, blocks);
    use.uses = grown(use.uses, blocks);
    use.storedAt = grown(use.storedAt, blocks);
    const depth = new Int32Array(blocks);
    depth.set(use.depth);
    use.depth = depth;
    this.#heap.grow(blocks);
  }

  add(block: Id): void {
    this.#heap.push(block);
  }

  /** False when the block was not in the queue. */
  remove(block: Id): boolean {
    return this.#heap.remove(block);
  }

  /** Removes and returns the block to evict next. */
  pop(): Id | undefined {
    return this.#heap.pop() as Id | undefined;
  }
}

function grown(values: Float64Array, length: number): Float64Array {
  const more = new Float64Array(length);
  more.set(values);
  return more;
}
