// The blocks of one layer group: pool, index and prefix tree, and which blocks may be evicted.
import { digestWords } from '../../util/blake2s.ts';
import type { LayerGroup } from '../../util/step.ts';
import type { BlockId } from '../protocol/ids.ts';
import type { BlockChain } from '../protocol/kv-events.ts';
import type { BlockAgeCounter } from './block-ages.ts';
import { BlockIndex } from './block-index.ts';
import type { HeldBlocks } from './block-table.ts';
import type { BlockListener } from './events/kv-event-log.ts';
import type { EvictionQueue } from './eviction.ts';
import { blocksAttendedMax, blocksFor, firstBlockAttended } from './layer-groups.ts';
import { BlockPool } from './pools/block-pool.ts';
import type { PagePool } from './pools/page-pool.ts';

/** How far a sequence will grow: its maximum number of blocks depends on it. */
export interface Growth {
  /** Tokens that will have keys and values. */
  readonly tokens: number;
  /** Maximum rows of one step. */
  readonly rows: number;
  /** Tokens that will have them in sparse layers; undefined: all. */
  readonly sparseTokens?: number | undefined;
  /** Pages of slots that the sequence takes at its start. */
  readonly slotPages?: number | undefined;
  /** Layers in which its rows choose pages by bounds, which take pages as well; undefined: none. */
  readonly boundLayers?: number | undefined;
}

/**
 * Without a window, a block is useful only with all blocks before it, so an indexed block that has an indexed successor
 * is not evicted. With a window, a block is useful to sequences that continue within its window, whatever comes before.
 * Blocks of all groups share one eviction queue.
 */
export class GroupCache {
  readonly layers: number;
  readonly window: number | undefined;
  readonly isSparse: boolean;
  readonly pool: BlockPool;
  /** Ids of its blocks in the queue: offset..end-1. */
  readonly offset: number;
  readonly end: number;
  readonly #blockTokens: number;
  readonly #queue: EvictionQueue;
  readonly #ages: BlockAgeCounter;
  readonly #index: BlockIndex;
  readonly #tree: PrefixTree | undefined;
  #changes = 0;
  /** Receives every block that has entered the index, or is about to leave it. */
  listener: BlockListener | undefined;

  constructor(
    { layers, window, sparse = false }: LayerGroup,
    blockTokens: number,
    pages: PagePool,
    { queue, ages }: { readonly queue: EvictionQueue; readonly ages: BlockAgeCounter },
    offset: number,
    extraRows = 0,
    pageTable?: Int32Array,
  ) {
    this.#blockTokens = blockTokens;
    this.layers = layers;
    this.window = window;
    this.isSparse = sparse;
    this.pool = new BlockPool(pages, layers, extraRows, pageTable);
    this.offset = offset;
    this.end = offset + this.pool.total;
    this.#queue = queue;
    this.#ages = ages;
    this.#index = new BlockIndex(this.pool.total);
    this.#tree = window === undefined ? new PrefixTree(this.pool.total) : undefined;
  }

  /** Counts blocks that entered or left the index. */
  get changes(): number {
    return this.#changes;
  }

  /** (blocks, 4 words): digests of all indexed blocks. */
  indexedDigests(): Uint32Array {
    const words = new Uint32Array(this.#index.size * digestWords);
    let at = 0;
    for (let block = 0; block < this.pool.total; block++) {
      if (!this.#index.has(block)) continue;
      words.set(this.#index.digests.subarray(block * digestWords, (block + 1) * digestWords), at);
      at += digestWords;
    }
    return words;
  }

  /** Index of the first block that a row at `position` attends to. */
  firstAttended(position: number): number {
    return firstBlockAttended(this.window, position, this.#blockTokens);
  }

  /** The indexed block of the digest at `words[at..at+4]`. */
  findDigest(words: Uint32Array, at: number): BlockId | undefined {
    return this.#index.find(words, at);
  }

  /** True if the block of the digest at `words[at..at+4]` is indexed. */
  holds(words: Uint32Array, at: number): boolean {
    return this.#index.find(words, at) !== undefined;
  }

  find(chain: BlockChain, index: number): BlockId | undefined {
    return this.#index.find(chain.words, index * digestWords);
  }

  /**
   * Indexed blocks at the start of the chain's first `blocks` blocks, in a group without a window. Every block before
   * an indexed one is indexed, so the search may start at any `guess`.
   */
  indexedPrefix(chain: BlockChain, blocks: number, guess: number): number {
    let known = Math.min(blocks, guess);
    while (known > 0 && this.find(chain, known - 1) === undefined) known--;
    if (known < guess) return known;
    while (known < blocks && this.find(chain, known) !== undefined) known++;
    return known;
  }

  /** The longest prefix of at most `blocks` blocks after which every block that the next row attends to is indexed. */
  coveredTo(chain: BlockChain, blocks: number): number {
    let end = blocks;
    for (let i = end - 1; i >= this.firstAttended(end * this.#blockTokens); i--)
      if (this.find(chain, i) === undefined) end = i;
    return end;
  }

  /** Maximum number of blocks that a growing sequence holds at once, without its `first` ones behind the window. */
  heldMax(first: number, { tokens, rows, sparseTokens = tokens }: Growth): number {
    return Math.min(
      blocksFor(this.isSparse ? Math.min(tokens, sparseTokens) : tokens, this.#blockTokens) - first,
      blocksAttendedMax(this.window, rows, this.#blockTokens),
    );
  }

  /** Blocks among the chain's `from..to`, all indexed, that sequences reference. */
  usedOf(chain: BlockChain, from: number, to: number): number {
    let used = 0;
    for (let i = from; i < to; i++) {
      const block = this.find(chain, i);
      if (block !== undefined && this.pool.refs(block) > 0) used++;
    }
    return used;
  }

  /** Appends the first `count` blocks of another table, with one more reference to each. */
  shareTable(from: HeldBlocks, count: number, held: HeldBlocks): void {
    for (let i = 0; i < count; i++) {
      this.#retain(from.blocks.at(i));
      held.blocks.push(from.blocks.at(i));
    }
  }

  /** Appends an empty block; pages for it must be free. With slots, the sequence only counts it. */
  allocate(held: HeldBlocks): void {
    if (held.inSlots) {
      held.first++;
      return;
    }
    const block = this.pool.allocate();
    if (block === undefined) throw new Error(`Cannot allocate a block: no ${this.layers} pages are free`);
    held.blocks.push(block);
  }

  /** Appends the chain's blocks `from..to`, all indexed, with a reference to each. */
  share(chain: BlockChain, from: number, to: number, held: HeldBlocks): void {
    for (let i = from; i < to; i++) {
      const block = this.find(chain, i);
      if (block === undefined) throw new Error(`Cannot share a block: it is not indexed: block ${i} of the sequence`);
      this.#retain(block);
      this.#ages.reused(this.offset + block);
      held.blocks.push(block);
    }
  }

  /**
   * Indexes the blocks `from..to` that the sequence holds, now computed. Where an equal block is indexed already, the
   * sequence takes that one and frees its own. Returns the first index where it did; infinite if none.
   */
  cacheBlocks(chain: BlockChain, from: number, to: number, held: HeldBlocks): number {
    let swapped = Number.POSITIVE_INFINITY;
    for (let i = Math.max(from, held.first); i < to; i++) {
      const own = held.blocks.at(i - held.first);
      const known = this.find(chain, i);
      if (known === own) continue;
      if (known === undefined) {
        this.#insert(chain, i, own, i === 0 ? undefined : held.blocks.at(i - 1 - held.first));
      } else {
        this.#retain(known);
        held.blocks.set(i - held.first, known);
        this.pool.release(own, false);
        swapped = Math.min(swapped, i);
      }
    }
    return swapped;
  }

  /** Removes a reference. After the last one, an indexed block stays cached and any other is freed. */
  release(block: BlockId, cold = false): void {
    const indexed = this.#index.has(block);
    if (!this.pool.release(block, indexed) || !indexed) return;
    this.#queue.release(this.offset + block, cold);
    if (this.#isEvictable(block)) this.#queue.add(this.offset + block);
  }

  /** Drops the block of the digest at `words[at..at+4]` if it may be evicted now; true if dropped. */
  evict(words: Uint32Array, at: number): boolean {
    const block = this.#index.find(words, at);
    if (block === undefined || !this.#queue.remove(this.offset + block)) return false;
    this.drop(block);
    return true;
  }

  /** Drops the block of `other` that has the digest of an indexed block of this group, if it may be evicted now. */
  evictSameDigest(block: BlockId, other: GroupCache): boolean {
    return other.evict(this.#index.digests, block * digestWords);
  }

  /**
   * Removes the sequence's blocks `stay..end` from the index, from the end, while they have no other reference and no
   * indexed successor. Returns the first block that is not indexed any more. The sequence must hold every block from
   * the start.
   */
  makePrivate(held: HeldBlocks, end: number, stay: number): number {
    let first = end;
    while (first > stay) {
      const block = held.blocks.at(first - 1);
      if (this.pool.refs(block) > 1 || (this.#index.has(block) && !this.#isEvictable(block))) break;
      first--;
      if (!this.#index.has(block)) continue;
      this.#changes++;
      this.listener?.record(this.#index.digests, block * digestWords, false, 0);
      this.#tree?.remove(block);
      this.#index.remove(block);
    }
    return first;
  }

  /** Frees a cached block that was removed from the queue. Its predecessor may become evictable. */
  drop(block: BlockId): void {
    this.#changes++;
    this.#ages.evicted(this.offset + block);
    this.listener?.record(this.#index.digests, block * digestWords, false, 0);
    const parent = this.#tree?.remove(block);
    this.#index.remove(block);
    this.pool.drop(block);
    if (parent === undefined || this.pool.state(parent) !== 'cached' || !this.#isEvictable(parent)) return;
    this.#queue.add(this.offset + parent);
  }

  #isEvictable(block: BlockId): boolean {
    return this.#tree === undefined || this.#tree.children(block) === 0;
  }

  /** @param before the sequence's preceding block, if it holds one */
  #insert(chain: BlockChain, index: number, block: BlockId, before: BlockId | undefined): void {
    const parent = this.#tree === undefined ? undefined : before;
    if (this.#tree !== undefined && index > 0 && (parent === undefined || this.#index.depth(parent) !== index))
      throw new Error(`Cannot index a block: its parent is not indexed: block ${block} at depth ${index + 1}`);
    this.#changes++;
    this.#index.insert(chain.words, index * digestWords, block, index + 1);
    this.#tree?.insert(block, parent);
    this.listener?.record(chain.words, index * digestWords, true, index + 1, block);
    this.#queue.identify(this.offset + block, chain.words, index * digestWords);
    this.#queue.stored(this.offset + block, index + 1);
    this.#ages.stored(this.offset + block);
  }

  #retain(block: BlockId): void {
    this.#queue.remove(this.offset + block);
    this.pool.retain(block);
    this.#queue.reuse(this.offset + block);
  }

  /** Throws unless states, index and queue agree. `owners`: see `BlockPool.check`. */
  check(owners: Int32Array): void {
    this.pool.check(owners);
    this.#index.check();
    this.#tree?.check(this.#index);
    for (let block = 0; block < this.pool.total; block++) {
      const state = this.pool.state(block);
      const evictable = state === 'cached' && this.#isEvictable(block);
      if (evictable !== this.#queue.has(this.offset + block))
        throw new Error(`Block cache broken: block ${block} is ${state}, queued for eviction: ${!evictable}`);
      if (state === 'cached' && !this.#index.has(block))
        throw new Error(`Block cache broken: block ${block} is cached but not indexed`);
      if (state === 'free' && this.#index.has(block))
        throw new Error(`Block cache broken: block ${block} is free but indexed`);
      const parent = this.#tree?.parent(block);
      if (state === 'used' && parent !== undefined && this.pool.state(parent) !== 'used')
        throw new Error(`Block cache broken: block ${block} is used but its parent ${parent} is not`);
    }
  }

  /** Throws unless `other` has an indexed block for every digest that is indexed here. */
  checkSameDigests(other: GroupCache): void {
    for (let block = 0; block < this.pool.total; block++) {
      if (!this.#index.has(block)) continue;
      if (other.#index.find(this.#index.digests, block * digestWords) === undefined)
        throw new Error(
          `Block cache broken: window block ${block} is indexed but the block of the same digest without a window is not`,
        );
    }
  }
}

/** Parents and numbers of children, by block. The parent of every indexed block is indexed; first blocks have none. */
export class PrefixTree {
  /** (blocks): id of the parent plus one; 0: a first block, or not indexed. */
  readonly #parent: Int32Array;
  readonly #children: Int32Array;

  constructor(blocks: number) {
    this.#parent = new Int32Array(blocks);
    this.#children = new Int32Array(blocks);
  }

  parent(block: BlockId): BlockId | undefined {
    const parent = this.#parent[block];
    return parent === 0 ? undefined : parent - 1;
  }

  children(block: BlockId): number {
    return this.#children[block];
  }

  insert(block: BlockId, parent: BlockId | undefined): void {
    if (parent === undefined) return;
    this.#parent[block] = parent + 1;
    this.#children[parent] = this.#children[parent] + 1;
  }

  /** Removes a block without children; returns its parent. */
  remove(block: BlockId): BlockId | undefined {
    if (this.children(block) > 0)
      throw new Error(`Cannot remove a block from its prefix: it has ${this.children(block)} children: block ${block}`);
    const parent = this.parent(block);
    if (parent !== undefined) this.#children[parent] = this.#children[parent] - 1;
    this.#parent[block] = 0;
    return parent;
  }

  /**
   * Throws unless each parent is one level above its children and counts are right. @param index has depth 0 for a block
   * that is not indexed
   */
  check(index: BlockIndex): void {
    const children = new Int32Array(this.#children.length);
    for (let block = 0; block < children.length; block++) {
      const parent = this.parent(block);
      if (parent !== undefined) children[parent] = children[parent] + 1;
      const depth = index.depth(block);
      if (depth > 0 && (parent === undefined ? 0 : index.depth(parent)) !== depth - 1)
        throw new Error(`Prefix tree broken: block ${block} at depth ${depth} has no parent above it`);
    }
    for (let block = 0; block < children.length; block++)
      if (children[block] !== this.#children[block])
        throw new Error(
          `Prefix tree broken: ${children[block]} children of block ${block}, ${this.#children[block]} are counted`,
        );
  }
}
