// Effects of an instance that borrows memory: messages, block copies, and attention work at creditors.

import type { BlockId, InstanceIndex, MoveNumber, PageRow, StepNumber } from './ids.ts';
import type { Envelope } from './lending-messages.ts';

export interface BlocksToMove {
  readonly move: MoveNumber;
  readonly from: InstanceIndex;
  readonly to: InstanceIndex;
  /**
   * (blocks) At a creditor: the name of the lent block; at home: a row of the page table. Undefined: `FilledBlocks`
   * follow as blocks are computed.
   */
  readonly sources: readonly (BlockId | PageRow)[] | undefined;
  /** (blocks) Where each block goes, in the same terms. */
  readonly targets: readonly (BlockId | PageRow)[];
  readonly purpose: 'borrow' | 'settle';
}

/** Sources of a started move, for its targets from `at` on. A repeated fill copies again. */
export interface FilledBlocks {
  readonly move: MoveNumber;
  readonly at: number;
  /** (blocks) Rows of the page table. */
  readonly sources: readonly PageRow[];
  /**
   * The step that computes these blocks: they are copied layer by layer with it. Undefined: the blocks are computed,
   * copy at once.
   */
  readonly step: StepNumber | undefined;
  /** No further fill follows for this move. */
  readonly last: boolean;
}

export type BorrowerEffect =
  | { readonly kind: 'lending'; readonly envelope: Envelope }
  | ({ readonly kind: 'moveBlocks' } & BlocksToMove)
  | ({ readonly kind: 'fillBlocks' } & FilledBlocks)
  /** (pages) At home: copies received contents to host memory, before any later effect. */
  | { readonly kind: 'copyHome'; readonly from: Int32Array; readonly to: Int32Array }
  /** Cancels the copies of this move that are still in flight. */
  | { readonly kind: 'stopMove'; readonly move: MoveNumber }
  /** From now on the other instance may write to these blocks and query attention over them. `pages`: (blocks, layers). */
  | {
      readonly kind: 'lendBlocks';
      readonly to: InstanceIndex;
      readonly blocks: readonly BlockId[];
      readonly pages: Int32Array;
    }
  /** After this effect, no copy and no attention of the other instance uses these blocks. */
  | { readonly kind: 'takeBackBlocks'; readonly from: InstanceIndex; readonly blocks: readonly BlockId[] };

/** Attention work of one step at one creditor; rows and keys as in `StepShape`. */
export interface RemoteWork {
  readonly creditor: InstanceIndex;
  readonly rows: number;
  readonly keyRows: number;
  readonly decodeRows: number;
  readonly decodeKeys: number;
  /** Keys in host memory; each is read once for each sequence. The only figure for the instance's own host memory. */
  readonly hostTokens: number;
  /** Share of the creditor's step, in thousandths, that this work may take. */
  readonly remoteAttentionPermille: number;
}
