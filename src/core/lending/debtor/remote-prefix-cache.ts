// Remote prefix cache: blocks of ended sequences that stay at creditors, for later prompts with the same prefix.

import { digestWords } from '../../../util/blake2s.ts';
import type { RBlockId } from '../../protocol/ids.ts';
import type { BlockChain } from '../../protocol/kv-events.ts';
import type { Sequence } from '../../scheduler/batching/sequence.ts';
import type { RManager } from '../rmanager.ts';
import type { RemoteBlockMap } from './remote-blocks.ts';

interface RemotePrefix {
  /** Blocks before the remote ones: the prefix is usable while the index at home still has them. */
  readonly firstBlock: number;
  /** (blocks from the start of the sequence, 4 words): digests. */
  readonly words: Uint32Array;
  /** In order, whole ranges. */
  rblocks: RBlockId[];
  readonly untilUs: number;
}

/** The remote part of a prompt's prefix. */
export interface RemotePrefixMatch {
  readonly prefix: RemotePrefix;
  readonly firstBlock: number;
  readonly blocks: number;
}

export class RemotePrefixCache {
  readonly #rangeBlocks: number;
  readonly #keepUs: number;
  /** Frees a block. */
  readonly #free: (rblock: RBlockId) => void;
  /** Oldest first. */
  #prefixes: readonly RemotePrefix[] = [];
  readonly #byBlock = new Map<RBlockId, RemotePrefix>();

  constructor(rangeBlocks: number, keepUs: number, free: (rblock: RBlockId) => void) {
    this.#rangeBlocks = rangeBlocks;
    this.#keepUs = keepUs;
    this.#free = free;
  }

  get blocks(): number {
    return this.#byBlock.size;
  }

  /** When the next prefix expires. */
  get nextUs(): number {
    return this.#prefixes[0]?.untilUs ?? Number.POSITIVE_INFINITY;
  }

  has(rblock: RBlockId): boolean {
    return this.#byBlock.has(rblock);
  }

  /**
   * Keeps the blocks of an ended sequence.
   * @param rblocks its blocks from `firstBlock` on, in order
   */
  keep(nowUs: number, { words }: BlockChain, firstBlock: number, rblocks: readonly RBlockId[]): void {
    const prefix = {
      firstBlock,
      words: words.slice(0, (firstBlock + rblocks.length) * digestWords),
      rblocks: [...rblocks],
      untilUs: nowUs + this.#keepUs,
    };
    this.#prefixes = [...this.#prefixes, prefix];
    for (const rblock of rblocks) this.#byBlock.set(rblock, prefix);
  }

  /** The longest cached prefix of the chain's first `blocksMax` blocks that ends with whole remote ranges. */
  find(chain: BlockChain, blocksMax: number): RemotePrefixMatch | undefined {
    let best: RemotePrefixMatch | undefined;
    for (const prefix of this.#prefixes) {
      const { firstBlock } = prefix;
      const blocks = this.#blocksAlike(prefix, chain, Math.min(blocksMax, chain.blocks));
      if (blocks > 0 && firstBlock + blocks > (best === undefined ? 0 : best.firstBlock + best.blocks))
        best = { prefix, firstBlock, blocks };
    }
    return best;
  }

  /** Blocks are chained: if one matches, all before it match. */
  #blocksAlike({ firstBlock, rblocks, words }: RemotePrefix, chain: BlockChain, most: number): number {
    const whole = Math.min(rblocks.length, most - firstBlock);
    for (let blocks = whole - (whole % this.#rangeBlocks); blocks > 0; blocks -= this.#rangeBlocks) {
      const at = (firstBlock + blocks - 1) * digestWords;
      let same = 0;
      while (same < digestWords && words[at + same] === chain.words[at + same]) same++;
      if (same === digestWords) return blocks;
    }
    return 0;
  }

  /** Hands the blocks to a sequence; blocks beyond the match are freed. */
  take({ prefix, blocks }: RemotePrefixMatch): readonly RBlockId[] {
    this.#cutTo(prefix, blocks);
    const { rblocks } = prefix;
    this.#forget(prefix);
    return rblocks;
  }

  /** Drops the prefix from this block's range on. */
  cutAt(rblock: RBlockId): void {
    const prefix = this.#byBlock.get(rblock);
    if (prefix === undefined) return;
    const range = Math.floor(prefix.rblocks.indexOf(rblock) / this.#rangeBlocks);
    this.#cutTo(prefix, range * this.#rangeBlocks);
  }

  drop({ prefix }: Pick<RemotePrefixMatch, 'prefix'>): void {
    this.#cutTo(prefix, 0);
  }

  /** Drops the last range of the oldest prefix other than `except`; false when there is none. */
  giveUpOldest(except: RemotePrefix | undefined): boolean {
    const prefix = this.#prefixes.find((each) => each !== except);
    if (prefix === undefined) return false;
    this.#cutTo(prefix, prefix.rblocks.length - this.#rangeBlocks);
    return true;
  }

  /** Frees up to `count` blocks for which `isThere` holds, latest ranges first. Returns the number freed. */
  giveUp(count: number, isThere: (rblock: RBlockId) => boolean): number {
    let given = 0;
    while (given < count) {
      const last = [...this.#byBlock.keys()].findLast(isThere);
      if (last === undefined) break;
      const before = this.#count(isThere);
      this.cutAt(last);
      given += before - this.#count(isThere);
    }
    return given;
  }

  #count(isThere: (rblock: RBlockId) => boolean): number {
    let count = 0;
    for (const rblock of this.#byBlock.keys()) if (isThere(rblock)) count++;
    return count;
  }

  /** Drops the prefixes that no prompt has used in time. */
  expire(nowUs: number): void {
    for (const prefix of this.#prefixes) if (prefix.untilUs <= nowUs) this.#cutTo(prefix, 0);
  }

  #cutTo(prefix: RemotePrefix, blocks: number): void {
    for (const rblock of prefix.rblocks.splice(blocks)) {
      this.#byBlock.delete(rblock);
      this.#free(rblock);
    }
    if (blocks === 0) this.#forget(prefix);
  }

  #forget(prefix: RemotePrefix): void {
    for (const rblock of prefix.rblocks) this.#byBlock.delete(rblock);
    this.#prefixes = this.#prefixes.filter((each) => each !== prefix);
  }
}

interface Lender {
  readonly rangeBlocks: number;
  readonly rmanager: Pick<RManager, 'find'>;
}

/** Whole ranges from the first remote block on that are not moving and lie outside home device memory. */
export function blocksToKeep(
  { chain, remoteFrom }: Sequence,
  { broken, relocations: over, inOrder }: RemoteBlockMap,
  { rangeBlocks, rmanager }: Lender,
): readonly RBlockId[] {
  if (broken || over.size > 0) return [];
  const most = Math.min(inOrder.length, chain.blocks - remoteFrom);
  let count = 0;
  while (count < most) {
    const place = rmanager.find(inOrder[count]);
    if (place === undefined || place.kind === 'staged' || (place.kind === 'home' && place.memory === 'device')) break;
    count++;
  }
  return inOrder.slice(0, Math.max(0, count - (count % rangeBlocks)));
}
