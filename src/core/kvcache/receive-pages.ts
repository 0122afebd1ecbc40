// Pages reserved for the KV of prompts computed elsewhere, and the page that receives each part of a prompt.
import type { LayerGroup } from '../../util/step.ts';
import type { BlockTable } from './block-table.ts';
import { blocksFor, firstBlockAttended } from './layer-groups.ts';
import type { BlockPool } from './pools/block-pool.ts';
import { pagesOfLayout, type SlotPageCounts } from './sparsity/slot-pages.ts';

/**
 * The pages of a prompt in the order that sender and receiver share: by group, then block, then layer. A group with a
 * window has only the blocks that the first output token attends to. With a KV budget, the sparse group has no blocks:
 * the pages of slots and their states follow.
 */
export class ReceiveLayout {
  /** Number of pages. */
  readonly pageCount: number;
  /** The first block behind the prompt, in every group. */
  readonly end: number;
  readonly #slotBase: number;
  readonly #groups: readonly { readonly layers: number; readonly first: number; readonly base: number }[];

  /** @param slots of a prompt with a KV budget */
  constructor(groups: readonly LayerGroup[], promptTokens: number, blockTokens: number, slots?: SlotPageCounts) {
    this.end = blocksFor(promptTokens, blockTokens);
    let base = 0;
    this.#groups = groups.map(({ layers, window, sparse }) => {
      const inSlots = slots !== undefined && sparse === true;
      const first = inSlots ? this.end : firstBlockAttended(window, promptTokens, blockTokens);
      const group = { layers, first, base };
      base += layers * (this.end - first);
      return group;
    });
    this.#slotBase = base;
    this.pageCount = base + (slots === undefined ? 0 : pagesOfLayout(slots));
  }

  /** The place of a page of slots or slot states. */
  slotIndex(page: number): number {
    return this.#slotBase + page;
  }

  /** The first block of a group that is received. */
  first(group: number): number {
    return this.#groups[group].first;
  }

  indexOf(group: number, block: number, layer: number): number {
    const { layers, first, base } = this.#groups[group];
    return base + (block - first) * layers + layer;
  }
}

/** The receive pages of one prompt. */
export interface ReceivedPrompt {
  /** Index of the cache that has them. */
  readonly worker: number;
  readonly layout: ReceiveLayout;
  /** (pageCount) */
  readonly pages: Int32Array;
}

/** Exchanges the pages of the table's empty blocks from `index` on for the pages received for them. */
export function exchangeReceived(
  groups: readonly { readonly pool: BlockPool }[],
  table: BlockTable,
  index: number,
  { layout, pages }: ReceivedPrompt,
): void {
  for (const [g, { pool }] of groups.entries()) {
    const { first, blocks, inSlots } = table.groups[g];
    if (inSlots) continue;
    for (let i = Math.max(index, layout.first(g)); i < table.length; i++) {
      for (let layer = 0; layer < pool.layers; layer++) {
        const place = layout.indexOf(g, i, layer);
        pages[place] = pool.exchange(blocks.at(i - first), layer, pages[place]);
      }
    }
  }
}

/** Page ids first..first+total-1 at first. Each received page is exchanged for a page of the block that takes it. */
export class ReceivePages {
  readonly total: number;
  readonly #stack: Int32Array;
  readonly #inUse = new Set<ReceivedPrompt>();
  #free: number;
  #changes = 0;

  constructor(total: number, first = 0) {
    this.total = total;
    this.#stack = Int32Array.from({ length: total }, (_, i) => first + total - 1 - i);
    this.#free = total;
  }

  get free(): number {
    return this.#free;
  }

  /** Counts allocations and releases. */
  get changes(): number {
    return this.#changes;
  }

  /** Undefined when too few pages are free. @param worker index of the cache with these pages */
  allocate(layout: ReceiveLayout, worker = 0): ReceivedPrompt | undefined {
    if (layout.pageCount > this.#free) return undefined;
    this.#changes++;
    this.#free -= layout.pageCount;
    const prompt = { worker, layout, pages: this.#stack.slice(this.#free, this.#free + layout.pageCount).reverse() };
    this.#inUse.add(prompt);
    return prompt;
  }

  release(prompt: ReceivedPrompt): void {
    if (!this.#inUse.delete(prompt)) throw new Error('Cannot free receive pages: they are not in use');
    this.#changes++;
    for (const page of prompt.pages.toReversed()) this.#stack[this.#free++] = page;
  }

  /**
   * Throws unless the number of reserved pages is unchanged, none is reserved twice, and none belongs to a block.
   * `owners` (pages): blocks by page.
   */
  check(owners: Int32Array): void {
    let count = 0;
    for (const pages of [this.#stack.subarray(0, this.#free), ...[...this.#inUse].map((prompt) => prompt.pages)]) {
      for (const page of pages) {
        if (owners[page] !== 0)
          throw new Error(
            `Receive pages broken: page ${page} is reserved twice, or belongs to block ${owners[page] - 1}`,
          );
        owners[page] = -1;
      }
      count += pages.length;
    }
    if (count !== this.total) throw new Error(`Receive pages broken: ${count} are reserved of ${this.total}`);
  }
}
