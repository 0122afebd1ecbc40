// Copies of lent blocks in flight between instances with fake engines.
import type { BlocksToMove } from '../../../src/core/protocol/lending-effects.ts';

/** The copy of one block: its source and target pages when it started; undefined: the creditor does not lend that block. */
export interface BlockCopy {
  readonly from: ArrayLike<number> | undefined;
  readonly to: ArrayLike<number> | undefined;
  /** The block at each end: a lent block, or a row of the debtor's page table. */
  readonly source: number | undefined;
  readonly target: number;
  /** The step that computes the block; the copy waits for its end. */
  readonly step: number | undefined;
}

export interface MoveInFlight extends BlocksToMove {
  readonly debtor: number;
  readonly blocks: BlockCopy[];
  last: boolean;
}
