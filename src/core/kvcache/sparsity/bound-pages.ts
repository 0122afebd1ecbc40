// The pages with bounds of keys, by which rows choose the pages of K and V that they read (Quest).
import { Int32List } from '../../../util/int32-list.ts';
import { boundPages } from '../../../util/step.ts';
import type { PagePool } from '../pools/page-pool.ts';

/** They grow with the blocks of the sequence. */
export class BoundPages {
  /** Layers that choose pages. */
  readonly layers: number;
  readonly ids = new Int32List(4);
  /** Leading blocks with complete bounds. */
  bounded = 0;

  constructor(layers: number) {
    this.layers = layers;
  }

  /** Pages that it lacks for the bounds of so many blocks. */
  missing(blocks: number): number {
    return Math.max(0, boundPages(blocks, this.layers) - this.ids.length);
  }
}

/** All pages with bounds of a cache. */
export class BoundMemory {
  readonly #pool: PagePool;
  readonly #held = new Set<BoundPages>();
  readonly #page = new Int32Array(1);
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

  /** Appends pages for the bounds of `blocks` blocks, which must be free. */
  grow(bounds: BoundPages, blocks: number): void {
    this.#held.add(bounds);
    for (let missing = bounds.missing(blocks); missing > 0; missing--) {
      if (!this.#pool.allocate(1, this.#page, 0)) throw new Error('Cannot allocate pages for bounds: none is free');
      bounds.ids.push(this.#page[0]);
      this.#pages++;
      this.#changes++;
    }
  }

  release(bounds: BoundPages): void {
    if (!this.#held.delete(bounds)) return;
    this.#pool.release(bounds.ids.view(), 0, bounds.ids.length);
    this.#pages -= bounds.ids.length;
    this.#changes++;
  }

  /** Throws unless each page has bounds of one sequence alone. `owners`: see `BlockPool.check`. */
  check(owners: Int32Array): void {
    for (const { ids } of this.#held)
      for (const page of ids.view()) {
        if (owners[page] !== 0) throw new Error(`Bound pages broken: page ${page} belongs to something else as well`);
        owners[page] = -1;
      }
  }
}
