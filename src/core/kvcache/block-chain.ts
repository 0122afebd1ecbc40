// What block caches know of a sequence's contents: the digests of its full blocks, and how many of them were found.

/** Equal digests stand for equal blocks behind equal prefixes. */
export interface BlockChain {
  /** Full blocks whose digests are known. */
  readonly blocks: number;
  /** (blocks, 4 words), first block first. Valid until the chain grows. */
  readonly words: Uint32Array;
}

/** A block cache's last answer about one chain: right while nothing changes, near the next one after that. */
export class KnownPrefix {
  /** Changes of the cache when it was asked. */
  changes = -1;
  /** Blocks it was asked for, and what it said. */
  asked = 0;
  blocks = 0;
}
