// Which indexed block follows which: a prefix is useful only as a whole, so blocks are evicted from its end.
import type { BlockId } from '../protocol/ids.ts';

/** Parents and numbers of children, by block. The parent of every indexed block is indexed; first blocks have none. */
export class PrefixTree {
  /** (blocks): id of the parent plus one; 0: a first block, or not indexed. */
  readonly #parent: Int32Array;
  readonly #children: Int32Array;

  constructor(blocks: number) {
    this.#parent = new Int32Array(blocks);
    this.#children = new Int32Array(blocks);
  }

  parent(block: BlockId): BlockId | undefined {
    const parent = this.#parent[block];
    return parent === 0 ? undefined : parent - 1;
  }

  children(block: BlockId): number {
    return this.#children[block];
  }

  insert(block: BlockId, parent: BlockId | undefined): void {
    if (parent === undefined) return;
    this.#parent[block] = parent + 1;
    this.#children[parent] = this.#children[parent] + 1;
  }

  /** Removes a block without children; returns its parent. */
  remove(block: BlockId): BlockId | undefined {
    if (this.children(block) > 0)
      throw new Error(`Cannot remove a block from its prefix: it has ${this.children(block)} children: block ${block}`);
    const parent = this.parent(block);
    if (parent !== undefined) this.#children[parent] = this.#children[parent] - 1;
    this.#parent[block] = 0;
    return parent;
  }

  /**
   * Throws unless each parent is one level above its children and counts are right. @param depth 0 for a block that is
   * not indexed
   */
  check(depth: (block: BlockId) => number): void {
    const children = new Int32Array(this.#children.length);
    for (let block = 0; block < children.length; block++) {
      const parent = this.parent(block);
      if (parent !== undefined) children[parent] = children[parent] + 1;
      if (depth(block) > 0 && (parent === undefined ? 0 : depth(parent)) !== depth(block) - 1)
        throw new Error(`Prefix tree broken: block ${block} at depth ${depth(block)} has no parent above it`);
    }
    const wrong = children.findIndex((count, block) => count !== this.#children[block]);
    if (wrong >= 0) throw new Error(`Prefix tree broken: ${children[wrong]} children of block ${wrong} are known`);
  }
}
