// What instances publish about their KV blocks: chains of digests, batches of KV events, snapshots.

import type { Int32List } from '../../util/int32-list.ts';
import type { SlotTable } from '../../util/step.ts';
import type { SlotId } from './ids.ts';

/** Equal digests stand for equal blocks behind equal prefixes. */
export interface BlockChain {
  /** Full blocks with known digests. */
  readonly blocks: number;
  /** (blocks, 4 words), first block first. Valid until the chain grows. */
  readonly words: Uint32Array;
}

/** Changes in order. */
export interface KvEventBatch {
  /** Counts the starts of the instance: each one begins with an empty cache and new batch numbers. */
  readonly incarnation: number;
  /** 1, 2, 3... in each incarnation. */
  readonly number: number;
  readonly changes: number;
  /** (changes, 4 words): digests. */
  readonly words: Uint32Array;
  /** (changes): 1: in device or host memory; 2: on SSD only; 0: removed. */
  readonly stored: Uint8Array;
}

/** The values of `stored`. */
export const blockChange = { removed: 0, inMemory: 1, onSsd: 2 } as const;

/** All blocks that an instance holds. */
export interface KvSnapshot {
  readonly incarnation: number;
  /** Number of the last batch before it; 0: none. */
  readonly number: number;
  readonly blocks: number;
  /** (blocks, 4 words): digests. */
  readonly words: Uint32Array;
  /** The last `onSsd` blocks are on SSD only. */
  readonly onSsd?: number;
}

/** A block on SSD, and its consecutive pages of host memory, from `page` on. */
export interface SsdBlock {
  readonly slot: SlotId;
  readonly page: number;
  /** Number of blocks before it in its chain, plus one. */
  readonly depth: number;
  /** (4 words) */
  readonly digest: Uint32Array;
}

/**
 * The blocks of one sequence as a transfer reads them, by layer group: entry i is block `first` + i. Valid until the
 * instance's next step.
 */
export interface BlockTableView {
  /** Blocks from the sequence's start to the last one held. */
  readonly length: number;
  readonly groups: readonly { readonly first: number; readonly blocks: Int32List }[];
  /** Kept tokens of a sequence with a KV budget, in the sparse layer group. */
  readonly slots?: SlotTable | undefined;
}
