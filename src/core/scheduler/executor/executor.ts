// The contents of requests behind the scheduler: tokens for an engine, or lengths alone for a simulator.

import type { rowFailures } from '../../../util/step.ts';
import type { Grammar } from '../../protocol/grammar.ts';
import type { RequestId } from '../../protocol/ids.ts';
import type { GenerationEvent } from '../../protocol/ports.ts';
import type { RequestSize } from '../../protocol/request-size.ts';
import type { LayerRange } from '../../protocol/step-shape.ts';
import type { Sequence } from '../batching/sequence.ts';

/** Receives the events of a request in place of its client, while its prompt is computed for another instance. */
export interface OutputRelay {
  /** The prompt's computation begins. */
  begin(): void;
  /** Holds an event, which the client receives from the other instance. */
  hold(event: GenerationEvent): void;
  /** The events that were held. */
  readonly held: readonly GenerationEvent[];
  /** The prompt is computed: these events follow the held ones. */
  complete(events: readonly GenerationEvent[]): void;
}

/** A request at an instance. */
export interface RunningRequest {
  readonly id: RequestId;
  readonly sequence: Sequence;
  /** Constrains its output; undefined: any token may follow. */
  readonly grammar?: Grammar | undefined;
  /** Its TBT objective; Infinity: none. */
  readonly tbtUsMax: number;
  started: boolean;
  /** It has no further events, but rows in the step in flight. */
  cancelled: boolean;
  /** Output tokens that its client has received, for the next report. */
  reportedOutputs: number;
  /** For a prompt computed elsewhere: the events that its client receives when it starts here. Empty: it has decoded before. */
  received: readonly GenerationEvent[] | undefined;
  relay: OutputRelay | undefined;
  /** Its pipeline group has not formed: the whole prompt is computed here. */
  leftGroup?: boolean;
}

/** A step that ran, or a step run: steps with the same rows, each one token further. */
export interface StepRun {
  readonly startedUs: number;
  /** (steps): time of each step. */
  readonly stepUs: ArrayLike<number>;
}

/** Rows of a result that belong to one request. The object is reused for the next. */
export interface ResultRows {
  /** The first row; scored rows come before the sampled one. */
  readonly row: number;
  readonly scored: number;
  readonly samples: boolean;
}

/** The logits are not finite, or the grammar allows no token. */
export type RowFailure = keyof typeof rowFailures;

export type Emit = (id: RequestId, event: GenerationEvent) => void;

/**
 * The contents of requests. Nothing here decides when or where a request runs. A `Request` is submitted, a `Plan` goes to the driver, and a
 * `Result` returns.
 */
export interface Executor<Request, S extends RunningRequest, Plan, Result> {
  size(request: Request): RequestSize;
  /** @param arrival unique and increasing */
  create(request: Request, arrival: number): S;
  /** A request whose prompt and first token were computed elsewhere. @param firstEvents contain that token; none: the request has decoded before @param inParts its layers were computed by several instances, none of which has all blocks */
  resume(request: Request, arrival: number, firstEvents: readonly GenerationEvent[], inParts: boolean): S;
  /** The request that it was created from. */
  requestOf(running: S): Request;
  /** A resumed request starts: its first token is delivered to the client now. */
  firstTokenDelivered(running: S, nowUs: number): void;
  /** Requests of larger priority run first; batch jobs are below all others. */
  priorityOf(request: Request): number;
  /** TBT objective of a request; Infinity: none. */
  tbtUsMax(request: Request): number;
  /** True if the decode instance judges the request once more when its prompt arrives. */
  rechecks(request: Request): boolean;
  /** The plan of sequences with planned rows, in the order of their results. @param range the layers of one sequence, whose blocks hold these layers alone */
  plan(requests: readonly S[], range?: LayerRange): Plan;
  /** True if blocks or a creditor's answer were missing for the request at this place of the plan, so that nothing of it was computed. */
  sequenceFailed(result: Result, place: number): boolean;
  /** True if the mask of its sampled row was not ready in time: nothing of the step counts for the request. */
  lacksMask(result: Result, place: number): boolean;
  /** Why these rows yield no token; undefined: they do. */
  failure(result: Result, rows: ResultRows): RowFailure | undefined;
  /** Applies the results of a run to a request whose sequence is committed. Returns why it ends; undefined: it continues. */
  commit(running: S, result: Result, rows: ResultRows, run: StepRun, emit: Emit): 'stop' | 'length' | undefined;
  /** Tokens by which a request can grow before it may end: 1 if its end depends on the tokens. */
  growthMax(running: S): number;
}
