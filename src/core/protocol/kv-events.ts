// What instances publish about their KV blocks: chains of digests, batches of KV events, snapshots.

import type { Int32List } from '../../util/int32-list.ts';
import type { SlotId } from './ids.ts';

/** Equal digests stand for equal blocks behind equal prefixes. */
export interface BlockChain {
  /** Full blocks whose digests are known. */
  readonly blocks: number;
  /** (blocks, 4 words), first block first. Valid until the chain grows. */
  readonly words: Uint32Array;
}

/** Changes in the order in which they came. */
export interface KvEventBatch {
  /** Counts the starts of the instance: with each one its cache is empty and its numbers begin anew. */
  readonly incarnation: number;
  /** 1, 2, 3... in each life. */
  readonly number: number;
  readonly changes: number;
  /** (changes, 4 words): digests. */
  readonly words: Uint32Array;
  /** (changes): 1: in memory, of whichever tier; 2: on SSD alone; 0: removed. */
  readonly stored: Uint8Array;
}

/** What `stored` says. */
export const blockChange = { removed: 0, inMemory: 1, onSsd: 2 } as const;

/** All blocks that an instance holds. */
export interface KvSnapshot {
  readonly incarnation: number;
  /** Of the last journal before it; 0: none. */
  readonly number: number;
  readonly blocks: number;
  /** (blocks, 4 words): digests. */
  readonly words: Uint32Array;
  /** The last so many are on SSD alone. */
  readonly onSsd?: number;
}

/** A block on SSD, and the pages of host memory, one after another from `page` on, that it goes to or comes from. */
export interface SsdBlock {
  readonly slot: SlotId;
  readonly page: number;
  /** Blocks before it plus one. */
  readonly depth: number;
  /** (4 words) */
  readonly digest: Uint32Array;
}

/** The blocks of one sequence as a transfer reads them, by layer group: entry i is block `first` + i. Valid until the machine's next step. */
export interface BlockTableView {
  /** Blocks from the sequence's start to the last one held. */
  readonly length: number;
  readonly groups: readonly { readonly first: number; readonly blocks: Int32List }[];
}
