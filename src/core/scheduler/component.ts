// The contract between an instance and its components: hand-off, prefix fetch, migration, pipeline prefill, lending, pinning, attention workers, sparse KV and grammars implement it.

import type { BlockCache } from '../kvcache/block-cache.ts';
import type { KvCaches } from '../kvcache/kv-caches.ts';
import type { InstanceEffect } from '../protocol/effects.ts';
import type { InstanceEvent } from '../protocol/events.ts';
import type { RequestId } from '../protocol/ids.ts';
import type { RemoteWork } from '../protocol/lending-effects.ts';
import type { GenerationEvent, InstanceSnapshot } from '../protocol/ports.ts';
import type { FailureCode } from '../protocol/refusal-cause.ts';
import type { RequestSize } from '../protocol/request-size.ts';
import type { LayerRange } from '../protocol/step-shape.ts';
import type { Batcher } from './batching/batcher.ts';
import type { OverflowMemory } from './batching/overflow-memory.ts';
import type { SequencePlacement } from './batching/sequence-placement.ts';
import type { Executor, RowFailure, RunningRequest } from './executor/executor.ts';
import type { InstanceConfig } from './instance-config.ts';
import type { InstanceTotals } from './instance-totals.ts';
import type { RequestTable } from './request-table.ts';
import type { EffectSink, InFlight, PlannedStep } from './step-in-flight.ts';

export interface Identified {
  readonly id: RequestId;
}

export type Submission<Request> = Extract<InstanceEvent<Request, never>, { kind: 'submit' }>;

/** The instance where a request continues, the prefix that it fetches first, and the one that it offers. */
export type Continuation = Pick<Submission<never>, 'decodeAt' | 'decodeIncarnation' | 'prefix' | 'offer'>;

/** Why a request leaves the instance: its client cancelled it, its output ended, it failed, or another instance continues it. */
export type LeaveReason = 'cancelled' | 'finished' | 'failed' | 'handedOff';

/** What every component may use of its instance. Constructors do not read `scheduler`, `requests` and `executor`, which are set later. */
export interface InstanceContext<Request extends Identified, S extends RunningRequest> extends EffectSink<Request> {
  readonly config: InstanceConfig;
  readonly nowUs: number;
  /** The caches of the instance, and the first: most components are of instances with one. */
  readonly kvCaches: KvCaches;
  readonly kvCache: BlockCache;
  readonly scheduler: Batcher;
  readonly requests: RequestTable<S>;
  /** Its plans go to the driver unchanged. */
  readonly executor: Executor<Request, S, never, unknown>;
  readonly totals: InstanceTotals;
  /** The step in flight. */
  readonly flight: InFlight<S> | undefined;
  /** Tokens of the longest request that fits here, in borrowed memory, or at an instance that continues it. */
  readonly capacityTokens: number;

  /** Sends the event to the request's client, and all earlier KV events to the conductors. */
  notify(id: RequestId, event: GenerationEvent): void;
  /** Sends the effect to the conductor, and all earlier KV events. */
  announce(effect: Extract<InstanceEffect<never, never>, { kind: 'prefilled' | 'released' }>): void;
  /** Logs and counts an event that changed nothing. */
  ignore(event: InstanceEvent<Request, unknown>, why: string): void;

  /** Creates a request for the scheduler; it is not scheduled yet. */
  create(request: Request): S;
  /** The same for a prompt computed elsewhere. @param inParts its layers were computed by several instances, none of which has all blocks */
  resume(request: Request, events: readonly GenerationEvent[], inParts: boolean): S;
  /** Schedules the request: it joins the waiting list. */
  schedule(request: Request, continuation: Continuation): void;
  /** The prompt's computation begins. */
  begin(running: S): void;
  /** The client has cancelled the request. */
  cancel(id: RequestId): void;
  /** Another instance has the request, or the stream to that instance is broken. */
  handedOff(running: S): void;
  /** Its decode instance declined the request, which exceeds the receive buffers there. */
  handOffDeclined(running: S): void;
  /** The request ends after these events. */
  finish(running: S, events: readonly GenerationEvent[], reason: 'stop' | 'length'): void;
  /** Fails the request: its rows yield no token. */
  failRows(running: S, failure: RowFailure): void;
  /** Fails the request. */
  fail(running: S, message: string, code: FailureCode): void;
  /** Borrowed memory is lost: fails waiting requests that exceed the capacity that is left. */
  failTooLong(): void;

  /** Aborts the step in flight: it can no longer succeed. */
  abortStep(): void;
  /** Ends the step run that was just launched after its first step. */
  limitToOneStep(): void;
}

/** The next step, to which components contribute besides the rows that the scheduler planned. */
export interface StepDraft<S> {
  readonly requests: readonly S[];
  /** Undefined: the step runs all layers. */
  readonly range: LayerRange | undefined;
  /** Maximum number of equal steps in the run. */
  stepsMax: number;
  /** Attention over remote blocks. */
  remote: readonly RemoteWork[] | undefined;
  /** The step waits for blocks in transit: its time does not predict the next step. */
  waitsForBlocks: boolean;
}

/**
 * How a component handled an event. `replan`: the next step may differ. `cacheOnly`: cached blocks or figures of links changed alone, so a step run continues.
 * `shared`: other components handle the event as well. Undefined: the component does not handle it.
 */
export type Handled = 'replan' | 'cacheOnly' | 'shared' | undefined;

/** One concern of an instance. Hooks are called in the order of registration and never re-entered; a component overrides those that it needs. */
export abstract class InstanceComponent<Request extends Identified, S extends RunningRequest> {
  /** Memory beyond the instance's own, of at most one component. */
  get overflow(): OverflowMemory | undefined {
    return undefined;
  }

  /** Chooses one of several caches for a sequence, of at most one component. */
  get placement(): SequencePlacement | undefined {
    return undefined;
  }

  /** Tokens that borrowed memory adds to the longest request. */
  get extraTokens(): number {
    return 0;
  }

  /** Tokens of the longest request that starts here and can continue elsewhere. */
  get continuedTokens(): number {
    return 0;
  }

  /** Tokens of the longest request like this one; undefined: its kind makes no difference. */
  capacityOf(_size: RequestSize): number | undefined {
    return undefined;
  }

  /** When a `wake` is due. */
  get nextUs(): number {
    return Number.POSITIVE_INFINITY;
  }

  /** Handles an event. Components are called in order until one handles it and does not share it. */
  handle(_event: InstanceEvent<Request, unknown>): Handled {
    return undefined;
  }

  /** Called after every event, and again once the next step is planned: starts or cancels waiting work. */
  advance(): void {}

  /** A report is due: repeats unanswered messages. */
  resend(): void {}

  /** Takes over a submitted request; false: the scheduler schedules it. */
  takeOver(_request: Request, _submission: Submission<Request>): boolean {
    return false;
  }

  /** A request is about to join the waiting list. */
  accepted(_running: S, _request: Request, _continuation: Continuation): void {}

  /** A request that another instance has begun is about to join the waiting list. */
  resumed(_running: S): void {}

  /** A request starts: its blocks are allocated. */
  started(_running: S): void {}

  /** The prompt is computed and cached here. */
  computed(_running: S): void {}

  /** A request of the step that ended waited for blocks in transit or for remote blocks. @param arrived false: nothing of it was computed */
  waitEnded(_running: S, _arrived: boolean): void {}

  /** A request leaves and still has its blocks: releases everything that the component holds for it. @param running undefined: it is not scheduled here @returns true if the component expected it */
  releaseRequest(_id: RequestId, _running: S | undefined, _reason: LeaveReason): boolean {
    return false;
  }

  /** A request has ended, and its blocks are cached. */
  ended(_id: RequestId, _event: GenerationEvent): void {}

  /** No step is in flight: block tables may change. */
  beforeStep(): void {}

  /** No step is in flight: schedules requests received from other instances. */
  admit(): void {}

  /** True while work of the component waits for the end of the next step: that step is kept short. */
  get needsShortStep(): boolean {
    return false;
  }

  /** True while no step may run. */
  get holdsSteps(): boolean {
    return false;
  }

  /** Plans a step of the component. @param urgent the step precedes the scheduler's; else the scheduler has none */
  ownStep(_urgent: boolean): PlannedStep<S> | undefined {
    return undefined;
  }

  /** Adds rows or waits to the step that is about to be launched. The scheduler may have planned no rows. */
  contribute(_step: StepDraft<S>): void {}

  /** The step is launched; undefined: there is no step, because work or memory is missing. */
  launched(_flight: InFlight<S> | undefined): void {}

  /** A step has ended, and its results are committed. @param stepUs undefined: nothing of it counts */
  afterStep(_flight: InFlight<S>, _stepUs: ArrayLike<number> | undefined): void {}

  /** Requests of other instances with prompts that are to arrive here: memory is reserved for them, or they wait for it. */
  get expectedPrompts(): Iterable<RequestId> {
    return [];
  }

  /** True while prompts of the component wait for events: every event then ends a step run. */
  get hasWaiting(): boolean {
    return false;
  }

  /** Transfers and allocations in progress that waiting requests may depend on. */
  get pending(): number {
    return 0;
  }

  /** Prompts that keep blocks and wait for no step of the scheduler. */
  parked(_flight: InFlight<S> | undefined): number {
    return 0;
  }

  /** Fields that it adds to the instance's snapshot. */
  snapshot(): Partial<InstanceSnapshot> {
    return {};
  }

  /** Throws unless its state is consistent. */
  check(): void {}
}

/** For each hook the components that override it, in the order of registration: the others need no call. */
export type ComponentHooks<Request extends Identified, S extends RunningRequest> = Readonly<
  Record<keyof InstanceComponent<Request, S>, readonly InstanceComponent<Request, S>[]>
>;

export function hooksOf<Request extends Identified, S extends RunningRequest>(
  components: readonly InstanceComponent<Request, S>[],
): ComponentHooks<Request, S> {
  const names = Object.getOwnPropertyNames(InstanceComponent.prototype);
  const overriding = names.map((hook) => [hook, components.filter((component) => overrides(component, hook))]);
  return Object.fromEntries(overriding) as ComponentHooks<Request, S>;
}

function overrides(component: object, hook: string): boolean {
  const parent: object | null = Object.getPrototypeOf(component);
  if (parent === null || parent === InstanceComponent.prototype) return false;
  return Object.hasOwn(parent, hook) || overrides(parent, hook);
}
