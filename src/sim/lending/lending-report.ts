// What came of lending in a simulated run, as figures.
import type { Outcome } from '../report/outcome.ts';
import type { ClusterLending } from './cluster-lending.ts';

export interface LendingReport {
  readonly loans: number;
  readonly queries: number;
  readonly refusals: number;
  readonly recalls: number;
  readonly settlements: number;
  /** Blocks that came home by settlements, of each debtor. */
  readonly settledBlocks: number;
  /** Blocks that went to creditors, that moved because they were wanted back, and that were lost with their loans. */
  readonly movedBlocks: number;
  readonly vacatedBlocks: number;
  /** Of those that went out, to host memory: their own instance's or a creditor's. */
  readonly hostBlocks: number;
  readonly lostBlocks: number;
  /** Times that a sequence had no room to grow, and how long that was in all. */
  readonly stalls: number;
  readonly stallMs: number;
  /** Queries and partials. */
  readonly queryBytes: number;
  /** All bytes of lending for a token of output. */
  readonly remoteBytesPerToken: number;
}

export function lendingReport({ counts, guests, totals }: ClusterLending, outcome: Outcome): LendingReport {
  const sum = (of: (each: (typeof totals)[number]) => number) => totals.reduce((all, each) => all + of(each), 0);
  const { borrow, settle } = outcome.bytesMoved;
  const { queryBytes } = guests;
  return {
    ...counts,
    settledBlocks: sum(({ homeBlocks }) => homeBlocks),
    movedBlocks: sum(({ movedBlocks }) => movedBlocks),
    hostBlocks: sum(({ hostBlocks }) => hostBlocks),
    vacatedBlocks: sum(({ vacatedBlocks }) => vacatedBlocks),
    lostBlocks: sum(({ lostBlocks }) => lostBlocks),
    stalls: sum(({ stalls }) => stalls),
    stallMs: sum(({ stallUs }) => stallUs) / 1000,
    queryBytes,
    remoteBytesPerToken: outcome.outputTokens === 0 ? 0 : (borrow + settle + queryBytes) / outcome.outputTokens,
  };
}
