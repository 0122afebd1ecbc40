// What the machines hear: every event that an instance or a conductor reacts to, as plain data.
import type { StepResult } from '../util/step.ts';
import type { GenerationEvent, GenerationRequest, RequestId } from './ports.ts';

/** Steps are numbered by the instance that plans them. */
export type StepNumber = number;

/** To an instance. An event about a step that is not in flight, or about a request that is not live, is ignored. */
export type InstanceEvent<Request = GenerationRequest, Result = StepResult> =
  | { readonly kind: 'submit'; readonly request: Request }
  | { readonly kind: 'cancel'; readonly id: RequestId }
  /**
   * `result` is read before `step` returns and may be reused then. `stepUs`, where the executor knows how long each step of a run took
   * (one entry for each that ran): else one step ran, and ended now.
   */
  | {
      readonly kind: 'stepDone';
      readonly step: StepNumber;
      readonly result: Result;
      readonly stepUs?: ArrayLike<number>;
    }
  /** The abort word was seen: nothing of the step counts. Cancels that arrived while it ran are to be told first, or it is planned again with them. */
  | { readonly kind: 'stepAborted'; readonly step: StepNumber }
  /** `message` is for the log alone. */
  | { readonly kind: 'stepFailed'; readonly step: StepNumber; readonly message: string };

/** Index into the conductor's list of instances. */
export type InstanceIndex = number;

/** To a conductor. */
export type ConductorEvent<Request = GenerationRequest> =
  | { readonly kind: 'submit'; readonly request: Request }
  | { readonly kind: 'cancel'; readonly id: RequestId }
  /** An instance speaks about a request that was forwarded to it. */
  | {
      readonly kind: 'heard';
      readonly instance: InstanceIndex;
      readonly id: RequestId;
      readonly event: GenerationEvent;
    }
  /** An instance is gone with all it had. */
  | { readonly kind: 'instanceLost'; readonly instance: InstanceIndex }
  /** Take nothing more; say when all is done. */
  | { readonly kind: 'drain' };
