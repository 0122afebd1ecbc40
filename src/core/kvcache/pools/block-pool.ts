// The rBlocks of one layer group: page table from blocks to pages, reference counts and states.

import type { BlockId } from '../../protocol/ids.ts';
import { FreeIds } from './free-ids.ts';
import type { PagePool } from './page-pool.ts';

/** `used`: referenced by sequences. `cached`: no references, contents kept for reuse. */
export type BlockState = 'free' | 'cached' | 'used';

const isFree = 0;
const isCached = 1;
const isUsed = 2;
const stateNames: readonly BlockState[] = ['free', 'cached', 'used'];

/** An rBlock has the same tokens in all layers of the group, one page for each layer (Infinite-LLM, section 4). */
export class BlockPool {
  readonly layers: number;
  readonly total: number;
  /**
   * (rBlocks and extra rows, layers): page ids; rows of free blocks are undefined. Shared with every step, never moved.
   */
  readonly pageTable: Int32Array;
  readonly #pages: PagePool;
  readonly #state: Uint8Array;
  readonly #refs: Int32Array;
  readonly #freeRows: FreeIds;
  #used = 0;
  #cached = 0;
  #changes = 0;

  /**
   * Has rows for as many blocks as all pages can hold. @param extraRows rows behind the pool's own, for blocks outside
   * the pool @param pageTable with as many rows; undefined: the pool creates it
   */
  constructor(pages: PagePool, layers: number, extraRows = 0, pageTable?: Int32Array) {
    const blocks = Math.floor(pages.total / layers);
    this.layers = layers;
    this.total = blocks;
    this.pageTable = pageTable ?? new Int32Array((blocks + extraRows) * layers);
    this.#pages = pages;
    this.#state = new Uint8Array(blocks);
    this.#refs = new Int32Array(blocks);
    this.#freeRows = new FreeIds(0, blocks);
  }

  get used(): number {
    return this.#used;
  }

  get cached(): number {
    return this.#cached;
  }

  /** Blocks that could be allocated now, if no other group took the pages. */
  get free(): number {
    return Math.floor(this.#pages.free / this.layers);
  }

  /** Pages of used blocks. */
  get usedPages(): number {
    return this.#used * this.layers;
  }

  get cachedPages(): number {
    return this.#cached * this.layers;
  }

  /** Counts the changes of states, references and pages. */
  get changes(): number {
    return this.#changes;
  }

  state(block: BlockId): BlockState {
    return stateNames[this.#state[block]] as BlockState;
  }

  refs(block: BlockId): number {
    return this.#refs[block];
  }

  /** A used block with one reference; undefined when pages are short. */
  allocate(): BlockId | undefined {
    if (this.#pages.free < this.layers) return undefined;
    const block = this.#freeRows.take();
    this.#pages.allocate(this.layers, this.pageTable, block * this.layers);
    this.#changes++;
    this.#state[block] = isUsed;
    this.#refs[block] = 1;
    this.#used++;
    return block;
  }

  /** Exchanges the block's page of a layer for `other`, a page outside the pool. Returns the block's old page. */
  exchange(block: BlockId, layer: number, other: number): number {
    if (this.#state[block] !== isUsed) throw this.#error('exchange a page of', block);
    this.#changes++;
    const at = block * this.layers + layer;
    const page = this.pageTable[at];
    this.#pages.exchange(page, other);
    this.pageTable[at] = other;
    return page;
  }

  /** Adds a reference; a cached block becomes used. */
  retain(block: BlockId): void {
    if (this.#state[block] === isFree) throw this.#error('retain', block);
    this.#changes++;
    if (this.#state[block] === isCached) {
      this.#state[block] = isUsed;
      this.#cached--;
      this.#used++;
    }
    this.#refs[block] = this.#refs[block] + 1;
  }

  /**
   * Removes a reference. After the last one the block stays cached if `keep`, or is freed. True when it was the last.
   */
  release(block: BlockId, keep: boolean): boolean {
    if (this.#state[block] !== isUsed) throw this.#error('release', block);
    this.#changes++;
    const refs = this.#refs[block] - 1;
    this.#refs[block] = refs;
    if (refs > 0) return false;
    this.#used--;
    this.#cached++;
    this.#state[block] = isCached;
    if (!keep) this.drop(block);
    return true;
  }

  /** Frees the pages of a cached block. */
  drop(block: BlockId): void {
    if (this.#state[block] !== isCached) throw this.#error('drop', block);
    this.#changes++;
    this.#cached--;
    this.#state[block] = isFree;
    this.#pages.release(this.pageTable, block * this.layers, this.layers);
    this.#freeRows.release(block);
  }

  /**
   * Throws unless free + cached + used = total and no page belongs to two blocks. `owners` (pages) is marked with the
   * block of each page; pools with the same pages pass the same array.
   */
  check(owners: Int32Array = new Int32Array(this.#pages.ids)): void {
    const counts: [number, number, number] = [0, 0, 0];
    for (let block = 0; block < this.total; block++) {
      const state = this.#state[block] as 0 | 1 | 2;
      counts[state]++;
      const refs = this.refs(block);
      if (refs > 0 !== (state === isUsed)) throw this.#error('account for', block);
      if (state === isFree) continue;
      for (let layer = 0; layer < this.layers; layer++) {
        const page = this.pageTable[block * this.layers + layer];
        if (owners[page] !== 0) {
          throw new Error(`Block pool broken: page ${page} belongs to blocks ${owners[page] - 1} and ${block}`);
        }
        owners[page] = block + 1;
      }
    }
    if (counts[isFree] !== this.#freeRows.count || counts[isCached] !== this.#cached || counts[isUsed] !== this.#used) {
      throw new Error(
        `Block pool broken: ${counts.join('/')} blocks are free/cached/used, counted ${this.#freeRows.count}/${this.#cached}/${this.#used}`,
      );
    }
  }

  #error(verb: string, block: BlockId): Error {
    return new Error(
      `Cannot ${verb} a block: it is ${this.state(block)}: block ${block} with ${this.refs(block)} references`,
    );
  }
}
