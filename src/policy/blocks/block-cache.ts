// Pool, prefix index and eviction as one store: sequences take blocks from it, share them and leave them behind.
import { Int32List } from '../../util/int32-list.ts';
import type { HashChain } from './block-hash.ts';
import { type BlockId, BlockPool } from './block-pool.ts';
import type { BlockTable } from './block-table.ts';
import { type EvictionKind, EvictionQueue } from './eviction.ts';
import { PagePool } from './page-pool.ts';
import { PrefixIndex } from './prefix-index.ts';

export interface BlockCacheConfig {
  readonly pages: number;
  readonly layers: number;
  readonly eviction: EvictionKind;
}

/** How much of a prompt the cache holds. */
export interface PrefixMatch {
  /** Blocks from the start. */
  readonly blocks: number;
  /** How many of them nobody uses: taking them makes that many fewer available. */
  readonly idle: number;
}

/**
 * Full blocks are indexed by their digests; a block that nobody uses stays as cache until its place is wanted.
 * A block is never evicted while it is used or while a block that follows it in a prefix is indexed.
 */
export class BlockCache {
  readonly pages: PagePool;
  readonly pool: BlockPool;
  readonly #index: PrefixIndex;
  readonly #queue: EvictionQueue;
  readonly #found = new Int32List();
  #evicted = 0;

  constructor(config: BlockCacheConfig) {
    this.pages = new PagePool(config.pages);
    this.pool = new BlockPool(this.pages, config.layers);
    this.#index = new PrefixIndex(this.pool.total);
    this.#queue = new EvictionQueue(this.pool.total, config.eviction);
  }

  /** Blocks evicted so far. */
  get evicted(): number {
    return this.#evicted;
  }

  /** Blocks that can be had without taking one from a sequence. */
  get available(): number {
    return this.pool.free + this.pool.cached;
  }

  /** Looks only, pins nothing: valid until the next allocation. */
  match(chain: HashChain, blocksMax: number): PrefixMatch {
    this.#found.clear();
    this.#index.match(chain.words, Math.min(blocksMax, chain.blocks), this.#found);
    let idle = 0;
    for (let i = 0; i < this.#found.length; i++) if (this.pool.refs(this.#found.at(i)) === 0) idle++;
    return { blocks: this.#found.length, idle };
  }

  /** Appends the blocks of the chain's longest known prefix to an empty table, pinned. Returns how many. */
  share(chain: HashChain, blocksMax: number, table: BlockTable): number {
    const from = table.length;
    this.#index.match(chain.words, Math.min(blocksMax, chain.blocks), table.blocks);
    this.#queue.tick();
    for (let i = from; i < table.length; i++) this.#pin(table.blocks.at(i));
    return table.length - from;
  }

  /** Appends an empty block to the table, evicting if need be; false when every block is in use. */
  allocate(table: BlockTable): boolean {
    let block = this.pool.allocate();
    while (block === undefined && this.#evictOne()) block = this.pool.allocate();
    if (block === undefined) return false;
    table.blocks.push(block);
    return true;
  }

  /**
   * Indexes blocks `from..to` of the table, now computed. Where an equal block is known already (two sequences computed it at the same time),
   * the table takes that one and frees its own: equal digests mean equal bits.
   */
  commit(chain: HashChain, from: number, to: number, table: BlockTable): void {
    this.#queue.tick();
    for (let i = from; i < to; i++) {
      const own = table.blocks.at(i);
      const known = this.#index.find(chain.words, i);
      if (known === own) continue;
      if (known === undefined) {
        this.#insert(chain, i, own);
      } else {
        this.#pin(known);
        table.blocks.set(i, known);
        this.pool.release(own, false);
      }
    }
  }

  /** Takes all blocks from the table. Indexed ones stay as cache; with `forget`, those that nobody else needs are dropped (their contents are suspect). */
  release(table: BlockTable, forget = false): void {
    this.#queue.tick();
    while (table.length > 0) {
      const block = table.blocks.pop();
      const indexed = this.#index.has(block);
      if (!this.pool.release(block, indexed) || !indexed) continue;
      this.#queue.letGo(block);
      if (this.#index.children(block) > 0) continue;
      this.#queue.add(block);
      if (forget) this.#evict(block);
    }
  }

  /** Throws unless every page and block is accounted for: free + cached + used = total, and cached ones can be evicted in some order. */
  check(): void {
    this.pages.check();
    this.pool.check();
    this.#index.check();
    for (let block = 0; block < this.pool.total; block++) {
      const state = this.pool.state(block);
      const evictable = state === 'cached' && this.#index.children(block) === 0;
      if (evictable !== this.#queue.has(block))
        throw new Error(`Block cache broken: block ${block} is ${state}, queued for eviction: ${!evictable}`);
      if (state === 'cached' && !this.#index.has(block))
        throw new Error(`Block cache broken: block ${block} is cached but not indexed`);
      if (state === 'free' && this.#index.has(block))
        throw new Error(`Block cache broken: block ${block} is free but indexed`);
      const parent = this.#index.parent(block);
      if (state === 'used' && parent !== undefined && this.pool.state(parent) !== 'used') {
        throw new Error(`Block cache broken: block ${block} is used but its parent ${parent} is not`);
      }
    }
    const { free, cached, used } = this.pool;
    if ((cached + used) * this.pool.layers + this.pages.free !== this.pages.total) {
      throw new Error(`Block cache broken: ${free} free, ${cached} cached, ${used} used of ${this.pool.total} blocks`);
    }
  }

  #insert(chain: HashChain, index: number, block: BlockId): void {
    this.#index.insert(chain.words, index, block);
    this.#queue.begin(block, index + 1);
  }

  #pin(block: BlockId): void {
    this.#queue.remove(block);
    this.pool.retain(block);
    this.#queue.reuse(block);
  }

  #evictOne(): boolean {
    const block = this.#queue.pop();
    if (block === undefined) return false;
    this.#evicted++;
    this.#drop(block);
    return true;
  }

  #evict(block: BlockId): void {
    this.#queue.remove(block);
    this.#drop(block);
  }

  #drop(block: BlockId): void {
    const parent = this.#index.parent(block);
    this.#index.remove(block);
    this.pool.drop(block);
    if (parent === undefined || this.#index.children(parent) > 0 || this.pool.state(parent) !== 'cached') return;
    this.#queue.add(parent);
  }
}
