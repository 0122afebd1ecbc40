// Blocks of sequences that lie at home but in no table: rows of the page table behind those of the cache, by which a step finds them.

import type { BlockId, PageRow } from '../protocol/ids.ts';
import type { BlockPool } from './block-pool.ts';
import type { LendingMemory } from './lending-memory.ts';

/** Host memory whose blocks steps may read: their pages follow one another. */
export interface HostRows {
  readonly blocks: number;
  readonly firstPage: number;
}

/** For models of one layer group. The staging buffer has pages of its own, which are exchanged for those of the blocks that take its contents in. */
export class PageTableRows {
  readonly #pool: BlockPool;
  readonly #lending: LendingMemory;
  readonly #staged: Uint8Array;
  readonly #firstStaged: PageRow;
  readonly #freeStaged: PageRow[];
  readonly #hostBlocks: number;

  /** Rows of the page table behind those of the cache. */
  static rows(blocks: number, stagingBlocks: number, host: HostRows | undefined): number {
    return blocks + stagingBlocks + (host?.blocks ?? 0);
  }

  /** @param firstPage of the staging buffer, whose pages follow one another @param host undefined: steps find nothing there */
  constructor(
    pool: BlockPool,
    lending: LendingMemory,
    stagingBlocks: number,
    firstPage: number,
    host: HostRows = { blocks: 0, firstPage: 0 },
  ) {
    this.#pool = pool;
    this.#lending = lending;
    this.#firstStaged = 2 * pool.total;
    this.#staged = new Uint8Array(stagingBlocks);
    this.#freeStaged = Array.from({ length: stagingBlocks }, (_, i) => this.#firstStaged + stagingBlocks - 1 - i);
    const at = this.#firstStaged * pool.layers;
    const staged = stagingBlocks * pool.layers;
    for (let i = 0; i < staged; i++) pool.pageTable[at + i] = firstPage + i;
    this.#hostBlocks = host.blocks;
    for (let i = 0; i < host.blocks * pool.layers; i++) pool.pageTable[at + staged + i] = host.firstPage + i;
  }

  /** Of a block of host memory; undefined where steps find nothing there. */
  host(block: BlockId): PageRow | undefined {
    return block < this.#hostBlocks ? this.#firstStaged + this.#staged.length + block : undefined;
  }

  /** (layers) */
  pagesOf(row: PageRow): Int32Array {
    const { layers, pageTable } = this.#pool;
    return pageTable.slice(row * layers, (row + 1) * layers);
  }

  /** Of a block that was handed out at home; valid while it is. */
  home(block: BlockId): PageRow {
    const { layers, total, pageTable } = this.#pool;
    const row = total + block;
    pageTable.set(this.#lending.pageTable.subarray(block * layers, (block + 1) * layers), row * layers);
    return row;
  }

  /** A free row of the staging buffer. */
  stage(): PageRow {
    const row = this.#freeStaged.pop();
    if (row === undefined) throw new Error(`Cannot stage a block: the buffer is full: ${this.#staged.length} blocks`);
    this.#staged[row - this.#firstStaged] = 1;
    return row;
  }

  /** Nobody wants what is there. */
  unstage(row: PageRow): void {
    if (this.#staged[row - this.#firstStaged] !== 1) throw new Error(`Cannot free a staged block: row ${row} is free`);
    this.#staged[row - this.#firstStaged] = 0;
    this.#freeStaged.push(row);
  }

  /** What is staged there becomes the contents of a block that was handed out at home. */
  settle(row: PageRow, block: BlockId): void {
    const { layers, pageTable } = this.#pool;
    for (let layer = 0; layer < layers; layer++) {
      const at = row * layers + layer;
      pageTable[at] = this.#lending.exchange(block, layer, pageTable[at]);
    }
    this.unstage(row);
  }

  /** Rows of the staging buffer that nothing is in. */
  get free(): number {
    return this.#freeStaged.length;
  }

  /** Blocks that could be staged. */
  get freeStaged(): number {
    return this.#freeStaged.length;
  }

  /** Blocks that are staged. */
  get staged(): number {
    return this.#staged.length - this.#freeStaged.length;
  }

  /** Throws unless every page of the buffer is its own. `owners` (pages): of blocks. */
  check(owners: Int32Array): void {
    const { layers, pageTable } = this.#pool;
    const from = this.#firstStaged * layers;
    for (let at = from; at < from + this.#staged.length * layers; at++) {
      const page = pageTable[at];
      if (owners[page] !== 0)
        throw new Error(`Staging buffer broken: page ${page} is there twice, or belongs to block ${owners[page] - 1}`);
      owners[page] = -1;
    }
  }
}
