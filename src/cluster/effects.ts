// What the machines want done: every effect of an instance or a conductor, as plain data for a driver.
import type { StepShape } from '../policy/cost/step-shape.ts';

import type { Step } from '../util/step.ts';
import type { InstanceIndex, StepNumber } from './messages.ts';
import type { GenerationEvent, GenerationRequest, RequestId } from './ports.ts';

interface Emit {
  readonly kind: 'emit';
  readonly id: RequestId;
  readonly event: GenerationEvent;
}

/** For the log: an event came late, twice or about nothing known; it changed nothing. */
interface Ignored {
  readonly kind: 'ignored';
  readonly message: string;
}

export type InstanceEffect<Plan = Step> =
  | Emit
  | Ignored
  /**
   * Run it, or up to `stepsMax` steps of its rows one after another, each a token further; answer with stepDone, stepAborted or stepFailed.
   * The arrays of `plan` are reused: valid until that answer.
   */
  | {
      readonly kind: 'runStep';
      readonly step: StepNumber;
      readonly plan: Plan;
      readonly predictedUs: number;
      readonly shape: StepShape;
      readonly stepsMax: number;
    }
  /** Answer stepDone when the step of the run ends that runs now. */
  | { readonly kind: 'endRun'; readonly step: StepNumber }
  /** Set the abort word of this step, if it still runs. It may end as stepDone all the same. */
  | { readonly kind: 'abortStep'; readonly step: StepNumber }
  /** For the log: a step failed and took its requests with it. */
  | { readonly kind: 'fault'; readonly message: string };

export type ConductorEffect<Request = GenerationRequest> =
  | Emit
  | Ignored
  | { readonly kind: 'forward'; readonly instance: InstanceIndex; readonly request: Request }
  /** With `interrupt`, set the abort word too: the step that runs is likely the request's own prefill. */
  | { readonly kind: 'cancel'; readonly instance: InstanceIndex; readonly id: RequestId; readonly interrupt: boolean }
  | { readonly kind: 'drained' };
