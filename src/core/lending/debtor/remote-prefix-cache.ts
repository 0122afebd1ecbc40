// The remote prefix cache: blocks of ended sequences that stay at creditors for later prompts with the same prefix.

import { digestWords } from '../../../util/blake2s.ts';
import type { RBlockId } from '../../protocol/ids.ts';
import type { BlockChain } from '../../protocol/kv-events.ts';
import type { Sequence } from '../../scheduler/batching/sequence.ts';
import type { RManager } from '../rmanager.ts';
import type { RemoteBlockMap } from './remote-blocks.ts';

interface RemotePrefix {
  /** Number of blocks before the remote ones. The prefix is usable while the cache at home holds them. */
  readonly firstBlock: number;
  /** (blocks from the start of the sequence, 4 words): digests. */
  readonly words: Uint32Array;
  /** In order; whole ranges. */
  rblocks: RBlockId[];
  readonly expiresUs: number;
}

/** The remote part of a prompt's prefix. */
export interface RemotePrefixMatch {
  readonly prefix: RemotePrefix;
  readonly firstBlock: number;
  readonly blocks: number;
}

export interface RBlockOwner {
  freeRBlock(rblock: RBlockId): void;
}

export class RemotePrefixCache {
  readonly #rangeBlocks: number;
  readonly #cacheUs: number;
  readonly #owner: RBlockOwner;
  /** Oldest first. */
  #prefixes: readonly RemotePrefix[] = [];
  readonly #byBlock = new Map<RBlockId, RemotePrefix>();

  constructor(
    { rangeBlocks, remoteCacheUs }: { readonly rangeBlocks: number; readonly remoteCacheUs: number },
    owner: RBlockOwner,
  ) {
    this.#rangeBlocks = rangeBlocks;
    this.#cacheUs = remoteCacheUs;
    this.#owner = owner;
  }

  get blocks(): number {
    return this.#byBlock.size;
  }

  /** When the next prefix expires. */
  get nextUs(): number {
    return this.#prefixes[0]?.expiresUs ?? Number.POSITIVE_INFINITY;
  }

  has(rblock: RBlockId): boolean {
    return this.#byBlock.has(rblock);
  }

  /**
   * Caches the blocks of an ended sequence.
   * @param rblocks its blocks from `firstBlock` on, in order
   */
  add(nowUs: number, { words }: BlockChain, firstBlock: number, rblocks: readonly RBlockId[]): void {
    const prefix = {
      firstBlock,
      words: words.slice(0, (firstBlock + rblocks.length) * digestWords),
      rblocks: [...rblocks],
      expiresUs: nowUs + this.#cacheUs,
    };
    this.#prefixes = [...this.#prefixes, prefix];
    for (const rblock of rblocks) this.#byBlock.set(rblock, prefix);
  }

  /** The longest cached prefix of the chain's first `blocksMax` blocks that ends with whole remote ranges. */
  find(chain: BlockChain, blocksMax: number): RemotePrefixMatch | undefined {
    let best: RemotePrefixMatch | undefined;
    for (const prefix of this.#prefixes) {
      const { firstBlock } = prefix;
      const blocks = this.#matchingBlocks(prefix, chain, Math.min(blocksMax, chain.blocks));
      if (blocks > 0 && firstBlock + blocks > (best === undefined ? 0 : best.firstBlock + best.blocks))
        best = { prefix, firstBlock, blocks };
    }
    return best;
  }

  /** Digests are chained: if one block matches, all before it match. */
  #matchingBlocks({ firstBlock, rblocks, words }: RemotePrefix, chain: BlockChain, blocksMax: number): number {
    const whole = Math.min(rblocks.length, blocksMax - firstBlock);
    for (let blocks = whole - (whole % this.#rangeBlocks); blocks > 0; blocks -= this.#rangeBlocks) {
      const at = (firstBlock + blocks - 1) * digestWords;
      let same = 0;
      while (same < digestWords && words[at + same] === chain.words[at + same]) same++;
      if (same === digestWords) return blocks;
    }
    return 0;
  }

  /** Removes the matched blocks for a sequence. Blocks after the match are freed. */
  take({ prefix, blocks }: RemotePrefixMatch): readonly RBlockId[] {
    this.#truncate(prefix, blocks);
    const { rblocks } = prefix;
    this.#forget(prefix);
    return rblocks;
  }

  /** Frees the prefix from this block's range on. */
  truncateAt(rblock: RBlockId): void {
    const prefix = this.#byBlock.get(rblock);
    if (prefix === undefined) return;
    const range = Math.floor(prefix.rblocks.indexOf(rblock) / this.#rangeBlocks);
    this.#truncate(prefix, range * this.#rangeBlocks);
  }

  /** Frees the last range of the oldest prefix other than `except`; false if there is none. */
  evictOldest(except: RemotePrefix | undefined): boolean {
    const prefix = this.#prefixes.find((each) => each !== except);
    if (prefix === undefined) return false;
    this.#truncate(prefix, prefix.rblocks.length - this.#rangeBlocks);
    return true;
  }

  /** Frees at least `count` blocks that satisfy the predicate, if there are as many, latest ranges first. Returns the number freed. */
  evict(count: number, isAffected: (rblock: RBlockId) => boolean): number {
    let freed = 0;
    while (freed < count) {
      const last = [...this.#byBlock.keys()].findLast(isAffected);
      if (last === undefined) break;
      const before = this.#count(isAffected);
      this.truncateAt(last);
      freed += before - this.#count(isAffected);
    }
    return freed;
  }

  #count(isAffected: (rblock: RBlockId) => boolean): number {
    let count = 0;
    for (const rblock of this.#byBlock.keys()) if (isAffected(rblock)) count++;
    return count;
  }

  /** Frees the prefixes that have expired. */
  expire(nowUs: number): void {
    for (const prefix of this.#prefixes) if (prefix.expiresUs <= nowUs) this.#truncate(prefix, 0);
  }

  #truncate(prefix: RemotePrefix, blocks: number): void {
    for (const rblock of prefix.rblocks.splice(blocks)) {
      this.#byBlock.delete(rblock);
      this.#owner.freeRBlock(rblock);
    }
    if (blocks === 0) this.#forget(prefix);
  }

  #forget(prefix: RemotePrefix): void {
    for (const rblock of prefix.rblocks) this.#byBlock.delete(rblock);
    this.#prefixes = this.#prefixes.filter((each) => each !== prefix);
  }
}

/** The blocks of an ended sequence that can be cached: whole ranges from its first remote block on, outside device memory at home. */
export function blocksToCache(
  { chain, remoteFrom }: Sequence,
  { broken, relocations, inOrder }: RemoteBlockMap,
  { rangeBlocks, rmanager }: { readonly rangeBlocks: number; readonly rmanager: Pick<RManager, 'find'> },
): readonly RBlockId[] {
  if (broken || relocations.size > 0) return [];
  const countMax = Math.min(inOrder.length, chain.blocks - remoteFrom);
  let count = 0;
  while (count < countMax) {
    const place = rmanager.find(inOrder[count]);
    if (place === undefined || place.kind === 'staged' || (place.kind === 'home' && place.memory === 'device')) break;
    count++;
  }
  return inOrder.slice(0, Math.max(0, count - (count % rangeBlocks)));
}
