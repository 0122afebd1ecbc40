// The trace of a request: where it was placed and why, what was predicted, and what happened.

import type { InstanceIndex, RequestId } from './ids.ts';
import type { FailureCode, RefusalCause } from './refusal-cause.ts';

/** Predictions for a request when it is accepted. */
export interface Prediction {
  readonly ttftUs: number;
  readonly tbtUs: number;
  readonly outputTokens: number;
  /** TBT over the strictest TBT bound of the decoding batch. */
  readonly decodeLoad: number;
}

/** An instance as placement saw it. */
export interface PlacementCandidate {
  readonly instance: InstanceIndex;
  /** Requests placed on it. */
  readonly requests: number;
  /** Leading tokens of the prompt in its cache, by the prefix index. */
  readonly matchedTokens: number;
  /** Predicted wait for the prefill. */
  readonly queueUs: number;
  /** Predicted duration of the prefill. */
  readonly prefillUs: number;
}

/** A step that computed tokens `from` to `from + rows`, or a fetch of them from another instance. Times since 1970. */
export interface StepTrace {
  readonly kind: 'step' | 'fetch';
  readonly instance: InstanceIndex;
  readonly startedUs: number;
  readonly endedUs: number;
  readonly from: number;
  readonly rows: number;
  readonly aborted: boolean;
}

/** The routing decision of one attempt. */
export interface PlacementTrace {
  readonly atUs: number;
  /** The up instances that compute prompts. */
  readonly candidates: readonly PlacementCandidate[];
  /** Undefined: no instance was left, or a batch job waits for memory. */
  readonly instance: InstanceIndex | undefined;
  /** The decode instance, when it is another one. */
  readonly decodeAt: InstanceIndex | undefined;
  /** The pipeline group that computes the prompt. */
  readonly group: readonly InstanceIndex[] | undefined;
  /** The instance that sends a prefix. */
  readonly fetchedFrom: InstanceIndex | undefined;
  readonly fetchedTokens: number;
  /** A decode instance computes the prompt inline. */
  readonly inline: boolean;
  /** Predicted wait for the prefill, and its duration; undefined for batch jobs. */
  readonly waitUs: number | undefined;
  readonly prefillUs: number | undefined;
  /** Undefined for a request without an SLO. */
  readonly predicted: Prediction | undefined;
}

/** Blocks of a prompt by the lookup at its instance: hits, and misses by reason. */
export interface PromptBlockCounts {
  readonly hits: number;
  readonly neverSeen: number;
  readonly evicted: number;
  readonly elsewhere: number;
  readonly partial: number;
}

export type RequestState = 'queued' | 'prefill' | 'decode' | 'finished' | 'failed' | 'refused' | 'cancelled';

/** Times are microseconds on the clock of the conductor's thread. */
export interface RequestTrace {
  readonly id: RequestId;
  readonly state: RequestState;
  readonly promptTokens: number;
  readonly maxTokens: number;
  readonly outputTokens: number;
  readonly cachedTokens: number | undefined;
  readonly blocks: PromptBlockCounts | undefined;
  readonly batch: boolean;
  readonly sloClass: string | undefined;
  readonly trace: string | undefined;
  readonly tenant: string | undefined;
  readonly priority: number;
  /** The first steps, where steps are recorded. */
  readonly steps: readonly StepTrace[];
  /** Number of later steps. */
  readonly stepsOmitted: number;
  /** One for each attempt, in order. */
  readonly placements: readonly PlacementTrace[];
  readonly submittedUs: number;
  readonly startedUs: number | undefined;
  /** End of the prefill, when another instance decodes. */
  readonly prefilledUs: number | undefined;
  readonly firstTokenUs: number | undefined;
  readonly lastTokenUs: number | undefined;
  readonly endedUs: number | undefined;
  readonly end:
    | { readonly kind: 'finished'; readonly reason: 'stop' | 'length' }
    | {
        readonly kind: 'failed';
        readonly code: FailureCode;
        readonly message: string;
        readonly cause: RefusalCause | undefined;
      }
    | undefined;
}
