// Copies of lent blocks on their way between instances with fake engines.
import type { BlocksToMove } from '../../../src/core/protocol/lending-effects.ts';

/** A block on its way: pages that were its own and are to be when it was told; undefined: its creditor does not lend that block. */
export interface Parcel {
  readonly from: ArrayLike<number> | undefined;
  readonly to: ArrayLike<number> | undefined;
  /** Of a creditor, at either end. */
  readonly source: number | undefined;
  readonly target: number;
  /** It can be read once that step is over. */
  readonly step: number | undefined;
}

export interface Copying extends BlocksToMove {
  readonly debtor: number;
  readonly parcels: Parcel[];
  last: boolean;
}
