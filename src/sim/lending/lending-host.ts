// What lending in a simulated cluster is given and counts: its settings, and the cluster as it sees it.

import type { LengthEvent, LengthInstance } from '../../core/instance/length-instance.ts';
import type { LendingTimes } from '../../core/lending/times.ts';
import type { SimulatedExecutor } from '../engine/executor.ts';
import type { Streams } from '../engine/streams.ts';
import type { FaultLayer } from '../faults/fault-layer.ts';
import type { Network } from '../network/network.ts';

export type ToldEvent = LengthEvent;

export interface ClusterLendingConfig {
  readonly times: LendingTimes;
  /** Cycles of debts are settled (DGFM). */
  readonly settles: boolean;
  readonly settleBlocksMin: number;
  readonly settleBlocksMax: number;
  readonly seed: number;
  readonly remoteAttentionPermilleMax: number;
  /** Of one row, over all layers: its query and its partial. */
  readonly queryRowBytes: number;
  readonly layers: number;
  /** (instances): to move a token's keys and values between devices and host memory; undefined where none is lent. */
  readonly hostTokenUs?: readonly number[] | undefined;
}

export interface Debt {
  readonly debtor: number;
  readonly creditor: number;
  readonly blocks: number;
}

export interface LendingCounts {
  loans: number;
  recalls: number;
  refusals: number;
  settlements: number;
  /** Queries that were asked of the gManager. */
  queries: number;
}

/** The cluster that lends; what is told to an instance goes through its driver. */
export interface LendingHost {
  readonly instances: readonly LengthInstance[];
  readonly executors: readonly SimulatedExecutor[];
  readonly network: Network;
  /** What leaves of prompts. */
  readonly streams: Pick<Streams, 'reads'>;
  /** Undefined: nothing goes wrong. */
  faults(): Pick<FaultLayer, 'isUp' | 'incarnationOf' | 'reaches' | 'aboutMemory'> | undefined;
  nowUs(): number;
  setNowUs(nowUs: number): void;
  /** An instance hears it at that time. */
  tell(nowUs: number, instance: number, event: ToldEvent): void;
}
