// The pages with the kept tokens of sequences in the sparse layers.
import { keptAfter, keptOfPrompt, type SlotTable } from '../../../util/step.ts';
import type { PagePool } from '../pools/page-pool.ts';

export interface SlotPageCounts {
  /** (sparse layers + 1): where a layer's pages start. */
  readonly pageStart: Int32Array;
  /** Pages with the scores and positions of the slots. */
  readonly statePages: number;
}

/** How many slots and pages the kept tokens of a sequence take. */
export interface SlotLayout extends SlotPageCounts {
  /** (sparse layers): tokens that a layer keeps at most. */
  readonly budget: Int32Array;
}

/** Pages of all layers, with those of the slot states. */
export function pagesOfLayout({ pageStart, statePages }: SlotPageCounts): number {
  return pageStart[pageStart.length - 1] + statePages;
}

/** The sequence holds them from its start. They have contents once its prompt is computed. */
export class SlotPages implements SlotTable {
  readonly layout: SlotLayout;
  /** All pages. */
  readonly ids: Int32Array;
  /** Pages of slots, one layer after another. */
  readonly pages: Int32Array;
  readonly pageStart: Int32Array;
  readonly states: Int32Array;
  /** (sparse layers): slots filled. */
  readonly kept: Int32Array;

  private constructor(layout: SlotLayout) {
    this.layout = layout;
    this.ids = new Int32Array(pagesOfLayout(layout));
    this.pages = this.ids.subarray(0, this.ids.length - layout.statePages);
    this.pageStart = layout.pageStart;
    this.states = this.ids.subarray(this.pages.length);
    this.kept = new Int32Array(layout.budget.length);
  }

  /** Undefined if fewer pages are free. */
  static allocate(pool: PagePool, layout: SlotLayout): SlotPages | undefined {
    const slots = new SlotPages(layout);
    return pool.allocate(slots.ids.length, slots.ids, 0) ? slots : undefined;
  }

  release(pool: PagePool): void {
    pool.release(this.ids, 0, this.ids.length);
  }

  /** The tokens of a prompt were selected. */
  select(promptTokens: number): void {
    for (let layer = 0; layer < this.kept.length; layer++)
      this.kept[layer] = keptOfPrompt(promptTokens, this.layout.budget[layer]);
  }

  /** `rows` more tokens are computed. @param compactEvery 0: each takes the place of another once the budget is full */
  grow(rows: number, compactEvery: number): void {
    for (let layer = 0; layer < this.kept.length; layer++)
      this.kept[layer] = keptAfter(this.kept[layer], this.layout.budget[layer], compactEvery, rows);
  }

  /** Kept tokens, summed over the sparse layers. */
  get keptTokens(): number {
    return this.kept.reduce((sum, tokens) => sum + tokens, 0);
  }

  /** Throws unless each page is of these slots alone. `owners`: see `BlockPool.check`. */
  check(owners: Int32Array): void {
    for (const page of this.ids) {
      if (owners[page] !== 0)
        throw new Error(`Slot pages broken: page ${page} belongs to other slots, or to block ${owners[page] - 1}`);
      owners[page] = -1;
    }
  }
}

/** All slot pages of a cache. */
export class SlotMemory {
  readonly #pool: PagePool;
  readonly #held = new Set<SlotPages>();
  #pages = 0;
  #changes = 0;

  constructor(pool: PagePool) {
    this.#pool = pool;
  }

  /** Pages in use. */
  get pages(): number {
    return this.#pages;
  }

  get changes(): number {
    return this.#changes;
  }

  /** Pages for a sequence, which must be free. */
  allocate(layout: SlotLayout): SlotPages {
    const slots = SlotPages.allocate(this.#pool, layout);
    if (slots === undefined) throw new Error(`Cannot allocate slots: ${pagesOfLayout(layout)} pages are not free`);
    this.#held.add(slots);
    this.#pages += slots.ids.length;
    this.#changes++;
    return slots;
  }

  /** Exchanges all pages for the received ones, from `pages[at]` on. */
  exchange(slots: SlotPages, pages: Int32Array, at: number): void {
    for (let i = 0; i < slots.ids.length; i++) {
      const own = slots.ids[i];
      this.#pool.exchange(own, pages[at + i]);
      slots.ids[i] = pages[at + i];
      pages[at + i] = own;
    }
    this.#changes++;
  }

  release(slots: SlotPages): void {
    slots.release(this.#pool);
    this.#held.delete(slots);
    this.#pages -= slots.ids.length;
    this.#changes++;
  }

  /** Throws unless each page is of one sequence alone. `owners`: see `BlockPool.check`. */
  check(owners: Int32Array): void {
    for (const slots of this.#held) slots.check(owners);
  }
}
