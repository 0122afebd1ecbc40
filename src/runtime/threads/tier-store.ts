// What keeps blocks of an instance's cache below its pool: pages beside it in memory, and SSD.
import type { StoreCounts } from '../../util/counts.ts';

/** A block on SSD, and the pages of the pool, one after another from `page` on, that it goes to or comes from. */
export interface StoredBlock {
  readonly slot: number;
  readonly page: number;
  /** Blocks before it plus one. */
  readonly depth: number;
  /** (4 words) */
  readonly digest: Uint32Array;
}

/** Results of what was asked of SSD: so many of a job's blocks, the first ones, are where they were to be. */
export interface StoreResult {
  readonly job: number;
  readonly done: number;
}

/** SSD. Jobs of reading go before those of writing; each kind in the order of asking. */
export interface TierStore {
  readonly counts: StoreCounts;
  /** Reading ends with the first block that is not whole. @param job a number of its own, from 1 */
  read(job: number, blocks: readonly StoredBlock[]): void;
  /**
   * To `pages` (blocks, pages of a block), the first page of every block, then the second...; those of `blocks` do not matter. Returns what a
   * step waits for (`Step.arriving`) that computes behind it, until the job ends: it has a block's last page only when all of the block is whole.
   */
  readByLayer(job: number, blocks: readonly StoredBlock[], pages: Int32Array): number;
  write(job: number, blocks: readonly StoredBlock[]): void;
  /** The slot is to hold nothing any more: has no result. */
  erase(job: number, slot: number): void;
  /** Once it returns none of the job's pages is touched any more, and it has no result. */
  stop(job: number): void;
  results(): readonly StoreResult[];
}
