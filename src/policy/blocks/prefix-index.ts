// Which blocks hold which prefix: from chained digests to blocks, and from a block to its parent.
import { digestWords } from '../../util/blake2s.ts';
import { DigestTable } from '../../util/digest-table.ts';
import type { Int32List } from '../../util/int32-list.ts';
import type { BlockId } from './block-pool.ts';

/** Knows nothing of references: who evicts must keep blocks in use, and parents before their children. */
export class PrefixIndex {
  readonly #table: DigestTable;
  /** (blocks, 4 words): digests of the blocks that are in. */
  readonly #digests: Uint32Array;
  /** (blocks): block id of the parent plus one; 0: a first block, or not in. */
  readonly #parent: Int32Array;
  readonly #children: Int32Array;
  /** (blocks): 1 for a first block; 0: not in. */
  readonly #depth: Int32Array;

  constructor(blocks: number) {
    this.#table = new DigestTable(blocks);
    this.#digests = new Uint32Array(blocks * digestWords);
    this.#parent = new Int32Array(blocks);
    this.#children = new Int32Array(blocks);
    this.#depth = new Int32Array(blocks);
  }

  get size(): number {
    return this.#table.size;
  }

  has(block: BlockId): boolean {
    return this.#depth[block] !== 0;
  }

  /** Blocks before it plus one; 0 when it is not in. */
  depth(block: BlockId): number {
    return this.#depth[block];
  }

  parent(block: BlockId): BlockId | undefined {
    const parent = this.#parent[block];
    return parent === 0 ? undefined : parent - 1;
  }

  children(block: BlockId): number {
    return this.#children[block];
  }

  /** The block of digest `index` of a chain. Does not pin. */
  find(chain: Uint32Array, index: number): BlockId | undefined {
    return this.#table.get(chain, index * digestWords);
  }

  /** Appends to `out` the blocks of the chain's longest known prefix, at most `blocksMax`. Does not pin: valid until the next allocation or eviction. */
  match(chain: Uint32Array, blocksMax: number, out: Int32List): void {
    for (let index = 0; index < blocksMax; index++) {
      const block = this.find(chain, index);
      if (block === undefined) return;
      out.push(block);
    }
  }

  /** Puts a full block in under digest `index`, which must not be known yet; its parent must be in. */
  insert(chain: Uint32Array, index: number, block: BlockId): void {
    const at = index * digestWords;
    const parent = index === 0 ? undefined : this.#table.get(chain, at - digestWords);
    if (index > 0 && parent === undefined)
      throw new Error(`Cannot index a block: its parent is unknown: block ${block} at depth ${index + 1}`);
    if (this.has(block) || this.#table.get(chain, at) !== undefined) {
      throw new Error(`Cannot index a block: it or its digest is known: block ${block} at depth ${index + 1}`);
    }
    this.#table.set(chain, at, block);
    for (let i = 0; i < digestWords; i++) this.#digests[block * digestWords + i] = chain[at + i];
    this.#depth[block] = index + 1;
    this.#parent[block] = parent === undefined ? 0 : parent + 1;
    if (parent !== undefined) this.#children[parent] = this.#children[parent] + 1;
  }

  /** Takes a block without children out. */
  remove(block: BlockId): void {
    if (!this.has(block) || this.children(block) > 0) {
      throw new Error(
        `Cannot remove a block from the index: it is unknown or a parent: block ${block}, ${this.children(block)} children`,
      );
    }
    this.#table.delete(this.#digests, block * digestWords);
    const parent = this.parent(block);
    if (parent !== undefined) this.#children[parent] = this.#children[parent] - 1;
    this.#depth[block] = 0;
    this.#parent[block] = 0;
  }

  /** Throws unless every block that is in is found by its digest, below its parent. */
  check(): void {
    const children = new Int32Array(this.#children.length);
    let size = 0;
    for (let block = 0; block < this.#depth.length; block++) {
      if (!this.has(block)) continue;
      size++;
      if (this.#table.get(this.#digests, block * digestWords) !== block)
        throw new Error(`Prefix index broken: block ${block} is not found`);
      const parent = this.parent(block);
      if ((parent === undefined ? 0 : this.depth(parent)) !== this.depth(block) - 1) {
        throw new Error(`Prefix index broken: block ${block} at depth ${this.depth(block)} has no parent above it`);
      }
      if (parent !== undefined) children[parent] = children[parent] + 1;
    }
    const wrong = children.findIndex((count, block) => count !== this.#children[block]);
    if (wrong >= 0 || size !== this.size)
      throw new Error(`Prefix index broken: ${size} blocks for ${this.size} digests, children of block ${wrong}`);
  }
}
