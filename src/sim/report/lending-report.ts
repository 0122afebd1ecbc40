// Figures of lending in a simulated run.
import type { ClusterLending } from '../engine/lending/cluster-lending.ts';
import type { Outcome } from './outcome.ts';

export interface LendingReport {
  readonly loans: number;
  readonly queries: number;
  readonly refusals: number;
  readonly recalls: number;
  readonly settlements: number;
  /** Blocks that settlements brought home, summed over debtors. */
  readonly settledBlocks: number;
  /** Blocks moved to creditors, moved after a recall, and lost with their loans. */
  readonly movedBlocks: number;
  readonly vacatedBlocks: number;
  /** Moved blocks that went to host memory, the instance's own or a creditor's. */
  readonly hostBlocks: number;
  readonly lostBlocks: number;
  /** Times that a sequence waited for a block to grow into, and their total duration. */
  readonly stalls: number;
  readonly stallMs: number;
  /** Queries and partial results. */
  readonly queryBytes: number;
  /** Keys and values that travelled to the rows of a step instead. */
  readonly keyBytes: number;
  /** Bytes of lending per output token. */
  readonly remoteBytesPerToken: number;
}

export function lendingReport({ counts, attention, totals }: ClusterLending, outcome: Outcome): LendingReport {
  const sum = (of: (each: (typeof totals)[number]) => number) => totals.reduce((all, each) => all + of(each), 0);
  const { borrow, settle } = outcome.bytesMoved;
  const { queryBytes, keyBytes } = attention;
  const bytes = borrow + settle + queryBytes + keyBytes;
  return {
    ...counts,
    settledBlocks: sum(({ settledBlocks: homeBlocks }) => homeBlocks),
    movedBlocks: sum(({ movedBlocks }) => movedBlocks),
    hostBlocks: sum(({ hostBlocks }) => hostBlocks),
    vacatedBlocks: sum(({ vacatedBlocks }) => vacatedBlocks),
    lostBlocks: sum(({ lostBlocks }) => lostBlocks),
    stalls: sum(({ stalls }) => stalls),
    stallMs: sum(({ stallUs }) => stallUs) / 1000,
    queryBytes,
    keyBytes,
    remoteBytesPerToken: outcome.outputTokens === 0 ? 0 : bytes / outcome.outputTokens,
  };
}
