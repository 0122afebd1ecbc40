// Time-outs and periods of the lending machines, in microseconds.

export interface LendingTimes {
  /** Heartbeat period. */
  readonly heartbeatUs: number;
  /** Silence after which the gManager forgets an instance. */
  readonly silentUs: number;
  /** A creditor reclaims a loan that was not renewed for this long. */
  readonly leaseUs: number;
  /** The debtor stops using a loan this much earlier: the bound on clock drift during one lease. */
  readonly leaseGuardUs: number;
  /** Renewal period, and the delay before an unacknowledged return is sent again. */
  readonly renewUs: number;
  /** Time-out of a query or a borrow request. */
  readonly answerUs: number;
  /** Requests to one creditor before the next is tried. */
  readonly attemptsMax: number;
  /** Back-off after a round in which no creditor lent. */
  readonly retryUs: number;
  /** How long a creditor holds admission after the last request of a reservation. */
  readonly holdUs: number;
  /** Time for a debtor to return recalled blocks; then its lease is not renewed. */
  readonly recallUs: number;
  /** Period of the search for debt cycles. */
  readonly settleUs: number;
  /** Time-out of the prepare phase. */
  readonly prepareUs: number;
  /** Delay before a prepared member asks for the outcome, and before the gManager resends its decision. */
  readonly inDoubtUs: number;
  /** How long staged contents wait for memory at home before they count as lost. */
  readonly homeUs: number;
  /** How long blocks of an ended sequence stay in the remote prefix cache. */
  readonly remoteCacheUs: number;
}

/** For networks with latencies up to milliseconds and steps of tens of milliseconds. */
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
