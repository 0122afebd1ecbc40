// What is to be moved between the tiers of a cache whose blocks have real contents.
import { digestWords } from '../../util/blake2s.ts';
import type { BlockId, BlockPool } from './block-pool.ts';
import type { SlotId } from './block-tier.ts';

/** A block on SSD, and the pages of host memory, one after another from `page` on, that it goes to or comes from. */
export interface SsdBlock {
  readonly slot: SlotId;
  readonly page: number;
  /** Blocks before it plus one. */
  readonly depth: number;
  /** (4 words) */
  readonly digest: Uint32Array;
}

/** Carries out what it is told, in this order and before whatever is asked for next. */
export interface TierMover {
  /** Pages of the same pool, one by one. */
  copy(from: Int32Array, to: Int32Array): void;
  /** The slot of SSD is to hold nothing any more. */
  erase(slot: SlotId): void;
}

/** Where in the pool the pages of host memory's slots are, and how contents get there and away. */
export class TierMoves {
  readonly #pool: BlockPool;
  readonly #hostPage: number;
  readonly #mover: TierMover;

  /** @param hostPage of the pool, the first of host memory's */
  constructor(pool: BlockPool, hostPage: number, mover: TierMover) {
    this.#pool = pool;
    this.#hostPage = hostPage;
    this.#mover = mover;
  }

  /** The first page of a slot of host memory. */
  pageOf(slot: SlotId): number {
    return this.#hostPage + slot * this.#pool.layers;
  }

  store(block: BlockId, slot: SlotId): void {
    this.#mover.copy(this.#pagesOf(block), this.#pagesIn(slot));
  }

  load(slot: SlotId, block: BlockId): void {
    this.#mover.copy(this.#pagesIn(slot), this.#pagesOf(block));
  }

  erase(slot: SlotId): void {
    this.#mover.erase(slot);
  }

  /** (slots, layers) */
  pagesOfSlots(slots: readonly SlotId[]): Int32Array {
    const { layers } = this.#pool;
    const pages = new Int32Array(slots.length * layers);
    for (const [i, slot] of slots.entries()) pages.set(this.#pagesIn(slot), i * layers);
    return pages;
  }

  #pagesIn(slot: SlotId): Int32Array {
    const first = this.pageOf(slot);
    return Int32Array.from({ length: this.#pool.layers }, (_, layer) => first + layer);
  }

  #pagesOf(block: BlockId): Int32Array {
    const { layers, pageTable } = this.#pool;
    return pageTable.slice(block * layers, (block + 1) * layers);
  }
}

/** A digest of its own, out of many. */
export function digestAt(words: Uint32Array, at: number): Uint32Array {
  return words.slice(at, at + digestWords);
}
