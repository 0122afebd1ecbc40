// Configuration, events and counters of a borrower.
import type { InstanceIndex } from '../../protocol/ids.ts';
import type { LendingPolicy } from '../lending-policy.ts';
import type { LendingTimes } from '../times.ts';

export interface BorrowingConfig {
  readonly instance: InstanceIndex;
  readonly policy: LendingPolicy;
  readonly times: LendingTimes;
  readonly stagingBlocks: number;
  /** Host memory for KV beyond the prefix cache, for local sequences and debtors; default none. */
  readonly hostBlocks?: number | undefined;
  /** With real contents: the first page of that host memory; blocks follow one another. */
  readonly hostFirstPage?: number | undefined;
  /**
   * Prompts that no single instance could hold are handed off too: their receive buffer is reserved before they start.
   * Not with pipeline prefill.
   */
  readonly handsOff?: boolean | undefined;
  /** Blocks that all other instances together may lend, plus those of the instance's own host memory. */
  readonly borrowableBlocks: number;
  /** Blocks that move together: those of one attention range. */
  readonly rangeBlocks: number;
}

export interface BorrowingTotals {
  readonly lentBlocks: number;
  readonly borrowedBlocks: number;
  readonly remoteBlocks: number;
  /** The part that no sequence holds and that is kept as cache. */
  readonly keptBlocks: number;
  /** Blocks of local sequences in the instance's own host memory. */
  readonly ownHostBlocks: number;
  readonly movedBlocks: number;
  /** The part that went to host memory, its own or a creditor's. */
  readonly hostBlocks: number;
  readonly vacatedBlocks: number;
  readonly homeBlocks: number;
  readonly lostBlocks: number;
  readonly stalls: number;
  readonly stallUs: number;
}
