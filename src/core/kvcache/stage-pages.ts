// Where a prompt's keys and values lie at an instance that runs a range of its layers: pages of the blocks that it keeps, one after another.

import { type LayerRange, type LayerSpan, layersBetween } from '../protocol/step-shape.ts';
import type { HeldBlocks } from './block-table.ts';

/** Of the model's layers, the first of a range and the first behind it. */
export const stageLayers = layersBetween;

/** (blocks, to - from). @param pages (blocks, layers) */
export function pagesOfRange(pages: Int32Array, layers: number, { from, to }: LayerSpan): Int32Array {
  const width = to - from;
  const blocks = pages.length / layers;
  const some = new Int32Array(blocks * width);
  for (let block = 0; block < blocks; block++)
    some.set(pages.subarray(block * layers + from, block * layers + to), block * width);
  return some;
}

/** Pages of blocks, one for each layer: (blocks, layers). */
interface PageTable {
  readonly layers: number;
  readonly pageTable: Int32Array;
}

/** Blocks are kept for a share of the layers, so that of all their pages each serves some layer of the range. */
export class StagePages {
  /** The layers of the range, and the first behind them. */
  readonly from: number;
  readonly to: number;
  readonly #held: HeldBlocks;
  readonly #pool: PageTable;

  constructor(held: HeldBlocks, pool: PageTable, range: LayerRange) {
    const { from, to } = stageLayers(pool.layers, range);
    this.from = from;
    this.to = to;
    this.#held = held;
    this.#pool = pool;
  }

  /** Of the prompt's block `block`, what a layer of the range has. */
  page(block: number, layer: number): number {
    const { layers, pageTable } = this.#pool;
    const at = block * (this.to - this.from) + (layer - this.from);
    return pageTable[this.#held.blocks.at(Math.floor(at / layers)) * layers + (at % layers)];
  }

  /** (to - from, layers of the range): of the prompt's blocks `from..to`. */
  pages(from: number, to: number): Int32Array {
    const width = this.to - this.from;
    const pages = new Int32Array((to - from) * width);
    for (let i = 0; i < pages.length; i++) pages[i] = this.page(from + Math.floor(i / width), this.from + (i % width));
    return pages;
  }

  /** (blocks, layers of the range). @param pages (blocks, layers) */
  ofRange(pages: Int32Array): Int32Array {
    return pagesOfRange(pages, this.#pool.layers, this);
  }

  /** (blocks, layers) pages as a step takes them; those of layers outside the range are somebody's, and nobody touches them. */
  table(blocks: number): Int32Array {
    const { layers } = this.#pool;
    const table = new Int32Array(blocks * layers).fill(this.page(0, this.from));
    for (let block = 0; block < blocks; block++)
      for (let layer = this.from; layer < this.to; layer++) table[block * layers + layer] = this.page(block, layer);
    return table;
  }
}
