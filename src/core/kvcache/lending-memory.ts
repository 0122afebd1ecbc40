// Single blocks outside the tables of sequences: blocks lent to other instances, and remote blocks that have returned
// from a creditor.

import type { BlockId } from '../protocol/ids.ts';
import { CheckInterval } from './check-interval.ts';
import { BlockPool } from './pools/block-pool.ts';
import { PagePool } from './pools/page-pool.ts';

/** The memory that the pages come from: a block cache, or a pool of their own. */
export interface PageSource {
  readonly pages: PagePool;
  /** Pages of a block. */
  readonly blockPages: number;
  /** Pages that can be allocated without preempting a sequence. */
  readonly availablePages: number;
  /** Evicts until `pages` pages are free; false, with nothing evicted, when too many are in use. */
  makeFree(pages: number): boolean;
}

export type BlockOwner = 'local' | 'remote';

/** Local and remote callers use one interface. Limits for remote callers are the creditor's task, not enforced here. */
export class LendingMemory {
  readonly #source: PageSource;
  readonly #pool: BlockPool;
  readonly #isRemote: Uint8Array;
  readonly #checks = new CheckInterval();
  #lent = 0;

  constructor(source: PageSource) {
    this.#source = source;
    this.#pool = new BlockPool(source.pages, source.blockPages);
    this.#isRemote = new Uint8Array(this.#pool.total);
  }

  /** Memory with a page pool of its own. */
  static standalone(blocks: number, blockPages: number): LendingMemory {
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

  get totals(): MemoryTotals {
    const { availablePages, blockPages } = this.#source;
    return { total: this.#pool.total, available: Math.floor(availablePages / blockPages), lent: this.#lent };
  }

  /** Blocks of local callers, which are in no table. */
  get local(): number {
    return this.#pool.used - this.#lent;
  }

  get lentPages(): number {
    return this.#lent * this.#pool.layers;
  }

  get localPages(): number {
    return this.local * this.#pool.layers;
  }

  /** (blocks, pages of a block): the pages of a block's keys and values. */
  get pageTable(): Int32Array {
    return this.#pool.pageTable;
  }

  /** Counts allocations, exchanges and releases. */
  get changes(): number {
    return this.#pool.changes;
  }

  /** Undefined when too many pages are in use. */
  allocate(caller: BlockOwner): BlockId | undefined {
    if (!this.#source.makeFree(this.#source.blockPages)) return undefined;
    const block = this.#pool.allocate();
    if (block === undefined) return undefined;
    this.#isRemote[block] = caller === 'remote' ? 1 : 0;
    if (caller === 'remote') this.#lent++;
    return block;
  }

  /** Exchanges the block's page of a layer for `other`, a page outside the pool. Returns the block's old page. */
  exchange(block: BlockId, layer: number, other: number): number {
    return this.#pool.exchange(block, layer, other);
  }

  /** Throws when the block does not belong to the caller. */
  free(caller: BlockOwner, block: BlockId): void {
    const remote = caller === 'remote';
    if (this.#pool.state(block) !== 'used' || (this.#isRemote[block] === 1) !== remote)
      throw new Error(
        `Cannot free a block: the ${caller} caller does not hold it: block ${block}, ${this.#pool.state(block)}`,
      );
    this.#pool.release(block, false);
    if (remote) this.#lent--;
  }

  /** Throws unless the counts match the blocks and no page belongs to two blocks. `owners`: see `BlockPool.check`. */
  check(owners?: Int32Array): void {
    this.#pool.check(owners);
    let lent = 0;
    for (let block = 0; block < this.#pool.total; block++) {
      if (this.#pool.state(block) === 'used' && this.#isRemote[block] === 1) lent++;
    }
    if (lent !== this.#lent) throw new Error(`Lending memory broken: ${lent} blocks are lent, counted ${this.#lent}`);
  }

  /** Throws unless free + used + lent pages are all pages: for memory with a page pool of its own. */
  checkStandalone(): void {
    if (!this.#checks.isDue(this.changes)) return;
    this.#source.pages.check();
    this.check();
    const { free, total } = this.#source.pages;
    if (free + this.localPages + this.lentPages !== total)
      throw new Error(
        `Lending memory broken: ${free} pages free, ${this.localPages} used, ${this.lentPages} lent of ${total}`,
      );
  }
}

export interface MemoryTotals {
  /** All blocks, and blocks that can be allocated without preempting a sequence. */
  readonly total: number;
  readonly available: number;
  readonly lent: number;
}
