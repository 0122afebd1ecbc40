// Moves of block contents between the tiers of a cache, where contents are real.
import { digestWords } from '../../../util/blake2s.ts';
import type { BlockId, SlotId } from '../../protocol/ids.ts';
import type { BlockPool } from '../block-pool.ts';

/** Carries out moves in this order, and before anything requested later. */
export interface TierMover {
  /** Copies pages of the pool, one by one. */
  copy(from: Int32Array, to: Int32Array): void;
  /**
   * (blocks, layers) pages of the pool, both: loads what the next launched step reads, or loads at once without a step.
   */
  load(from: Int32Array, to: Int32Array): void;
  /** Marks the slot of SSD as empty. */
  erase(slot: SlotId): void;
}

/** The pages of host memory's slots, and the moves of contents to and from them. */
export class TierMoves {
  readonly #pool: BlockPool;
  readonly #hostPage: number;
  readonly #mover: TierMover;
  #loads: { readonly slot: SlotId; readonly block: BlockId; readonly digest: Uint32Array }[] = [];

  /** @param hostPage first page id of host memory */
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

  /** Deferred to `flush`: until then the block may be evicted again. */
  load(slot: SlotId, block: BlockId, digest: Uint32Array): void {
    this.#loads.push({ slot, block, digest });
  }

  /**
   * Starts the loads requested since the last call that are still useful. @param holds true if the block is indexed
   * under this digest
   */
  flush(holds: (block: BlockId, digest: Uint32Array) => boolean): void {
    if (this.#loads.length === 0) return;
    const useful = this.#loads.filter(({ block, digest }) => holds(block, digest));
    this.#loads = [];
    if (useful.length === 0) return;
    const { layers } = this.#pool;
    const to = new Int32Array(useful.length * layers);
    for (const [i, { block }] of useful.entries()) to.set(this.#pagesOf(block), i * layers);
    this.#mover.load(this.pagesOfSlots(useful.map(({ slot }) => slot)), to);
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

/** A copy of the digest at `words[at..at+4]`. */
export function digestAt(words: Uint32Array, at: number): Uint32Array {
  return words.slice(at, at + digestWords);
}
