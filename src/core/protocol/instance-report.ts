// The heartbeat of an instance to the conductor, and the roles of instances.

import type { RequestId } from './ids.ts';

/** What an instance says of itself at equal distances. Late and doubled ones change nothing; after a lost one the next says all. */
export interface InstanceReport {
  readonly incarnation: number;
  /** 1, 2, 3... in each life. */
  readonly number: number;
  /** The last journal that has left. */
  readonly journal: number;
  readonly requests: readonly ReportedRequest[];
}
export interface ReportedRequest {
  readonly id: RequestId;
  /** Tokens of output that its client has been told of here; 0 where it has not been started, or does not speak to its client. */
  readonly outputs: number;
  /** There is nothing of it yet but memory for its prompt. */
  readonly awaited: boolean;
}

/** What an instance computes: prompts for others, what comes after the prompts of others, or both for its own requests; a store computes nothing, and keeps what others have computed. */
export type InstanceRole = 'prefill' | 'decode' | 'mixed' | 'store';
