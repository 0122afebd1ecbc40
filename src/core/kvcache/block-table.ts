// The blocks of one sequence in every layer group, in order of position.
import { Int32List } from '../../util/int32-list.ts';

/**
 * Blocks of one layer group: entry i is block first + i of the sequence, except for one that has blocks away (its entries before those that left
 * are block i). Owns one reference to each block.
 */
export class HeldBlocks {
  /** So many lie behind the window and were given back, or away: with other instances. */
  first = 0;
  readonly blocks: Int32List;

  constructor(blocks = 8) {
    this.blocks = new Int32List(blocks);
  }
}

/** All groups end at the same block; those with a window begin later once the sequence has grown past it. */
export class BlockTable {
  readonly groups: readonly HeldBlocks[];

  /**
   * @param groups layer groups of the model, one at least
   * @param blocks that there is room for from the start
   */
  constructor(groups: number, blocks?: number) {
    this.groups = Array.from({ length: groups }, () => new HeldBlocks(blocks));
  }

  /** Blocks from the sequence's start to the last one held. */
  get length(): number {
    const { first, blocks } = this.groups[0];
    return first + blocks.length;
  }
}
