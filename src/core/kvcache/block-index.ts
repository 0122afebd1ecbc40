// The digest index of one layer group: from digest to block, and back.
import { digestWords } from '../../util/blake2s.ts';
import { DigestIndex } from '../../util/digest-table.ts';
import type { BlockId } from '../protocol/ids.ts';

/** A map without reference counts; it does not link a block to its prefix. */
export class BlockIndex {
  readonly #table: DigestIndex;
  /** (blocks, 4 words): digests of the indexed blocks. */
  readonly digests: Uint32Array;
  /** (blocks): blocks before it in its sequence plus one; 0: not indexed. */
  readonly #depth: Int32Array;

  constructor(blocks: number) {
    this.#table = new DigestIndex(blocks);
    this.digests = new Uint32Array(blocks * digestWords);
    this.#depth = new Int32Array(blocks);
  }

  get size(): number {
    return this.#table.size;
  }

  has(block: BlockId): boolean {
    return this.#depth[block] !== 0;
  }

  /** Blocks before it plus one; 0 when it is not indexed. */
  depth(block: BlockId): number {
    return this.#depth[block];
  }

  /** The block of the digest at `words[at..at+4]`. Adds no reference: valid until the next allocation or eviction. */
  find(words: Uint32Array, at: number): BlockId | undefined {
    return this.#table.get(this.digests, words, at);
  }

  /** Indexes a full block under the digest at `words[at..at+4]`, which must not be indexed yet. */
  insert(words: Uint32Array, at: number, block: BlockId, depth: number): void {
    if (this.has(block) || this.find(words, at) !== undefined)
      throw new Error(`Cannot index a block: it or its digest is indexed already: block ${block} at depth ${depth}`);
    for (let i = 0; i < digestWords; i++) this.digests[block * digestWords + i] = words[at + i];
    this.#table.insert(this.digests, block);
    this.#depth[block] = depth;
  }

  remove(block: BlockId): void {
    if (!this.has(block)) throw new Error(`Cannot remove a block from the index: it is not indexed: block ${block}`);
    this.#table.delete(this.digests, block);
    this.#depth[block] = 0;
  }

  /** Throws unless every indexed block is found by its digest. */
  check(): void {
    let size = 0;
    for (let block = 0; block < this.#depth.length; block++) {
      if (!this.has(block)) continue;
      size++;
      if (this.find(this.digests, block * digestWords) !== block)
        throw new Error(`Block index broken: block ${block} is not found`);
    }
    if (size !== this.size) throw new Error(`Block index broken: ${size} blocks for ${this.size} digests`);
  }
}
