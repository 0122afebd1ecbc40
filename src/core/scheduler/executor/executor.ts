// What an instance works on, as its machine sees it: tokens for an engine, or lengths alone for a simulator.

import type { RequestId } from '../../protocol/ids.ts';
import type { GenerationEvent } from '../../protocol/ports.ts';
import type { RequestSize } from '../../protocol/request-size.ts';
import type { LayerRange } from '../../protocol/step-shape.ts';
import type { Sequence } from '../batching/sequence.ts';

/** Receives the events of a request, in place of its client, while its prompt is computed for another instance. */
export interface OutputRelay {
  /** The prompt's computation begins. */
  begin(): void;
  /** An event that the client receives from the other instance. */
  hold(event: GenerationEvent): void;
  /** The events that were held. */
  readonly held: readonly GenerationEvent[];
  /** The prompt is computed: these events follow the ones held. */
  complete(events: readonly GenerationEvent[]): void;
}

/** A request at an instance. */
export interface RunningRequest {
  readonly id: RequestId;
  readonly sequence: Sequence;
  /** Its TBT objective; Infinity: none. */
  readonly tbtUsMax: number;
  started: boolean;
  /** It has no further events, but rows in the step that runs. */
  cancelled: boolean;
  /** Tokens of output that its client has received, as the next report says. */
  reportedOutputs: number;
  /** Of a prompt computed elsewhere: what its client receives when it starts here. Empty: it has decoded before. */
  received: readonly GenerationEvent[] | undefined;
  relay: OutputRelay | undefined;
}

/** Steps that ran: more than one only where each had the same rows, one token further. */
export interface StepRun {
  readonly startedUs: number;
  /** (steps): how long each took. */
  readonly stepUs: ArrayLike<number>;
}

/** Rows of a result that belong to one request. Reused for the next. */
export interface ResultRows {
  /** The first one, the scored rows before the sampled one. */
  readonly row: number;
  readonly scored: number;
  readonly samples: boolean;
}

export type Emit = (id: RequestId, event: GenerationEvent) => void;

/**
 * The contents of requests, behind the machine's decisions. Nothing here decides when or where something runs.
 * `Request` comes in, `Plan` goes to the executor, `Result` comes back.
 */
export interface Executor<Request, S extends RunningRequest, Plan, Result> {
  size(request: Request): RequestSize;
  /** @param arrival unique and rising */
  serve(request: Request, arrival: number): S;
  /** A request whose prompt, and the first token that `held` tells (none: it has decoded for a while), were computed elsewhere. @param whole here alone: nobody of those who computed it has all layers of it */
  resume(request: Request, arrival: number, held: readonly GenerationEvent[], whole: boolean): S;
  /** What it was made of. */
  requestOf(served: S): Request;
  /** A resumed request joins: its client hears the first token now. */
  joined(served: S, nowUs: number): void;
  /** What a resumed request may wait for each token; Infinity: as long as it takes. */
  tbtUsMax(request: Request): number;
  /** Lays out sequences with planned rows, in the order that their results are to come back. @param range of one, in blocks that were kept for these layers alone */
  plan(requests: readonly S[], range?: LayerRange): Plan;
  /** Did a creditor not answer for the request at this place of the plan? Then nothing of it was computed. */
  isUnanswered(result: Result, place: number): boolean;
  /** Did any of these rows break? */
  failed(result: Result, rows: ResultRows): boolean;
  /** Takes what a run computed for a request, whose sequence is committed; says whether that was its last token. */
  commit(served: S, result: Result, rows: ResultRows, run: StepRun, emit: Emit): 'stop' | 'length' | undefined;
  /** How many tokens a request may grow by before it could end: 1 where only its tokens tell. */
  growthMax(served: S): number;
}
