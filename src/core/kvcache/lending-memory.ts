// Blocks of one memory that are handed out one by one, beside the tables of sequences: to borrowers, and to what came home from a creditor.

import type { BlockId } from '../protocol/ids.ts';
import { BlockPool } from './block-pool.ts';
import { PagePool } from './page-pool.ts';

/** Whose pages they are: a block cache, or a pool of their own. */
export interface PageSource {
  readonly pages: PagePool;
  /** Pages of a block. */
  readonly blockPages: number;
  /** Pages that can be had without taking a block from a sequence. */
  readonly availablePages: number;
  /** Evicts until so many pages are free; false, and nothing evicted, when too much is in use. */
  makeFree(pages: number): boolean;
}

export type BlockCaller = 'local' | 'remote';

/** One API for both callers: a remote one is refused by the creditor's own rule, not here. */
export class LendingMemory {
  readonly #source: PageSource;
  readonly #pool: BlockPool;
  readonly #isRemote: Uint8Array;
  #lent = 0;

  constructor(source: PageSource) {
    this.#source = source;
    this.#pool = new BlockPool(source.pages, source.blockPages);
    this.#isRemote = new Uint8Array(this.#pool.total);
  }

  /** Memory that nothing else takes pages from. */
  static alone(blocks: number, blockPages: number): LendingMemory {
    const pages = new PagePool(blocks * blockPages);
    return new LendingMemory({
      pages,
      blockPages,
      get availablePages() {
        return pages.free;
      },
      makeFree: (count) => pages.free >= count,
    });
  }

  get figures(): MemoryFigures {
    const { availablePages, blockPages } = this.#source;
    return { total: this.#pool.total, available: Math.floor(availablePages / blockPages), lent: this.#lent };
  }

  /** Blocks of local callers that no table holds. */
  get local(): number {
    return this.#pool.used - this.#lent;
  }

  get lentPages(): number {
    return this.#lent * this.#pool.layers;
  }

  get localPages(): number {
    return this.local * this.#pool.layers;
  }

  /** (blocks, pages of a block): where a block's keys and values lie. */
  get pageTable(): Int32Array {
    return this.#pool.pageTable;
  }

  /** Undefined when too much is in use. */
  allocate(caller: BlockCaller): BlockId | undefined {
    if (!this.#source.makeFree(this.#source.blockPages)) return undefined;
    const block = this.#pool.allocate();
    if (block === undefined) return undefined;
    this.#isRemote[block] = caller === 'remote' ? 1 : 0;
    if (caller === 'remote') this.#lent++;
    return block;
  }

  /** The block's page of a layer for `other`, which is nobody's; returns the page that it had. */
  exchange(block: BlockId, layer: number, other: number): number {
    return this.#pool.exchange(block, layer, other);
  }

  /** Throws when the block is not the caller's. */
  free(caller: BlockCaller, block: BlockId): void {
    const remote = caller === 'remote';
    if (this.#pool.state(block) !== 'used' || (this.#isRemote[block] === 1) !== remote)
      throw new Error(`Cannot free a block: it is no ${caller} one: block ${block}, ${this.#pool.state(block)}`);
    this.#pool.release(block, false);
    if (remote) this.#lent--;
  }

  /** Throws unless the counts are those of the blocks and no page belongs to two. `owners`: see `BlockPool.check`. */
  check(owners?: Int32Array): void {
    this.#pool.check(owners);
    let lent = 0;
    for (let block = 0; block < this.#pool.total; block++) {
      if (this.#pool.state(block) === 'used' && this.#isRemote[block] === 1) lent++;
    }
    if (lent !== this.#lent) throw new Error(`Lending memory broken: ${lent} blocks are lent, counted ${this.#lent}`);
  }

  /** Throws unless free + used + lent is all there is: for memory that nothing else takes pages from. */
  checkAlone(): void {
    this.#source.pages.check();
    this.check();
    const { free, total } = this.#source.pages;
    if (free + this.localPages + this.lentPages !== total)
      throw new Error(
        `Lending memory broken: ${free} pages free, ${this.localPages} used, ${this.lentPages} lent of ${total}`,
      );
  }
}

export interface MemoryFigures {
  /** Blocks, and those that could be had without taking one from a sequence. */
  readonly total: number;
  readonly available: number;
  readonly lent: number;
}
