// Memory of other instances that a batcher can use: blocks that move there free local pages.
import type { Sequence } from './sequence.ts';

/** `pending`: local pages are being freed; `none`: only preemption can free pages. */
export type OffloadState = 'pending' | 'none';

/** Blocks `firstBlock..firstBlock + blocks` of a sequence that other instances hold. */
export interface RemotePrefix {
  readonly firstBlock: number;
  readonly blocks: number;
}

export interface OverflowMemory {
  /** A sequence over capacity reserves its maximum memory before it starts, here or on other instances. */
  readonly reservesWhole: boolean;
  /** Free pages of other instances that blocks of sequences can move to. */
  readonly freePages: number;
  /** Pages that may stay unused for a sequence over capacity, because only whole ranges of blocks move. */
  readonly slackPages: number;
  /**
   * True if the sequence may be admitted when it fits: not while memory is reserved for other sequences, and a sequence
   * over capacity only in its turn.
   */
  admits(sequence: Sequence): boolean;
  /** True if a sequence that another component schedules may take local memory: not while other sequences reserve some. */
  admitsParked(sequence: Sequence): boolean;
  /** The sequence lacks a block, and no cached block can be evicted. */
  offload(sequence: Sequence): OffloadState;
  /**
   * For a prompt over capacity: blocks that other instances still hold from an ended request with the same start. They
   * are not computed again, and no memory is reserved for them.
   */
  remotePrefix(sequence: Sequence): RemotePrefix | undefined;
  /**
   * The sequence starts with these blocks; the blocks before them are in its table. Returns the number of blocks that
   * it does not compute.
   */
  takeRemotePrefix(sequence: Sequence): number;
  /**
   * Releases all blocks that other instances hold for the sequence. @param ended its request has ended: other requests
   * may start with the same blocks
   */
  release(sequence: Sequence, ended: boolean): void;
}
