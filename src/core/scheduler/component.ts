// The contract between an instance and its components: hand-off, prefix fetch, pipeline prefill, pinning, lending and migration implement it.

import type { BlockCache } from '../kvcache/block-cache.ts';
import type { InstanceEffect } from '../protocol/effects.ts';
import type { InstanceEvent } from '../protocol/events.ts';
import type { RequestId } from '../protocol/ids.ts';
import type { RemoteWork } from '../protocol/lending-effects.ts';
import type { GenerationEvent, InstanceSnapshot } from '../protocol/ports.ts';
import type { LayerRange } from '../protocol/step-shape.ts';
import type { Batcher } from './batching/batcher.ts';
import type { OverflowMemory } from './batching/overflow-memory.ts';
import type { Executor, RunningRequest } from './executor/executor.ts';
import type { InstanceConfig } from './instance-config.ts';
import type { InstanceTotals } from './instance-totals.ts';
import type { RequestTable } from './request-table.ts';
import type { EffectSink, InFlight, PlannedStep } from './step-in-flight.ts';

export interface Identified {
  readonly id: RequestId;
}

export type Submission<Request> = Extract<InstanceEvent<Request, never>, { kind: 'submit' }>;

/** Where a request continues, or what it starts behind. */
export type Continuation = Pick<Submission<never>, 'decodeAt' | 'decodeIncarnation' | 'prefix'>;

/** Why a request leaves: its client cancelled it, its output ended or it failed, or another instance continues it. */
export type LeaveReason = 'cancelled' | 'finished' | 'failed' | 'handedOff';

/** What every component may use of its instance. Fields that later parts fill in are not read in constructors: `scheduler`, `requests`, `executor`. */
export interface InstanceContext<Request extends Identified, S extends RunningRequest> extends EffectSink<Request> {
  readonly config: InstanceConfig;
  readonly nowUs: number;
  readonly kvCache: BlockCache;
  readonly scheduler: Batcher;
  readonly requests: RequestTable<S>;
  /** Its plans go to the driver as they are. */
  readonly executor: Executor<Request, S, never, unknown>;
  readonly totals: InstanceTotals;
  /** The step that runs. */
  readonly flight: InFlight<S> | undefined;
  /** Tokens of the longest request that fits here, in memory elsewhere, or at an instance that continues it. */
  readonly capacityTokens: number;

  /** The request's client receives the event, and conductors the KV events up to it. */
  notify(id: RequestId, event: GenerationEvent): void;
  /** The conductor receives the effect, and the KV events up to it. */
  announce(effect: Extract<InstanceEffect<never, never>, { kind: 'prefilled' | 'released' }>): void;
  /** Logs and counts an event that changed nothing. */
  ignore(event: InstanceEvent<Request, unknown>, why: string): void;

  /** A request as the scheduler sees it; not scheduled yet. */
  create(request: Request): S;
  /** The same for a prompt computed elsewhere. @param whole all of its layers were computed at one instance */
  resume(request: Request, events: readonly GenerationEvent[], whole: boolean): S;
  /** Schedules the request: it waits for its turn. */
  schedule(request: Request, continuation: Continuation): void;
  /** The prompt's computation begins. */
  begin(running: S): void;
  /** Its client cancelled the request. */
  cancel(id: RequestId): void;
  /** Another instance has the request, or its stream there is broken. */
  handedOff(running: S): void;
  /** Its decode instance declined the request, which exceeds the receive buffers there. */
  handOffDeclined(running: S): void;
  /** The request ends after these events. */
  finish(running: S, events: readonly GenerationEvent[], reason: 'stop' | 'length'): void;
  /** The request's logits are not finite. */
  failRows(running: S): void;
  /** Memory elsewhere is gone: fails waiting requests that exceed what is left. */
  failTooLong(): void;

  /** The step that runs cannot succeed any more. */
  abortStep(): void;
  /** The run of steps that was launched ends after its first step. */
  limitToOneStep(): void;
}

/** What the next step contains besides the rows that the scheduler planned. */
export interface StepDraft<S> {
  readonly requests: readonly S[];
  /** Undefined: the step runs all layers. */
  readonly range: LayerRange | undefined;
  /** Equal steps that may follow one another. */
  stepsMax: number;
  /** Attention over keys that lie elsewhere. */
  remote: readonly RemoteWork[] | undefined;
  /** The step waits for blocks that are on their way: its time says nothing about the next step. */
  awaitsBlocks: boolean;
}

/**
 * What a component did with an event. `batch`: the next step may differ. `cache`: only cached blocks changed, so a run of equal steps
 * continues. `shared`: the event concerns other components as well. Undefined: it is no event of the component.
 */
export type Handled = 'batch' | 'cache' | 'shared' | undefined;

/** One concern of an instance. Hooks are called in the order of registration and never re-entered; a component overrides those that it needs. */
export abstract class InstanceComponent<Request extends Identified, S extends RunningRequest> {
  /** Memory beyond the instance's own; one component of an instance has some. */
  get overflow(): OverflowMemory | undefined {
    return undefined;
  }

  /** Tokens that its memory elsewhere adds to the longest request. */
  get extraTokens(): number {
    return 0;
  }

  /** Tokens of the longest request that starts here and can continue elsewhere. */
  get continuedTokens(): number {
    return 0;
  }

  /** When a `wake` is due. */
  get nextUs(): number {
    return Number.POSITIVE_INFINITY;
  }

  /** Receives an event; the first component that handles it ends the search, unless it is shared. */
  handle(_event: InstanceEvent<Request, unknown>): Handled {
    return undefined;
  }

  /** After every event, and again once the next step is planned: starts, holds or gives up what waits. */
  advance(): void {}

  /** A report is due: repeats messages that have not been answered. */
  resend(): void {}

  /** Takes over a submitted request; false: the scheduler gets it. */
  takeOver(_request: Request, _submission: Submission<Request>): boolean {
    return false;
  }

  /** A request is about to wait for its turn. */
  accepted(_running: S, _request: Request, _continuation: Continuation): void {}

  /** A request starts: its blocks are allocated. */
  started(_running: S): void {}

  /** All of the prompt is computed, and cached here. */
  computed(_running: S): void {}

  /** A row of the step that ended ran behind blocks that were on their way, or that lie elsewhere. @param arrived false: nothing of the row was computed */
  awaitedRows(_running: S, _arrived: boolean): void {}

  /** A request leaves and still has its blocks: releases what the component holds for it. @param running undefined: the scheduler does not know it. @returns true if the component expected it */
  drop(_id: RequestId, _running: S | undefined, _reason: LeaveReason): boolean {
    return false;
  }

  /** A request has ended, and its blocks are cached. */
  ended(_id: RequestId, _event: GenerationEvent): void {}

  /** No step is in flight: block tables may change. */
  beforeStep(): void {}

  /** No step is in flight: schedules requests that came from elsewhere. */
  admit(): void {}

  /** True while work of the component waits for the next step to end: that step is a short one. */
  get awaitsStep(): boolean {
    return false;
  }

  /** A step of its own. @param urgent it goes before the scheduler's; else it runs because the scheduler has none */
  ownStep(_urgent: boolean): PlannedStep<S> | undefined {
    return undefined;
  }

  /** Adds rows or waits to the step that is about to be launched. The scheduler's may be empty. */
  contribute(_step: StepDraft<S>): void {}

  /** The step is launched; undefined: none is, for want of work or memory. */
  launched(_flight: InFlight<S> | undefined): void {}

  /** A step has ended, and its results are committed. @param stepUs undefined: nothing of it counts */
  afterStep(_flight: InFlight<S>, _stepUs: ArrayLike<number> | undefined): void {}

  /** Requests of other instances for which memory is reserved here. */
  get awaited(): Iterable<RequestId> {
    return [];
  }

  /** True while prompts wait here for events, so that every event ends a run of steps. */
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

  /** Figures that it adds to the instance's snapshot. */
  snapshot(): Partial<InstanceSnapshot> {
    return {};
  }

  /** Throws unless its state is consistent. */
  check(): void {}
}
