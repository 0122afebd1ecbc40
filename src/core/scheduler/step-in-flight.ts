// The step that an instance has in flight, and the decision to abort it.

import type { InstanceEffect } from '../protocol/effects.ts';
import type { InstanceEvent } from '../protocol/events.ts';
import type { StepNumber } from '../protocol/ids.ts';
import type { RemoteWork } from '../protocol/lending-effects.ts';
import type { LayerRange, StepShape } from '../protocol/step-shape.ts';
import type { Sequence } from './batching/sequence.ts';
import type { RunningRequest } from './executor/executor.ts';

/** Collects the effects of a machine, in the order in which they are carried out. */
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
  /** Maximum number of equal steps in the run. */
  readonly stepsMax: number;
  /** All rows are those of batch jobs. */
  readonly background: boolean;
  /** The layers of a chunk of pipeline prefill; undefined: the step runs all layers. */
  readonly range: LayerRange | undefined;
  readonly activationsOut?: RunStep<never>['activationsOut'];
}

export interface InFlight<S> extends PlannedStep<S> {
  readonly step: StepNumber;
  readonly startedUs: number;
  /** Attention over remote blocks. */
  readonly remote: readonly RemoteWork[] | undefined;
  /** Rows wait for blocks in transit. */
  readonly waitsForBlocks: boolean;
  /** The run ends with its current step. */
  ending: boolean;
  /** Its abort was requested. */
  aborting: boolean;
  /** The abort was requested in favour of interactive requests. */
  yielding: boolean;
  /** A worker of the step was lost: its time does not predict the next step. */
  workerLost: boolean;
}

/** A decode row is worth an abort only if its step would run for longer than this. */
const abortDecodeUsMin = 100_000;

/** Longer steps run one at a time: each may be worth an abort. */
const runStepUsMax = 0.9 * abortDecodeUsMin;

/** The step as it is launched. Fields are copied one by one: a spread takes as long as the rest of planning. */
function inFlightOf<S>(
  planned: PlannedStep<S>,
  step: StepNumber,
  nowUs: number,
  { remote, waitsForBlocks }: Pick<InFlight<S>, 'remote' | 'waitsForBlocks'>,
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
    waitsForBlocks: waitsForBlocks,
    ending: false,
    aborting: false,
    yielding: false,
    workerLost: false,
  };
}

/** A copy of the scheduler's shape, which changes with its next plan. */
export function shapeOf({ rows, keyRows, decodeRows, decodeKeys, logitRows, sparse }: StepShape): StepShape {
  return { rows, keyRows, decodeRows, decodeKeys, logitRows, sparse: sparse && { ...sparse } };
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

/** At most one step, or one step run, is in flight. */
export class StepInFlight<S extends RunningRequest> {
  readonly #sink: EffectSink;
  #flight: InFlight<S> | undefined;
  #launched: StepNumber = 0;
  /** The last step was lost to an abort for cancelled requests. */
  #abortedLast = false;

  constructor(sink: EffectSink) {
    this.#sink = sink;
  }

  get flight(): InFlight<S> | undefined {
    return this.#flight;
  }

  launch(planned: PlannedStep<S>, nowUs: number, waits: Pick<InFlight<S>, 'remote' | 'waitsForBlocks'>): InFlight<S> {
    this.#flight = inFlightOf(planned, ++this.#launched, nowUs, waits);
    return this.#flight;
  }

  /** The step that has ended; a string: why the event is ignored. */
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

  /** A request was cancelled: aborts the step if that saves enough. False when the request has no rows in it. */
  cancelRows(nowUs: number, running: S): boolean {
    const flight = this.#flight;
    if (flight === undefined || running.sequence.planned === 0) return false;
    if (!flight.aborting && worthAborting(nowUs, flight, running, this.#abortedLast)) this.abort();
    return true;
  }

  /** An event may change the next step: ends the step run. A step of batch jobs is aborted if `waiting`, the first waiting request, is interactive. */
  yieldTo(waiting: Sequence | undefined): void {
    const flight = this.#flight;
    if (flight === undefined) return;
    // Batch jobs yield immediately to interactive requests.
    const yields =
      flight.background && !flight.yielding && waiting?.background === false && !changesSlots(flight.requests);
    if (!yields && (flight.stepsMax === 1 || flight.ending || flight.aborting)) return;
    flight.yielding = yields;
    flight.aborting ||= yields;
    flight.ending = true;
    this.#sink.emit({ kind: yields ? 'abortStep' : 'endStepRun', step: flight.step });
  }

  /** Ends the step run that was just launched after its first step. */
  limitToOneStep(): void {
    if (this.#flight === undefined || this.#flight.stepsMax === 1) return;
    this.#flight.ending = true;
    this.#sink.emit({ kind: 'endStepRun', step: this.#flight.step });
  }
}

/** Requests that are not cancelled lose no two steps in a row, so that they progress. */
function worthAborting<S extends RunningRequest>(
  nowUs: number,
  flight: InFlight<S>,
  running: S,
  abortedLast: boolean,
): boolean {
  if (flight.requests.every((other) => other.cancelled)) return true;
  if (changesSlots(flight.requests)) return false;
  // The steps of a run are short.
  if (abortedLast || flight.stepsMax > 1) return false;
  return running.sequence.planned > 1 || flight.predictedUs - (nowUs - flight.startedUs) > abortDecodeUsMin;
}

/** True if rows evict kept tokens: the step cannot be repeated. */
function changesSlots(requests: readonly RunningRequest[]): boolean {
  return requests.some(({ sequence }) => sequence.isSelected);
}

/** True if the step was lost to an abort for cancelled requests. In a step run only the aborted step is lost; earlier ones count. */
function wasAborted({ aborting, yielding, stepsMax }: InFlight<unknown>, ended: string): boolean {
  return aborting && !yielding && (ended === 'stepAborted' || stepsMax > 1);
}
