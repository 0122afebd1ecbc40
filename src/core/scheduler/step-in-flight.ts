// The step that an instance has in flight, and when it is worth an abort.

import type { InstanceEffect } from '../protocol/effects.ts';
import type { StepNumber } from '../protocol/ids.ts';
import type { RemoteWork } from '../protocol/lending-effects.ts';
import type { LayerRange, StepShape } from '../protocol/step-shape.ts';
import type { Sequence } from './batching/sequence.ts';
import type { RunningRequest } from './executor/executor.ts';

export interface PlannedStep<S> {
  readonly predictedUs: number;
  readonly shape: StepShape;
  readonly requests: readonly S[];
  /** Equal steps that may follow one another before anything has to be decided. */
  readonly stepsMax: number;
  /** All its rows are those of batch jobs. */
  readonly background: boolean;
  /** A chunk of a prompt of which each of several instances runs a range of the layers; undefined: the step runs all. */
  readonly range: LayerRange | undefined;
  readonly passes?: RunStep<never>['passes'];
}

export interface InFlight<S> extends PlannedStep<S> {
  readonly step: StepNumber;
  readonly startedUs: number;
  /** What it has computed where some of its keys and values lie. */
  readonly remote: readonly RemoteWork[] | undefined;
  /** It was asked to end with the step that runs. */
  ending: boolean;
  /** That step was asked to stop. */
  aborting: boolean;
  /** An abort was asked for in favour of those who wait for answers. */
  yielding: boolean;
}

/** A decode row is worth an abort only when its step would go on for longer than this. */
const abortDecodeUsMin = 100_000;

/** Steps that take longer do not run in one go: the last of them could be worth an abort. */
const runStepUsMax = 0.9 * abortDecodeUsMin;

/** Field by field: a spread takes as long as the rest of planning a step. */
export function begun<S>(
  planned: PlannedStep<S>,
  step: StepNumber,
  nowUs: number,
  remote: InFlight<S>['remote'],
): InFlight<S> {
  const { predictedUs, shape, requests, stepsMax, background, range, passes } = planned;
  return {
    predictedUs,
    shape,
    requests,
    stepsMax: predictedUs > runStepUsMax ? 1 : stepsMax,
    background,
    range,
    passes,
    step,
    startedUs: nowUs,
    remote,
    ending: false,
    aborting: false,
    yielding: false,
  };
}

/** A copy of the batcher's, which changes with its next plan. */
export function shapeOf({ rows, keyRows, decodeRows, decodeKeys, logitRows }: StepShape): StepShape {
  return { rows, keyRows, decodeRows, decodeKeys, logitRows };
}

type RunStep<Plan> = Extract<InstanceEffect<Plan>, { kind: 'runStep' }>;

/** For the driver. */
export function runStep<Plan>(
  { step, predictedUs, shape, stepsMax, range, passes, background, remote }: InFlight<unknown>,
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
    passes,
    remote,
  };
}

interface StepEnding {
  readonly kind: 'abortStep' | 'endRun';
  readonly step: StepNumber;
}

/** What was just heard may change what the next step computes: how the one in flight is to end for that, if it goes on for longer. */
export function endingFor<S>(flight: InFlight<S>, waiting: Sequence | undefined): StepEnding | undefined {
  // Batch jobs yield at once to whoever waits for an answer.
  const yields = flight.background && !flight.yielding && waiting?.background === false;
  if (!yields && (flight.stepsMax === 1 || flight.ending || flight.aborting)) return undefined;
  flight.yielding = yields;
  flight.aborting ||= yields;
  flight.ending = true;
  return { kind: yields ? 'abortStep' : 'endRun', step: flight.step };
}

/** Rows of the step in flight are not wanted any more: it stops, where that is worth its work. */
export function abortFor<S extends RunningRequest>(
  nowUs: number,
  flight: InFlight<S>,
  served: S,
  abortedLast: boolean,
): StepEnding | undefined {
  if (flight.aborting || !worthAborting(nowUs, flight, served, abortedLast)) return undefined;
  flight.aborting = true;
  return { kind: 'abortStep', step: flight.step };
}

/** Never twice in a row at the expense of others: they must get on. */
function worthAborting<S extends RunningRequest>(
  nowUs: number,
  flight: InFlight<S>,
  served: S,
  abortedLast: boolean,
): boolean {
  if (flight.requests.every((other) => other.cancelled)) return true;
  // The steps of a run are short.
  if (abortedLast || flight.stepsMax > 1) return false;
  return served.sequence.planned > 1 || flight.predictedUs - (nowUs - flight.startedUs) > abortDecodeUsMin;
}

/** Was its step lost to an abort for those who left? That of a run is, once asked for; its other steps are done. */
export function wasAborted({ aborting, yielding, stepsMax }: InFlight<unknown>, ended: string): boolean {
  return aborting && !yielding && (ended === 'stepAborted' || stepsMax > 1);
}
