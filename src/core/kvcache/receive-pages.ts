// Pages of the pool that are set aside for prompts computed elsewhere, and where in them each page of a prompt lands.
import type { LayerGroup } from '../../util/step.ts';
import type { BlockPool } from './block-pool.ts';
import type { BlockTable } from './block-table.ts';
import { blocksFor, firstBlockSeen } from './layer-groups.ts';

/**
 * The pages of a prompt in the one order that sender and receiver agree on: group by group, block by block, layer by layer; of a group with
 * a window only the blocks that the first token of output sees.
 */
export class ReceiveLayout {
  /** Pages in all. */
  readonly places: number;
  /** Blocks of every group end here. */
  readonly end: number;
  readonly #groups: readonly { readonly layers: number; readonly first: number; readonly base: number }[];

  constructor(groups: readonly LayerGroup[], promptTokens: number, blockTokens: number) {
    this.end = blocksFor(promptTokens, blockTokens);
    let base = 0;
    this.#groups = groups.map(({ layers, window }) => {
      const first = firstBlockSeen(window, promptTokens, blockTokens);
      const group = { layers, first, base };
      base += layers * (this.end - first);
      return group;
    });
    this.places = base;
  }

  /** The first block of a group that lands. */
  first(group: number): number {
    return this.#groups[group].first;
  }

  place(group: number, block: number, layer: number): number {
    const { layers, first, base } = this.#groups[group];
    return base + (block - first) * layers + layer;
  }
}

/** A prompt that lands, or has landed. */
export interface ReceivedPrompt {
  readonly layout: ReceiveLayout;
  /** (places): a page for each. */
  readonly pages: Int32Array;
}

/** The table's blocks from `index` on, which nothing is in, take in what has landed for them, and leave their pages there. */
export function takeReceived(
  groups: readonly { readonly pool: BlockPool }[],
  table: BlockTable,
  index: number,
  { layout, pages }: ReceivedPrompt,
): void {
  for (const [g, { pool }] of groups.entries()) {
    const { first, blocks } = table.groups[g];
    for (let i = Math.max(index, layout.first(g)); i < table.length; i++) {
      for (let layer = 0; layer < pool.layers; layer++) {
        const place = layout.place(g, i, layer);
        pages[place] = pool.exchange(blocks.at(i - first), layer, pages[place]);
      }
    }
  }
}

/** Pages 0..total-1 at first; each that blocks take in is exchanged for one of theirs. */
export class ReceivePages {
  readonly total: number;
  readonly #stack: Int32Array;
  readonly #taken = new Set<ReceivedPrompt>();
  #free: number;

  constructor(total: number) {
    this.total = total;
    this.#stack = Int32Array.from({ length: total }, (_, i) => total - 1 - i);
    this.#free = total;
  }

  get free(): number {
    return this.#free;
  }

  /** Undefined when too few are free. */
  take(layout: ReceiveLayout): ReceivedPrompt | undefined {
    if (layout.places > this.#free) return undefined;
    this.#free -= layout.places;
    const prompt = { layout, pages: this.#stack.slice(this.#free, this.#free + layout.places).reverse() };
    this.#taken.add(prompt);
    return prompt;
  }

  give(prompt: ReceivedPrompt): void {
    if (!this.#taken.delete(prompt)) throw new Error('Cannot give back landing pages: they are not taken');
    for (const page of prompt.pages.toReversed()) this.#stack[this.#free++] = page;
  }

  /** Throws unless so many pages as ever are set aside, none of them twice, and none that belongs to a block. `owners` (pages): of blocks. */
  check(owners: Int32Array): void {
    let count = 0;
    for (const pages of [this.#stack.subarray(0, this.#free), ...[...this.#taken].map((prompt) => prompt.pages)]) {
      for (const page of pages) {
        if (owners[page] !== 0)
          throw new Error(
            `Landing pages broken: page ${page} is set aside twice, or belongs to block ${owners[page] - 1}`,
          );
        owners[page] = -1;
      }
      count += pages.length;
    }
    if (count !== this.total) throw new Error(`Landing pages broken: ${count} are set aside of ${this.total}`);
  }
}
