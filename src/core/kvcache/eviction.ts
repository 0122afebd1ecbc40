// Eviction orders of cached blocks, and the queue that applies one. To add an order, add an entry to `evictionOrders`:
// options, help and checks read the names from there. A policy that no comparison of uses expresses ranks blocks itself.
import { type HeapOrder, IndexedHeap } from '../../util/indexed-heap.ts';
import { wideZero } from '../../util/wide-zero.ts';
import type { BlockId } from '../protocol/ids.ts';
import type { StepPredictor } from '../protocol/step-shape.ts';
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

/** A cached block for an eviction policy. Valid during the call. */
export interface RankedBlock {
  /** Times in microseconds. */
  readonly nowUs: number;
  readonly storedUs: number;
  /** The last use, and the one before; the block was stored at its first use. 0: it counts as never used. */
  readonly usedUs: number;
  readonly earlierUsedUs: number;
  /** Sequences that have used it. */
  readonly uses: number;
  /** Blocks before it in its prefix, plus one. */
  readonly depth: number;
  /** Its size. */
  readonly tokens: number;
  /** Predicted time to compute it again behind its prefix: its share of a full chunk. */
  readonly computeUs: number;
  /** Tenant of the sequence that used it last. Empty: no tenant, or a block of a lower tier. */
  readonly tenant: string;
  /** Arrival of the next request with the block; Infinity: there is none. Undefined where the future is not given. */
  readonly nextUseUs: number | undefined;
}

/**
 * The order in which a cache evicts its blocks; one object for each cache, which may have state. Blocks are compared by
 * `rank`, if there is one, then by `order`. The named orders of `evictionOrders` have no `rank`.
 */
export interface EvictionPolicy {
  /** Called after the block is stored, reused or released. The block of the least rank is evicted first. */
  readonly rank?: ((block: RankedBlock) => number) | undefined;
  /** Undefined: `lru`. */
  readonly order?: EvictionOrder | undefined;
  /** A block of this rank is evicted. */
  evicted?(rank: number): void;
}

/** When blocks of a simulated workload are used. */
export interface FutureUses {
  /** Names the digest at `words[at..at+4]` for `nextUs`. */
  keyOf(words: Uint32Array, at: number): number;
  /** Arrival of the first request with the block after `nowUs`, which never decreases; Infinity: there is none. */
  nextUs(key: number, nowUs: number): number;
}

/** What an eviction policy receives besides the use of blocks. */
export interface BlockFacts {
  readonly blockTokens: number;
  /** Microseconds, by depth. */
  readonly computeUs: (depth: number) => number;
  readonly futureUses?: FutureUses | undefined;
}

/** Predicts the time of a block by its share of a chunk of `rows` rows that all have as many keys as its rows. */
export function chunkShare(
  cost: Pick<StepPredictor, 'predictUs'>,
  blockTokens: number,
  rows: number,
): BlockFacts['computeUs'] {
  const chunk = { rows, keyRows: 0, decodeRows: 0, decodeKeys: 0, logitRows: 0 };
  return (depth) => {
    chunk.keyRows = rows * ((depth - 1) * blockTokens + (blockTokens + 1) / 2);
    return (cost.predictUs(chunk) * blockTokens) / rows;
  };
}

/** The name of an order, or what creates the policy of a cache. */
export type EvictionRule = EvictionKind | (() => EvictionPolicy);

type GrowingUse = { -readonly [K in keyof BlockUse]: BlockUse[K] };

/**
 * A queue for callers that add blocks when they are used. It grows with the blocks; `lru` has an implementation in
 * constant time.
 */
export function growingQueue<Id extends number>(
  rule: EvictionRule,
  facts?: BlockFacts,
): EvictionQueue<Id> | LruList<Id> {
  return rule === 'lru' ? new LruList<Id>(0) : new EvictionQueue<Id>(0, rule, facts);
}

/** A priority queue of the blocks that may be evicted now. An operation takes O(log n) time. */
export class EvictionQueue<Id extends number = BlockId> implements HeapOrder {
  readonly #order: EvictionOrder;
  readonly #use: GrowingUse;
  readonly #heap: IndexedHeap;
  /** Undefined: the policy has an order alone. */
  readonly #ranks: BlockRanks | undefined;
  #clock = 0;

  /** @param facts undefined: blocks have one token, and no cost */
  constructor(blocks: number, rule: EvictionRule, facts: BlockFacts = noFacts) {
    const use: GrowingUse = {
      lastUse: new Float64Array(blocks),
      uses: new Float64Array(blocks),
      storedAt: new Float64Array(blocks),
      depth: new Int32Array(blocks),
    };
    const policy: EvictionPolicy = typeof rule === 'string' ? { order: evictionOrders[rule] } : rule();
    const { rank, order = evictionOrders.lru } = policy;
    const ranks = rank === undefined ? undefined : new BlockRanks(blocks, policy, facts);
    this.#order = ranks === undefined ? order : (uses, a, b) => ranks.compare(a, b) || order(uses, a, b);
    this.#ranks = ranks;
    this.#use = use;
    this.#heap = new IndexedHeap(blocks, this);
  }

  /** The time of all uses until it is set again. */
  set nowUs(us: number) {
    if (this.#ranks !== undefined) this.#ranks.nowUs = us;
  }

  /** The block that is stored next has the digest at `words[at..at+4]`. */
  identify(block: Id, words: Uint32Array, at: number): void {
    this.#ranks?.identify(block, words, at);
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

  /** Blocks used between two ticks count as used at the same time, by this tenant. */
  tick(tenant = ''): void {
    this.#clock++;
    if (this.#ranks !== undefined) this.#ranks.tenant = tenant;
  }

  /** The block is stored for the first time. */
  stored(block: Id, depth: number): void {
    this.#use.depth[block] = depth;
    this.#use.uses[block] = 1;
    this.#use.storedAt[block] = this.#clock;
    this.#use.lastUse[block] = this.#clock;
    this.#ranks?.stored(block, this.#use);
  }

  /** A sequence reuses the block, which must not be in the queue. */
  reuse(block: Id): void {
    this.#use.uses[block] = this.#use.uses[block] + 1;
    this.#use.lastUse[block] = this.#clock;
    this.#ranks?.reused(block, this.#use);
  }

  /**
   * A sequence releases the block, which must not be in the queue: its last use is now, and its use count stays. With
   * `cold`, a block used by one sequence only counts as never used.
   */
  release(block: Id, cold: boolean): void {
    const unused = cold && (this.#use.uses[block] as number) <= 1;
    this.#use.lastUse[block] = unused ? 0 : this.#clock;
    if (unused) this.#use.storedAt[block] = 0;
    this.#ranks?.released(block, this.#use, unused);
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
    this.#ranks?.grow(blocks);
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
    const block = this.#heap.pop() as Id | undefined;
    if (block !== undefined) this.#ranks?.evicted(block);
    return block;
  }
}

const noFacts: BlockFacts = { blockTokens: 1, computeUs: () => 0 };

/** The ranks of blocks by a policy. Itself the block that the policy ranks: what it does not rank by costs nothing. */
class BlockRanks implements RankedBlock {
  readonly #policy: EvictionPolicy;
  readonly #facts: BlockFacts;
  #block = 0;
  #use: BlockUse | undefined;
  #rank: Float64Array;
  #storedUs: Float64Array;
  #usedUs: Float64Array;
  #earlierUsedUs: Float64Array;
  /** (blocks): keys of their future uses. */
  #keys: Float64Array;
  readonly #tenants: string[] = [];
  nowUs: number = wideZero;
  #tenant = '';

  constructor(blocks: number, policy: EvictionPolicy, facts: BlockFacts) {
    this.#policy = policy;
    this.#facts = facts;
    this.#rank = new Float64Array(blocks);
    this.#storedUs = new Float64Array(blocks);
    this.#usedUs = new Float64Array(blocks);
    this.#earlierUsedUs = new Float64Array(blocks);
    this.#keys = new Float64Array(blocks);
  }

  get storedUs(): number {
    return this.#storedUs[this.#block];
  }

  get usedUs(): number {
    return this.#usedUs[this.#block];
  }

  get earlierUsedUs(): number {
    return this.#earlierUsedUs[this.#block];
  }

  get uses(): number {
    return this.#use?.uses[this.#block] ?? 0;
  }

  get depth(): number {
    return this.#use?.depth[this.#block] ?? 0;
  }

  get tokens(): number {
    return this.#facts.blockTokens;
  }

  get computeUs(): number {
    return this.#facts.computeUs(this.depth);
  }

  get tenant(): string {
    return this.#tenants[this.#block] ?? '';
  }

  set tenant(tenant: string) {
    this.#tenant = tenant;
  }

  get nextUseUs(): number | undefined {
    return this.#facts.futureUses?.nextUs(this.#keys[this.#block], this.nowUs);
  }

  compare(a: number, b: number): number {
    const [rankA, rankB] = [this.#rank[a], this.#rank[b]];
    // The difference of two infinite ranks is no number.
    return rankA === rankB ? 0 : rankA - rankB;
  }

  identify(block: number, words: Uint32Array, at: number): void {
    if (this.#facts.futureUses !== undefined) this.#keys[block] = this.#facts.futureUses.keyOf(words, at);
  }

  stored(block: number, use: BlockUse): void {
    for (const times of [this.#storedUs, this.#usedUs, this.#earlierUsedUs]) times[block] = this.nowUs;
    this.#tenants[block] = this.#tenant;
    this.#update(block, use);
  }

  reused(block: number, use: BlockUse): void {
    this.#earlierUsedUs[block] = this.#usedUs[block];
    this.released(block, use, false);
  }

  released(block: number, use: BlockUse, unused: boolean): void {
    this.#usedUs[block] = unused ? 0 : this.nowUs;
    // A table of no sequence leaves the tenant of the last one.
    if (this.#tenant !== '') this.#tenants[block] = this.#tenant;
    if (unused) this.#storedUs[block] = 0;
    this.#update(block, use);
  }

  evicted(block: number): void {
    this.#policy.evicted?.(this.#rank[block]);
  }

  grow(blocks: number): void {
    this.#rank = grown(this.#rank, blocks);
    this.#storedUs = grown(this.#storedUs, blocks);
    this.#usedUs = grown(this.#usedUs, blocks);
    this.#earlierUsedUs = grown(this.#earlierUsedUs, blocks);
    this.#keys = grown(this.#keys, blocks);
  }

  #update(block: number, use: BlockUse): void {
    this.#block = block;
    this.#use = use;
    const rank = this.#policy.rank?.(this) ?? 0;
    if (Number.isNaN(rank)) throw new Error(`Cannot rank a block for eviction: its rank is ${rank}`);
    this.#rank[block] = rank;
  }
}

function grown(values: Float64Array, length: number): Float64Array {
  const more = new Float64Array(length);
  more.set(values);
  return more;
}
