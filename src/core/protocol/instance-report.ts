// Heartbeats from an instance to its conductor, and the roles of instances.

import type { RequestId } from './ids.ts';

/**
 * Heartbeat, sent at a fixed interval. A late or duplicate one changes nothing. Each is complete, so a lost one is not
 * repeated.
 */
export interface InstanceReport {
  readonly incarnation: number;
  /** 1, 2, 3... in each incarnation. */
  readonly number: number;
  /** Number of the last KV event batch sent. */
  readonly kvEventNumber: number;
  readonly requests: readonly ReportedRequest[];
}

export interface ReportedRequest {
  readonly id: RequestId;
  /**
   * Output tokens sent to the client from here; 0 before the start, and on an instance that only computes the prompt.
   */
  readonly outputs: number;
  /** The instance has only reserved memory for the prompt, and has not received it. */
  readonly receiving: boolean;
}

/**
 * prefill: computes prompts for decode instances. decode: decodes prompts of prefill instances. mixed: does both for
 * its own requests. store: computes nothing, and keeps KV blocks that others have computed.
 */
export type InstanceRole = 'prefill' | 'decode' | 'mixed' | 'store';
