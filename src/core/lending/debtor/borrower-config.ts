// Configuration, events and counters of a borrower.
import type { InstanceIndex } from '../../protocol/ids.ts';
import type { LendingPolicy } from '../lending-policy.ts';
import type { LendingTimes } from '../times.ts';

export interface BorrowingConfig {
  readonly instance: InstanceIndex;
  readonly policy: LendingPolicy;
  readonly times: LendingTimes;
  readonly stagingBlocks: number;
  /** Host memory for blocks of sequences, local ones and those of debtors; default none. */
  readonly hostBlocks?: number | undefined;
  /** The first page of that host memory, whose pages are consecutive; undefined: blocks have no contents. */
  readonly hostFirstPage?: number | undefined;
  /** Blocks that all other instances together may lend, plus those of the instance's own host memory. */
  readonly borrowableBlocks: number;
  /** Blocks that move together: those of one attention range. */
  readonly rangeBlocks: number;
}

export interface BorrowingTotals {
  readonly lentBlocks: number;
  readonly borrowedBlocks: number;
  readonly remoteBlocks: number;
  /** The part in the remote prefix cache. */
  readonly remoteCachedBlocks: number;
  /** Blocks of local sequences in the instance's own host memory. */
  readonly ownHostBlocks: number;
  readonly movedBlocks: number;
  /** The part that went to host memory, its own or a creditor's. */
  readonly hostBlocks: number;
  readonly vacatedBlocks: number;
  /** Settlements in which it returned blocks, and blocks whose contents they brought home. */
  readonly settlements: number;
  readonly settledBlocks: number;
  readonly lostBlocks: number;
  readonly stalls: number;
  readonly stallUs: number;
}
