// Copies of lent blocks in flight between instances with fake engines.
import type { BlocksToMove } from '../../../src/core/protocol/lending-effects.ts';

/**
 * A block in flight: the source pages at the start and the target pages; undefined: the creditor does not lend that
 * block.
 */
export interface Parcel {
  readonly from: ArrayLike<number> | undefined;
  readonly to: ArrayLike<number> | undefined;
  /** Pages of a creditor, at either end of a copy. */
  readonly source: number | undefined;
  readonly target: number;
  /** The block can be read once that step has ended. */
  readonly step: number | undefined;
}

export interface Copying extends BlocksToMove {
  readonly debtor: number;
  readonly parcels: Parcel[];
  last: boolean;
}
