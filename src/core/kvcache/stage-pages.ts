// Pages of a prompt on a pipeline stage, which runs a range of the layers. The stage packs the pages of its layers into
// the blocks that it holds.

import { type LayerRange, type LayerSpan, layersBetween } from '../protocol/step-shape.ts';
import type { HeldBlocks } from './block-table.ts';

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

/** The stage holds fewer blocks than the prompt has: every page of a block serves a layer of the range. */
export class StagePages {
  /** The layers of the range: `from..to`. */
  readonly from: number;
  readonly to: number;
  readonly #held: Pick<HeldBlocks, 'first' | 'blocks'>;
  readonly #pool: PageTable;

  constructor(held: Pick<HeldBlocks, 'first' | 'blocks'>, pool: PageTable, range: LayerRange) {
    const { from, to } = layersBetween(pool.layers, range);
    this.from = from;
    this.to = to;
    this.#held = held;
    this.#pool = pool;
  }

  /** The page of a layer of the range for the prompt's block `block`. */
  page(block: number, layer: number): number {
    const { layers, pageTable } = this.#pool;
    const at = block * (this.to - this.from) + (layer - this.from);
    return pageTable[this.#held.blocks.at(Math.floor(at / layers)) * layers + (at % layers)];
  }

  /** (to - from, layers of the range): pages of the prompt's blocks `from..to`. */
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

  /**
   * (blocks, layers): pages as a step takes them. Layers outside the range get arbitrary pages, which the step does not
   * touch.
   */
  table(blocks: number): Int32Array {
    const { layers } = this.#pool;
    const table = new Int32Array(blocks * layers).fill(this.page(0, this.from));
    for (let block = 0; block < blocks; block++)
      for (let layer = this.from; layer < this.to; layer++) table[block * layers + layer] = this.page(block, layer);
    return table;
  }
}
