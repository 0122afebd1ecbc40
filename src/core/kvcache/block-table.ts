// The blocks of one sequence in every layer group, in order of position.
import { Int32List } from '../../util/int32-list.ts';
import type { BoundPages } from './sparsity/bound-pages.ts';
import type { SlotPages } from './sparsity/slot-pages.ts';

/**
 * Blocks of one layer group, with one reference to each. Entry i is block `first` + i of the sequence. In a sequence
 * with remote blocks, the entries before the remote ones are block i.
 */
export class HeldBlocks {
  /** Blocks released behind the window, or held by other instances. */
  first = 0;
  /** Slots hold the kept tokens of these layers: there are no blocks, and `first` counts on. */
  inSlots = false;
  readonly blocks: Int32List;

  constructor(blocks = 8) {
    this.blocks = new Int32List(blocks);
  }
}

/** All groups end at the same block; groups with a window start later once the sequence has outgrown it. */
export class BlockTable {
  readonly groups: readonly HeldBlocks[];
  /** Pages for the kept tokens of a sequence with a KV budget. */
  slots: SlotPages | undefined;
  /** Bounds of the keys of a sequence whose rows choose pages. */
  bounds: BoundPages | undefined;
  /** Tenant of the sequence; empty: none, or a table of no sequence. */
  tenant = '';

  /**
   * @param groups layer groups of the model, at least one
   * @param blocks initial capacity
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
