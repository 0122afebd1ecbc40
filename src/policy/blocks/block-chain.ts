// What block caches know of a sequence's contents: the digests of its full blocks.

/** Equal digests stand for equal blocks behind equal prefixes. */
export interface BlockChain {
  /** Full blocks whose digests are known. */
  readonly blocks: number;
  /** (blocks, 4 words), first block first. Valid until the chain grows. */
  readonly words: Uint32Array;
}
