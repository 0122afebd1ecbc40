// Faults by name, as probabilities: what a chaos run injects into the network and the instances.

export interface LendingFaults {
  /** Of messages. */
  readonly lossRatio: number;
  readonly duplicateRatio: number;
  /** Delayed by `delayUsMean` on average, so that others overtake them. */
  readonly delayRatio: number;
  readonly delayUsMean: number;
  /** Between faults of each kind below, on average. */
  readonly partitionUsMean: number;
  readonly crashUsMean: number;
  readonly slowUsMean: number;
  readonly gmanagerRestartUsMean: number;
  /** How long partitions, outages and pauses last on average. */
  readonly outageUsMean: number;
  /** Of crashed instances, those that never come back. */
  readonly deathRatio: number;
}

export const roughFaults: LendingFaults = {
  lossRatio: 0.06,
  duplicateRatio: 0.1,
  delayRatio: 0.12,
  delayUsMean: 500_000,
  partitionUsMean: 4_000_000,
  crashUsMean: 2_500_000,
  slowUsMean: 3_000_000,
  gmanagerRestartUsMean: 2_500_000,
  outageUsMean: 600_000,
  deathRatio: 0.15,
};

export const faultNames = [
  'loss',
  'duplication',
  'delay',
  'partition',
  'crash',
  'restart',
  'slow node',
  'gManager restart',
  'two gManagers at once',
] as const;

export type FaultName = (typeof faultNames)[number];
