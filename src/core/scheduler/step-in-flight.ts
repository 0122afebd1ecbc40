// The step that an instance has in flight, and when it is worth an abort.

import type { InstanceEffect } from '../protocol/effects.ts';
import type { InstanceEvent } from '../protocol/events.ts';
import type { StepNumber } from '../protocol/ids.ts';
import type { RemoteWork } from '../protocol/lending-effects.ts';
import type { LayerRange, StepShape } from '../protocol/step-shape.ts';
import type { Sequence } from './batching/sequence.ts';
import type { RunningRequest } from './executor/executor.ts';

/** Takes the effects of a machine, in the order in which they are carried out. */
export interface EffectSink<Request = never> {
  emit(effect: InstanceEffect<never, Request>): void;
}

/** The part of an instance that planned a step commits its results. */
export interface StepOwner<S> {
  /** @param stepUs (steps): how long each step took */
  commit(flight: InFlight<S>, result: unknown, stepUs: ArrayLike<number>): void;
}

export interface PlannedStep<S> {
  readonly owner: StepOwner<S>;
  readonly predictedUs: number;
  readonly shape: StepShape;
  readonly requests: readonly S[];
  /** Equal steps that may follow one another before the next decision. */
  readonly stepsMax: number;
  /** All of its rows are those of batch jobs. */
  readonly background: boolean;
  /** Layers of a chunk that a pipeline of instances computes; undefined: the step runs all layers. */
  readonly range: LayerRange | undefined;
  readonly activationsOut?: RunStep<never>['activationsOut'];
}

export interface InFlight<S> extends PlannedStep<S> {
  readonly step: StepNumber;
  readonly startedUs: number;
  /** Attention over keys that lie elsewhere. */
  readonly remote: readonly RemoteWork[] | undefined;
  /** Rows wait for blocks that are on their way. */
  readonly awaitsBlocks: boolean;
  /** The run ends with the step that runs. */
  ending: boolean;
  /** The abort of that step was requested. */
  aborting: boolean;
  /** The abort was requested in favour of interactive requests. */
  yielding: boolean;
}

/** A decode row is worth an abort only if its step would run for longer than this. */
const abortDecodeUsMin = 100_000;

/** Longer steps do not run several at once: the last of them could be worth an abort. */
const runStepUsMax = 0.9 * abortDecodeUsMin;

/** The step as it is launched. Copied field by field: a spread takes as long as the rest of planning. */
function begun<S>(
  planned: PlannedStep<S>,
  step: StepNumber,
  nowUs: number,
  { remote, awaitsBlocks }: Pick<InFlight<S>, 'remote' | 'awaitsBlocks'>,
): InFlight<S> {
  const { owner, predictedUs, shape, requests, stepsMax, background, range, activationsOut } = planned;
  return {
    owner,
    predictedUs,
    shape,
    requests,
    stepsMax: predictedUs > runStepUsMax ? 1 : stepsMax,
    background,
    range,
    activationsOut,
    step,
    startedUs: nowUs,
    remote,
    awaitsBlocks,
    ending: false,
    aborting: false,
    yielding: false,
  };
}

/** A copy of the scheduler's shape, which changes with its next plan. */
export function shapeOf({ rows, keyRows, decodeRows, decodeKeys, logitRows }: StepShape): StepShape {
  return { rows, keyRows, decodeRows, decodeKeys, logitRows };
}

type RunStep<Plan> = Extract<InstanceEffect<Plan>, { kind: 'runStep' }>;

/** The effect that launches a step. */
export function runStep<Plan>(
  { step, predictedUs, shape, stepsMax, range, activationsOut, background, remote }: InFlight<unknown>,
  plan: Plan,
  traffic: Pick<RunStep<Plan>, 'loadTokens' | 'storeTokens'>,
): RunStep<Plan> {
  const { loadTokens, storeTokens } = traffic;
  return {
    kind: 'runStep',
    step,
    plan,
    predictedUs,
    shape,
    stepsMax,
    background,
    loadTokens,
    storeTokens,
    range,
    activationsOut,
    remote,
  };
}

type StepEnded = Extract<InstanceEvent<never, unknown>, { readonly step: StepNumber }>;

/** The step, or run of equal steps, that is in flight: at most one at a time. */
export class StepInFlight<S extends RunningRequest> {
  readonly #sink: EffectSink;
  #flight: InFlight<S> | undefined;
  #launched: StepNumber = 0;
  /** The step before was lost to an abort for cancelled requests. */
  #abortedLast = false;

  constructor(sink: EffectSink) {
    this.#sink = sink;
  }

  get flight(): InFlight<S> | undefined {
    return this.#flight;
  }

  launch(planned: PlannedStep<S>, nowUs: number, waits: Pick<InFlight<S>, 'remote' | 'awaitsBlocks'>): InFlight<S> {
    this.#flight = begun(planned, ++this.#launched, nowUs, waits);
    return this.#flight;
  }

  /** The step that has ended; a string says why the event is ignored. */
  ended({ kind, step }: StepEnded): InFlight<S> | string {
    const flight = this.#flight;
    if (flight?.step !== step) {
      const current = flight === undefined ? 'none is' : `step ${flight.step} is`;
      return `step ${step} is not in flight: ${current}`;
    }
    this.#flight = undefined;
    this.#abortedLast = wasAborted(flight, kind);
    return flight;
  }

  abort(): void {
    if (this.#flight === undefined || this.#flight.aborting) return;
    this.#flight.aborting = true;
    this.#sink.emit({ kind: 'abortStep', step: this.#flight.step });
  }

  /** A request was cancelled: its rows are not needed. False when it has none in the step. */
  cancelRows(nowUs: number, running: S): boolean {
    const flight = this.#flight;
    if (flight === undefined || running.sequence.planned === 0) return false;
    if (!flight.aborting && worthAborting(nowUs, flight, running, this.#abortedLast)) this.abort();
    return true;
  }

  /** An event may change the next step: a run of steps ends, and batch jobs yield to `waiting`, the first request that waits. */
  yieldTo(waiting: Sequence | undefined): void {
    const flight = this.#flight;
    if (flight === undefined) return;
    // Batch jobs yield immediately to interactive requests.
    const yields = flight.background && !flight.yielding && waiting?.background === false;
    if (!yields && (flight.stepsMax === 1 || flight.ending || flight.aborting)) return;
    flight.yielding = yields;
    flight.aborting ||= yields;
    flight.ending = true;
    this.#sink.emit({ kind: yields ? 'abortStep' : 'endStepRun', step: flight.step });
  }

  /** The next step may differ already: the run has one step. */
  limitToOneStep(): void {
    if (this.#flight === undefined || this.#flight.stepsMax === 1) return;
    this.#flight.ending = true;
    this.#sink.emit({ kind: 'endStepRun', step: this.#flight.step });
  }
}

/** Never twice in a row at the expense of other requests: they must progress. */
function worthAborting<S extends RunningRequest>(
  nowUs: number,
  flight: InFlight<S>,
  running: S,
  abortedLast: boolean,
): boolean {
  if (flight.requests.every((other) => other.cancelled)) return true;
  // The steps of a run are short.
  if (abortedLast || flight.stepsMax > 1) return false;
  return running.sequence.planned > 1 || flight.predictedUs - (nowUs - flight.startedUs) > abortDecodeUsMin;
}

/** True when the step was lost to an abort for cancelled requests. Of a run, the step that was aborted is lost; the others count. */
function wasAborted({ aborting, yielding, stepsMax }: InFlight<unknown>, ended: string): boolean {
  return aborting && !yielding && (ended === 'stepAborted' || stepsMax > 1);
}
