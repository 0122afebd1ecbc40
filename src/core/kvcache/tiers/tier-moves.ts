// Moves of block contents between the tiers of a cache, where contents are real.
import { digestWords } from '../../../util/blake2s.ts';
import type { BlockId, SlotId } from '../../protocol/ids.ts';
import type { BlockIds, WholeGroups } from '../whole-groups.ts';

/** Carries out moves in this order, and before anything requested later. */
export interface TierMover {
  /** Copies pages of the pool, one by one. */
  copy(from: Int32Array, to: Int32Array): void;
  /**
   * (blocks, layers) pages of the pool, both: stores what the next launched step computes, each layer once it is
   * computed. Complete when the step has ended; without defined contents if it was aborted.
   */
  store(from: Int32Array, to: Int32Array): void;
  /**
   * (blocks, layers) pages of the pool, both: loads what the next launched step reads, or loads at once without a step.
   * A page that goes to itself is not needed.
   */
  load(from: Int32Array, to: Int32Array): void;
  /** Marks the slot of SSD as empty. */
  erase(slot: SlotId): void;
}

/** A block of the pool, with its ids in the groups, and the slot for it. */
export interface SlotBlock {
  readonly slot: SlotId;
  readonly ids: BlockIds;
}

/** A block that is loaded: no id where a group had it before, or where it lies behind a window. */
interface BlockLoad extends SlotBlock {
  readonly digest: Uint32Array;
}

/** The pages of host memory's slots, and the moves of contents to and from them. */
export class TierMoves {
  readonly #all: WholeGroups;
  /** Index of the group by which the pool reports its blocks. */
  readonly #reported: number;
  readonly #blockPages: number;
  readonly #hostPage: number;
  readonly #mover: TierMover;
  #loads: BlockLoad[] = [];

  /**
   * @param all all groups
   * @param reported those by which the pool reports its blocks
   * @param hostPage first page id of host memory
   */
  constructor(all: WholeGroups, reported: WholeGroups, hostPage: number, mover: TierMover) {
    this.#all = all;
    this.#reported = all.groups.indexOf(reported.groups[0]);
    this.#blockPages = all.blockPages;
    this.#hostPage = hostPage;
    this.#mover = mover;
  }

  /** The first page of a slot of host memory. */
  pageOf(slot: SlotId): number {
    return this.#hostPage + slot * this.#blockPages;
  }

  /** The id in the group by which the pool reports its blocks. */
  reportedId(ids: BlockIds): BlockId | undefined {
    return ids[this.#reported];
  }

  /** Ids of the block of the digest at `words[at..at+4]`; `block` is its reported one. */
  idsOf(block: BlockId, words: Uint32Array, at: number): BlockIds {
    return this.#all.indexedIds(words, at).map((id, g) => (g === this.#reported ? block : id));
  }

  /** Copies blocks to host memory. */
  store(blocks: readonly SlotBlock[]): void {
    this.#mover.copy(this.#pagesOf(blocks), this.pagesOfSlots(blocks.map(({ slot }) => slot)));
  }

  /** The same while the next step computes them. */
  storeComputed(blocks: readonly SlotBlock[]): void {
    this.#mover.store(this.#pagesOf(blocks), this.pagesOfSlots(blocks.map(({ slot }) => slot)));
  }

  /** (blocks, pages of a block) */
  #pagesOf(blocks: readonly SlotBlock[]): Int32Array {
    const pages = new Int32Array(blocks.length * this.#blockPages);
    for (const [i, { ids }] of blocks.entries()) pages.set(this.#all.pagesOf(ids), i * this.#blockPages);
    return pages;
  }

  /** Deferred to `flush`: until then the block may be evicted again. */
  load(slot: SlotId, ids: BlockIds, digest: Uint32Array): void {
    this.#loads.push({ slot, ids, digest });
  }

  /** Starts the loads requested since the last call that are still useful: of blocks indexed under their digests. */
  flush(): void {
    if (this.#loads.length === 0) return;
    const rows = this.#loads.flatMap(({ slot, ids, digest }) => {
      const to = this.#loadedPages(slot, ids, digest);
      return to === undefined ? [] : [{ slot, to }];
    });
    this.#loads = [];
    if (rows.length === 0) return;
    const to = new Int32Array(rows.length * this.#blockPages);
    for (const [i, row] of rows.entries()) to.set(row.to, i * this.#blockPages);
    this.#mover.load(this.pagesOfSlots(rows.map(({ slot }) => slot)), to);
  }

  /** Where the pages of a slot go: to themselves in groups that need none. Undefined if no group needs them. */
  #loadedPages(slot: SlotId, ids: BlockIds, digest: Uint32Array): Int32Array | undefined {
    const pages = this.#pagesIn(slot);
    let isNeeded = false;
    let at = 0;
    for (const [g, group] of this.#all.groups.entries()) {
      const { layers, pool } = group;
      const id = ids[g];
      if (id !== undefined && group.findDigest(digest, 0) === id) {
        pages.set(pool.pageTable.subarray(id * layers, (id + 1) * layers), at);
        isNeeded = true;
      }
      at += layers;
    }
    return isNeeded ? pages : undefined;
  }

  erase(slot: SlotId): void {
    this.#mover.erase(slot);
  }

  /** (slots, pages of a block) */
  pagesOfSlots(slots: readonly SlotId[]): Int32Array {
    const pages = new Int32Array(slots.length * this.#blockPages);
    for (const [i, slot] of slots.entries()) pages.set(this.#pagesIn(slot), i * this.#blockPages);
    return pages;
  }

  #pagesIn(slot: SlotId): Int32Array {
    const first = this.pageOf(slot);
    return Int32Array.from({ length: this.#blockPages }, (_, page) => first + page);
  }
}

/** A copy of the digest at `words[at..at+4]`. */
export function digestAt(words: Uint32Array, at: number): Uint32Array {
  return words.slice(at, at + digestWords);
}
