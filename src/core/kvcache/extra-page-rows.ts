// Page-table rows of local blocks outside block tables, behind the rows of the cache. Steps find these blocks by their
// rows.

import type { BlockId, PageRow } from '../protocol/ids.ts';
import type { LendingMemory } from './lending-memory.ts';
import type { BlockPool } from './pools/block-pool.ts';

/** Host memory that steps may read. Its pages are consecutive. */
export interface HostRows {
  readonly blocks: number;
  readonly firstPage: number;
}

/**
 * For models with one layer group. The staging buffer has its own pages, which are exchanged for the pages of the
 * blocks that take its contents.
 */
export class ExtraPageRows {
  readonly #pool: BlockPool;
  readonly #lending: LendingMemory;
  readonly #staged: Uint8Array;
  readonly #firstStaged: PageRow;
  readonly #freeStaged: PageRow[];
  readonly #hostBlocks: number;

  /** Number of page-table rows with those of the cache. */
  static rowCount(blocks: number, stagingBlocks: number, host: HostRows | undefined): number {
    return blocks + stagingBlocks + (host?.blocks ?? 0);
  }

  /**
   * @param firstPage first of the staging buffer's consecutive pages @param host undefined: steps do not read host
   * memory
   */
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

  /** The row of a block in host memory; undefined where steps do not read host memory. */
  hostRow(block: BlockId): PageRow | undefined {
    return block < this.#hostBlocks ? this.#firstStaged + this.#staged.length + block : undefined;
  }

  /** (layers) */
  pagesOf(row: PageRow): Int32Array {
    const { layers, pageTable } = this.#pool;
    return pageTable.slice(row * layers, (row + 1) * layers);
  }

  /** The row of a local block, valid while the block is allocated. */
  localRow(block: BlockId): PageRow {
    const { layers, total, pageTable } = this.#pool;
    const row = total + block;
    pageTable.set(this.#lending.pageTable.subarray(block * layers, (block + 1) * layers), row * layers);
    return row;
  }

  /** Allocates a row of the staging buffer. */
  stage(): PageRow {
    const row = this.#freeStaged.pop();
    if (row === undefined) throw new Error(`Cannot stage a block: the buffer is full: ${this.#staged.length} blocks`);
    this.#staged[row - this.#firstStaged] = 1;
    return row;
  }

  /** Frees a row of the staging buffer. */
  unstage(row: PageRow): void {
    if (this.#staged[row - this.#firstStaged] !== 1) throw new Error(`Cannot free a staged block: row ${row} is free`);
    this.#staged[row - this.#firstStaged] = 0;
    this.#freeStaged.push(row);
  }

  /** The staged contents become those of a local block. */
  takeStaged(row: PageRow, block: BlockId): void {
    const { layers, pageTable } = this.#pool;
    for (let layer = 0; layer < layers; layer++) {
      const at = row * layers + layer;
      pageTable[at] = this.#lending.exchange(block, layer, pageTable[at]);
    }
    this.unstage(row);
  }

  /** Free rows of the staging buffer. */
  get free(): number {
    return this.#freeStaged.length;
  }

  /** Rows of the staging buffer in use. */
  get staged(): number {
    return this.#staged.length - this.#freeStaged.length;
  }

  /** Throws unless every page of the buffer belongs to it alone. `owners` (pages): blocks by page. */
  check(owners: Int32Array): void {
    const { layers, pageTable } = this.#pool;
    const from = this.#firstStaged * layers;
    for (let at = from; at < from + this.#staged.length * layers; at++) {
      const page = pageTable[at];
      if (owners[page] !== 0)
        throw new Error(`Staging buffer broken: page ${page} is staged twice, or belongs to block ${owners[page] - 1}`);
      owners[page] = -1;
    }
  }
}
