// Hit ratios that one global cache would have on a trace, unbounded and bounded.
import { type BlockFacts, EvictionQueue, type EvictionRule } from '../core/kvcache/eviction.ts';
import { Int32List } from '../util/int32-list.ts';
import { BlockUses } from './future-uses.ts';
import type { TraceRequest } from './request.ts';

/** Shares of 0..1. A hit is a block in the cache when its request, in trace order, touches it. */
export interface HitRatios {
  readonly hitRatioBlocks: number;
  /** Blocks weighted by their tokens. */
  readonly hitRatioTokens: number;
  /** Mean of the ratios of single requests. */
  readonly meanRequestHitRatioBlocks: number;
  readonly meanRequestHitRatioTokens: number;
}

export interface CacheBound {
  readonly eviction: EvictionRule;
  /** Capacity in blocks of any size, or in tokens. */
  readonly capacityBlocks?: number;
  readonly capacityTokens?: number;
}

/** The prompts of a trace as one list of blocks: 8 bytes per touch. */
export class BlockTouches {
  readonly #blockTokens: number;
  readonly #dense = new Map<number, number>();
  readonly #touches = new Int32List(1024);
  /** (requests): number of touches up to the end of each request, and its tokens. */
  readonly #ends = new Int32List(256);
  readonly #tokens = new Int32List(256);
  /** (requests): rising times, so that uses by different requests differ. */
  readonly #atUs: number[] = [];
  #withoutHashes = 0;

  constructor(blockTokens: number) {
    this.#blockTokens = blockTokens;
  }

  add(request: TraceRequest): void {
    for (const id of request.blocks) {
      let dense = this.#dense.get(id);
      if (dense === undefined) {
        dense = this.#dense.size;
        this.#dense.set(id, dense);
      }
      this.#touches.push(dense);
    }
    if (request.blocks.length === 0) this.#withoutHashes += Math.ceil(request.inputTokens / this.#blockTokens);
    this.#ends.push(this.#touches.length);
    this.#atUs.push(Math.max(request.arrivalUs, (this.#atUs.at(-1) ?? 0) + 1));
    this.#tokens.push(request.inputTokens);
  }

  get total(): number {
    return this.#touches.length + this.#withoutHashes;
  }

  /** Blocks of prompts without ids, which are misses. */
  get withoutHashes(): number {
    return this.#withoutHashes;
  }

  get unique(): number {
    return this.#dense.size;
  }

  /** Unique blocks that only one request touches. */
  usedOnce(): number {
    const uses = new Int32Array(this.unique);
    for (const block of this.#touches.view()) uses[block]++;
    return uses.reduce((once, count) => once + (count === 1 ? 1 : 0), 0);
  }

  /** Ratios of an unbounded cache. */
  ideal(): HitRatios {
    const seen = new Uint8Array(this.unique);
    return this.#replay((block) => {
      const hit = seen[block] === 1;
      seen[block] = 1;
      return hit;
    });
  }

  /**
   * Ratios of a bounded cache: a miss evicts until the block fits, then inserts it. Use counts restart after an
   * eviction.
   */
  bounded(bound: CacheBound): HitRatios {
    const futureUses = typeof bound.eviction === 'string' ? undefined : this.#futureUses();
    // Without a cost model each token has the same cost.
    const facts = { blockTokens: this.#blockTokens, computeUs: () => this.#blockTokens, futureUses };
    const cache = new BoundedCache(this.unique, bound, facts);
    return this.#replay((block, tokens, depth, atUs) => cache.touch(block, tokens, depth, atUs));
  }

  /** The uses of each block, named by its number. */
  #futureUses(): BlockUses {
    const uses = new BlockUses();
    const touches = this.#touches.view();
    for (let request = 0, at = 0; request < this.#ends.length; request++)
      for (; at < this.#ends.at(request); at++) uses.add(touches[at], this.#atUs[request]);
    return uses;
  }

  #replay(touch: (block: number, tokens: number, depth: number, atUs: number) => boolean): HitRatios {
    const touches = this.#touches.view();
    const all = { blocks: 0, tokens: 0, hits: 0, hitTokens: 0, requestBlocks: 0, requestTokens: 0 };
    let at = 0;
    let requests = 0;
    for (let request = 0; request < this.#ends.length; request++) {
      const first = at;
      const end = this.#ends.at(request);
      const input = this.#tokens.at(request);
      const blocks = end === first ? Math.ceil(input / this.#blockTokens) : end - first;
      let hits = 0;
      let hitTokens = 0;
      for (; at < end; at++) {
        const tokens = Math.min(this.#blockTokens, input - (at - first) * this.#blockTokens);
        if (!touch(touches[at], tokens, at - first + 1, this.#atUs[request])) continue;
        hits++;
        hitTokens += tokens;
      }
      requests++;
      all.blocks += blocks;
      all.tokens += input;
      all.hits += hits;
      all.hitTokens += hitTokens;
      all.requestBlocks += hits / blocks;
      all.requestTokens += hitTokens / input;
    }
    return {
      hitRatioBlocks: ratio(all.hits, all.blocks),
      hitRatioTokens: ratio(all.hitTokens, all.tokens),
      meanRequestHitRatioBlocks: ratio(all.requestBlocks, requests),
      meanRequestHitRatioTokens: ratio(all.requestTokens, requests),
    };
  }
}

/** 0 for an empty total. */
function ratio(part: number, whole: number): number {
  return whole === 0 ? 0 : part / whole;
}

/** Blocks 0..blocks-1 in the eviction orders of the block cache, without the order of parents and children. */
class BoundedCache {
  readonly #queue: EvictionQueue;
  readonly #tokens: Int32Array;
  readonly #capacityBlocks: number;
  readonly #capacityTokens: number;
  #heldTokens = 0;
  /** The number of a block, in place of its digest. */
  readonly #name = new Uint32Array(1);

  constructor(
    blocks: number,
    { eviction, capacityBlocks = Infinity, capacityTokens = Infinity }: CacheBound,
    facts: BlockFacts,
  ) {
    this.#queue = new EvictionQueue(blocks, eviction, facts);
    this.#tokens = new Int32Array(blocks);
    this.#capacityBlocks = capacityBlocks;
    this.#capacityTokens = capacityTokens;
  }

  /** True for a hit. A block larger than the cache is never inserted. */
  touch(block: number, tokens: number, depth: number, atUs: number): boolean {
    const queue = this.#queue;
    queue.tick();
    queue.nowUs = atUs;
    if (queue.has(block)) {
      queue.remove(block);
      queue.reuse(block);
      queue.add(block);
      return true;
    }
    if (tokens > this.#capacityTokens || this.#capacityBlocks < 1) return false;
    while (queue.size >= this.#capacityBlocks || this.#heldTokens + tokens > this.#capacityTokens) this.#evict();
    this.#name[0] = block;
    queue.identify(block, this.#name, 0);
    queue.stored(block, depth);
    queue.add(block);
    this.#tokens[block] = tokens;
    this.#heldTokens += tokens;
    return false;
  }

  #evict(): void {
    const victim = this.#queue.pop();
    if (victim === undefined) throw new Error(`Cannot evict: the cache is empty but holds ${this.#heldTokens} tokens`);
    this.#heldTokens -= this.#tokens[victim];
  }
}
