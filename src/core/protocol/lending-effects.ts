// Effects of an instance that borrows memory: messages, block copies, and attention work at creditors.

import type { BlockId, InstanceIndex, MoveNumber, PageRow, StepNumber } from './ids.ts';
import type { Envelope } from './lending-messages.ts';

export interface BlocksToMove {
  readonly move: MoveNumber;
  readonly from: InstanceIndex;
  readonly to: InstanceIndex;
  /** (blocks): at a creditor the name of the block that it lent, at the instance whose they are a row of its page table; undefined: told as they are computed (`FilledBlocks`). */
  readonly sources: readonly (BlockId | PageRow)[] | undefined;
  /** (blocks): where each goes, likewise. */
  readonly targets: readonly (BlockId | PageRow)[];
  readonly purpose: 'borrow' | 'settle';
}

/** Of a move that has been started, where its targets from `at` on come from: one that is told again goes again. */
export interface FilledBlocks {
  readonly move: MoveNumber;
  readonly at: number;
  /** (blocks): rows of the page table. */
  readonly sources: readonly PageRow[];
  /** The step about to run computes them: they leave layer by layer, as it does; undefined: at once. */
  readonly step: StepNumber | undefined;
  /** All that was told is what goes. */
  readonly last: boolean;
}
export type BorrowerEffect =
  | { readonly kind: 'lending'; readonly envelope: Envelope }
  | ({ readonly kind: 'moveBlocks' } & BlocksToMove)
  | ({ readonly kind: 'fillBlocks' } & FilledBlocks)
  /** (pages) both, at home: contents that came for a place in host memory. */
  | { readonly kind: 'copyHome'; readonly from: Int32Array; readonly to: Int32Array }
  /** Nobody wants what is under way of this move. */
  | { readonly kind: 'stopMove'; readonly move: MoveNumber }
  /** Another instance may write to these blocks, and have attention computed over them. (blocks, layers) their pages. */
  | {
      readonly kind: 'lendBlocks';
      readonly to: InstanceIndex;
      readonly blocks: readonly BlockId[];
      readonly pages: Int32Array;
    }
  /** Nothing reads or writes these blocks for it any more once this is carried out. */
  | { readonly kind: 'takeBackBlocks'; readonly from: InstanceIndex; readonly blocks: readonly BlockId[] };

/** Rows and keys as in `StepShape`, of one creditor. */
export interface RemoteWork {
  readonly creditor: InstanceIndex;
  readonly rows: number;
  readonly keyRows: number;
  readonly decodeRows: number;
  readonly decodeKeys: number;
  /** Of the keys, those in host memory: they are read once for each sequence. Of its own host memory that is all there is to say. */
  readonly hostTokens: number;
  /** Of the creditor's step, in thousandths, that this debtor's work may take. */
  readonly remoteAttentionPermille: number;
}
