// How long the lending machines wait for what: one table for all of them.

export interface LendingTimes {
  /** Between heartbeats. */
  readonly heartbeatUs: number;
  /** An instance not heard for so long is forgotten by the gManager. */
  readonly silentUs: number;
  /** A creditor reclaims what was not renewed for so long. */
  readonly leaseUs: number;
  /** The debtor stops using a loan so much earlier: clocks may run apart by this in one lease. */
  readonly leaseGuardUs: number;
  /** Between renewals, and before a return is said again. */
  readonly renewUs: number;
  /** For an answer to a query or a request to borrow. */
  readonly answerUs: number;
  /** How often a request to borrow is said before the next creditor is tried. */
  readonly attemptsMax: number;
  /** Before asking again when nobody lent. */
  readonly retryUs: number;
  /** That a creditor lets nobody in, for one who gathers, after it was last asked. */
  readonly holdUs: number;
  /** For a debtor to give back what was recalled, before its lease is renewed no more. */
  readonly recallUs: number;
  /** Between attempts to find a cycle. */
  readonly settleUs: number;
  /** For all members to be prepared. */
  readonly prepareUs: number;
  /** Before one that is prepared asks what was decided, and before the gManager says its decision again. */
  readonly inDoubtUs: number;
  /** For the contents of settled blocks to find a place at home, before they are given up. */
  readonly homeUs: number;
  /** That blocks of an ended sequence stay where they are as cache, unless their places are wanted before. */
  readonly remoteCacheUs: number;
}

/** For a network of milliseconds at most and steps of tens of milliseconds. */
export const defaultLendingTimes: LendingTimes = {
  heartbeatUs: 250_000,
  silentUs: 1_500_000,
  leaseUs: 2_000_000,
  leaseGuardUs: 20_000,
  renewUs: 400_000,
  answerUs: 100_000,
  attemptsMax: 3,
  retryUs: 300_000,
  holdUs: 2_000_000,
  recallUs: 1_000_000,
  settleUs: 500_000,
  prepareUs: 500_000,
  inDoubtUs: 300_000,
  homeUs: 4_000_000,
  remoteCacheUs: 60_000_000,
};
