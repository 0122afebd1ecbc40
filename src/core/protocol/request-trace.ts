// The recorded life of a request: where it was placed and why, what was predicted, and what happened.

import type { InstanceIndex, RequestId } from './ids.ts';
import type { FailureCode, RefusalCause } from './refusal-cause.ts';

/** What a request is predicted to meet. */
export interface Prediction {
  readonly ttftUs: number;
  readonly tbtUs: number;
  readonly outputTokens: number;
  /** TBT over what may be waited by the one who may wait least. */
  readonly decodeLoad: number;
}

/** An instance as it was seen when the request was placed. */
export interface PlacementCandidate {
  readonly instance: InstanceIndex;
  /** Requests that it had. */
  readonly requests: number;
  /** Leading tokens of the prompt that it was known to have. */
  readonly matchedTokens: number;
  /** Until the prefill would have begun there, and how long it would have taken. */
  readonly queueUs: number;
  readonly prefillUs: number;
}

/** Tokens `from` to `from + rows` were computed in a step, or fetched from another instance; times since 1970. */
export interface StepTrace {
  readonly kind: 'step' | 'fetch';
  readonly instance: InstanceIndex;
  readonly startedUs: number;
  readonly endedUs: number;
  readonly from: number;
  readonly rows: number;
  readonly aborted: boolean;
}

/** One decision: where a try of the request goes. */
export interface PlacementTrace {
  readonly atUs: number;
  /** Those that took prompts. */
  readonly candidates: readonly PlacementCandidate[];
  /** Undefined: none was left, or a batch job has to wait for room. */
  readonly instance: InstanceIndex | undefined;
  /** Who decodes, where that is another one. */
  readonly decodeAt: InstanceIndex | undefined;
  /** Who computes the prompt with it. */
  readonly group: readonly InstanceIndex[] | undefined;
  /** Whose prefix is fetched, and how much of it. */
  readonly fetchedFrom: InstanceIndex | undefined;
  readonly fetchedTokens: number;
  /** The prompt is computed where it decodes, though others compute prompts. */
  readonly inline: boolean;
  /** Predicted: until the prefill begins, and for how long it runs; undefined of batch jobs. */
  readonly waitUs: number | undefined;
  readonly prefillUs: number | undefined;
  /** What admission foresaw, where it was asked. */
  readonly predicted: Prediction | undefined;
}

/** Blocks of the prompt as its instance found them: in its cache, or why not. */
export interface PromptBlockCounts {
  readonly hits: number;
  readonly neverSeen: number;
  readonly evicted: number;
  readonly elsewhere: number;
  readonly partial: number;
}
export type RequestState = 'queued' | 'prefill' | 'decode' | 'finished' | 'failed' | 'refused' | 'cancelled';

/** Times are by the clock of the conductor's thread. */
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
  readonly priority: number;
  /** Where steps are recorded, the first ones; of the others it is said how many they were. */
  readonly steps: readonly StepTrace[];
  readonly stepsOmitted: number;
  /** In order, the first try first. */
  readonly placements: readonly PlacementTrace[];
  readonly submittedUs: number;
  readonly startedUs: number | undefined;
  /** Where another instance decodes: when it was computed. */
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
