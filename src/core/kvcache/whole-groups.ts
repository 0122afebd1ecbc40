// Layer groups that have a block together: those without a window, which hold a prefix, or all, for its pages.
import { digestWords } from '../../util/blake2s.ts';
import type { BlockId } from '../protocol/ids.ts';
import type { BlockChain } from '../protocol/kv-events.ts';
import type { BlockTable } from './block-table.ts';
import type { BlockListener } from './events/kv-event-log.ts';
import type { GroupCache } from './group-cache.ts';

/** Ids of a block in the groups; undefined where a group does not have it, because it lies behind a window. */
export type BlockIds = readonly (BlockId | undefined)[];

/** Its pages of a block are those of the first group, then those of the next. */
export class WholeGroups {
  readonly groups: readonly GroupCache[];

  /** @param groups at least one */
  constructor(groups: readonly GroupCache[]) {
    this.groups = groups;
  }

  /** It receives a block when the last group stores it, with the id in the first group, and when one group removes it. */
  setListener(listener: BlockListener | undefined): void {
    const [first, ...others] = this.groups;
    if (others.length === 0) {
      first.listener = listener;
      return;
    }
    const ofAll: BlockListener | undefined = listener && {
      record: (words, at, stored, depth) => {
        if (this.holds(words, at)) listener.record(words, at, stored, depth, first.findDigest(words, at));
      },
    };
    for (const group of this.groups) group.listener = ofAll;
  }

  /** True if every group holds the block of the digest at `words[at..at+4]`. */
  holds(words: Uint32Array, at: number): boolean {
    for (let g = 0; g < this.groups.length; g++) if (!this.groups[g].holds(words, at)) return false;
    return true;
  }

  /** (blocks, 4 words): digests of all blocks that every group holds. */
  indexedDigests(): Uint32Array {
    const words = this.groups[0].indexedDigests();
    if (this.groups.length === 1) return words;
    let end = 0;
    for (let at = 0; at < words.length; at += digestWords) {
      if (!this.holds(words, at)) continue;
      words.copyWithin(end, at, at + digestWords);
      end += digestWords;
    }
    return words.slice(0, end);
  }

  /** Pages of a block. */
  get blockPages(): number {
    return this.groups.reduce((sum, { layers }) => sum + layers, 0);
  }

  /** The pages of a block by its ids in the groups. */
  pagesOf(ids: BlockIds): Int32Array {
    const pages = new Int32Array(this.blockPages);
    let at = 0;
    for (const [g, { layers, pool }] of this.groups.entries()) {
      const id = ids[g];
      if (id === undefined) throw new Error(`Cannot list the pages of a block: group ${g} does not have it`);
      pages.set(pool.pageTable.subarray(id * layers, (id + 1) * layers), at);
      at += layers;
    }
    return pages;
  }

  /** Ids of a block that the table holds, behind remote blocks if it has any, by its index in the sequence. */
  heldIds({ groups }: BlockTable, index: number): BlockIds {
    return this.groups.map((_, g) => {
      const { first, blocks } = groups[g];
      return index < first ? undefined : blocks.at(index - first);
    });
  }

  /** Ids of the block of the digest at `words[at..at+4]`. */
  indexedIds(words: Uint32Array, at: number): BlockIds {
    return this.groups.map((group) => group.findDigest(words, at));
  }

  /** Ids of the block of a digest; undefined if a group lacks it. */
  idsOf({ words }: Pick<BlockChain, 'words'>, index: number): BlockIds | undefined {
    const ids = this.indexedIds(words, index * digestWords);
    return ids.includes(undefined) ? undefined : ids;
  }
}
