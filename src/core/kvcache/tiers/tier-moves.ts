// Moves of block contents between the tiers of a cache, where contents are real.
import { digestWords } from '../../../util/blake2s.ts';
import type { BlockId, SlotId } from '../../protocol/ids.ts';
import type { WholeGroups } from '../whole-groups.ts';

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

/** A block that the next step computes, with its ids in the groups, and the slot for it. */
export interface ReservedBlock {
  readonly slot: SlotId;
  readonly ids: readonly BlockId[];
}

/** A block that is loaded: its ids in the groups, undefined where a group had it before. */
interface BlockLoad {
  readonly slot: SlotId;
  readonly ids: readonly (BlockId | undefined)[];
  readonly digest: Uint32Array;
}

/** The pages of host memory's slots, and the moves of contents to and from them. */
export class TierMoves {
  readonly #whole: WholeGroups;
  readonly #blockPages: number;
  readonly #hostPage: number;
  readonly #mover: TierMover;
  #loads: BlockLoad[] = [];

  /** @param whole all groups @param hostPage first page id of host memory */
  constructor(whole: WholeGroups, hostPage: number, mover: TierMover) {
    this.#whole = whole;
    this.#blockPages = whole.blockPages;
    this.#hostPage = hostPage;
    this.#mover = mover;
  }

  /** The first page of a slot of host memory. */
  pageOf(slot: SlotId): number {
    return this.#hostPage + slot * this.#blockPages;
  }

  /** @param block its id in the first group; the others have it under the digest at `words[at..at+4]` */
  store(block: BlockId, slot: SlotId, words: Uint32Array, at: number): void {
    const ids = this.#whole.groups.map((group, g) => (g === 0 ? block : (group.findDigest(words, at) ?? 0)));
    this.#mover.copy(this.#whole.pagesOf(ids), this.#pagesIn(slot));
  }

  /** Stores blocks while the next step computes them. */
  storeComputed(blocks: readonly ReservedBlock[]): void {
    const from = new Int32Array(blocks.length * this.#blockPages);
    for (const [i, { ids }] of blocks.entries()) from.set(this.#whole.pagesOf(ids), i * this.#blockPages);
    this.#mover.store(from, this.pagesOfSlots(blocks.map(({ slot }) => slot)));
  }

  /** Deferred to `flush`: until then the block may be evicted again. */
  load(slot: SlotId, ids: readonly (BlockId | undefined)[], digest: Uint32Array): void {
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
  #loadedPages(slot: SlotId, ids: readonly (BlockId | undefined)[], digest: Uint32Array): Int32Array | undefined {
    const pages = this.#pagesIn(slot);
    let isNeeded = false;
    let at = 0;
    for (const [g, group] of this.#whole.groups.entries()) {
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
