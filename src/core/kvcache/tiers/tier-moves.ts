// What is to be moved between the tiers of a cache whose blocks have real contents.
import { digestWords } from '../../../util/blake2s.ts';
import type { BlockId, SlotId } from '../../protocol/ids.ts';
import type { BlockPool } from '../block-pool.ts';

/** Carries out what it is told, in this order and before whatever is asked for next. */
export interface TierMover {
  /** Pages of the same pool, one by one. */
  copy(from: Int32Array, to: Int32Array): void;
  /** (blocks, layers) pages of the same pool, both: what the step that is launched next reads, or is there without one. */
  load(from: Int32Array, to: Int32Array): void;
  /** The slot of SSD is to hold nothing any more. */
  erase(slot: SlotId): void;
}

/** Where in the pool the pages of host memory's slots are, and how contents get there and away. */
export class TierMoves {
  readonly #pool: BlockPool;
  readonly #hostPage: number;
  readonly #mover: TierMover;
  #loads: { readonly slot: SlotId; readonly block: BlockId; readonly digest: Uint32Array }[] = [];

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

  /** Done by `flush`: until then the block may go again. `digest`: its name. */
  load(slot: SlotId, block: BlockId, digest: Uint32Array): void {
    this.#loads.push({ slot, block, digest });
  }

  /** Of what was to be loaded since the last call, what is still wanted. @param holds is this block known by this name? */
  flush(holds: (block: BlockId, digest: Uint32Array) => boolean): void {
    if (this.#loads.length === 0) return;
    const wanted = this.#loads.filter(({ block, digest }) => holds(block, digest));
    this.#loads = [];
    if (wanted.length === 0) return;
    const { layers } = this.#pool;
    const to = new Int32Array(wanted.length * layers);
    for (const [i, { block }] of wanted.entries()) to.set(this.#pagesOf(block), i * layers);
    this.#mover.load(this.pagesOfSlots(wanted.map(({ slot }) => slot)), to);
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
