// What an instance computes next: one step, or one run of equal steps, is launched at a time.

import type { Borrower } from '../lending/debtor/borrower.ts';
import type { PipelinePrefill } from '../pipeline/pipeline-prefill.ts';
import type { InstanceEffect } from '../protocol/effects.ts';
import type { InstanceEvent } from '../protocol/events.ts';
import type { InstanceIndex, RequestId, StepNumber } from '../protocol/ids.ts';
import type { StepPredictor } from '../protocol/step-shape.ts';
import { admitReceived, type ReceivedPromptsContext } from '../transfer/hand-off/received-prompts.ts';
import type { RequestMigrator } from '../transfer/migration/request-migrator.ts';
import type { PrefixLoads } from '../transfer/prefix-fetch/prefix-loads.ts';
import type { Batcher } from './batching/batcher.ts';
import type { RunningRequest } from './executor/executor.ts';
import { type HostTraffic, nothingMoved } from './host-traffic.ts';
import type { InstanceTotals } from './instance-totals.ts';
import type { Pinning } from './pinning.ts';
import {
  abortFor,
  begun,
  endingFor,
  type InFlight,
  type PlannedStep,
  runStep,
  shapeOf,
  wasAborted,
} from './step-in-flight.ts';

type StepEnded = Extract<InstanceEvent<never, unknown>, { readonly step: StepNumber }>;

interface Parts<Request extends { readonly id: RequestId }, S extends RunningRequest, Plan, Result>
  extends Pick<ReceivedPromptsContext<Request, S, Plan, Result>, 'handOffs' | 'roster' | 'work' | 'emit'> {
  readonly batcher: Batcher;
  readonly cost: StepPredictor;
  readonly hostTraffic: HostTraffic;
  readonly stages: PipelinePrefill<Request, S, Plan, Result>;
  readonly loads: PrefixLoads<S>;
  readonly pinning: Pinning<Request, S>;
  readonly borrower: Borrower | undefined;
  readonly mover: RequestMigrator | undefined;
  readonly landing: ReceivedPromptsContext<Request, S, Plan, Result>;
  readonly totals: InstanceTotals;
}

export class StepLauncher<Request extends { readonly id: RequestId }, S extends RunningRequest, Plan, Result> {
  readonly #parts: Parts<Request, S, Plan, Result>;
  readonly #push: (effect: InstanceEffect<Plan, Request>) => void;
  #steps: StepNumber = 0;
  #flight: InFlight<S> | undefined;
  #abortedLast = false;
  /** Let in, and not loaded to the end. */
  readonly #landing = new Set<S>();

  constructor(parts: Parts<Request, S, Plan, Result>, push: (effect: InstanceEffect<Plan, Request>) => void) {
    this.#parts = parts;
    this.#push = push;
  }

  /** The step that runs. */
  get flight(): InFlight<S> | undefined {
    return this.#flight;
  }

  /** Between two steps: takes what has landed, and plans the next. */
  next(nowUs: number): void {
    this.#plan(nowUs);
    const { hostTraffic, handOffs } = this.#parts;
    hostTraffic.flush();
    handOffs.departures.catchUp();
    handOffs.departures.yieldLandings();
  }

  #plan(nowUs: number): void {
    const { batcher, borrower, mover, handOffs, stages, cost, hostTraffic, landing, roster } = this.#parts;
    borrower?.betweenSteps();
    mover?.between(nowUs, batcher);
    if (handOffs.arrivals.size > 0) admitReceived(landing);
    if (stages.goFirst && this.#launchStage(nowUs)) return;
    const planned = batcher.plan(stages.await);
    for (const sequence of batcher.admitted) this.#admit(nowUs, roster.admit(sequence));
    if (this.#landing.size > 0) this.#lookAtLanding(nowUs);
    mover?.planned(batcher.running);
    if (planned.length === 0) {
      if (!this.#launchStage(nowUs, true)) borrower?.planned();
      return;
    }
    const requests = roster.of(planned);
    const shape = shapeOf(batcher.shape);
    const predictedUs = Math.round(cost.predictUs(shape));
    const traffic = hostTraffic.planned(planned);
    const { background } = planned[0];
    const stepsMax = this.#stepsMax(requests);
    this.#run(nowUs, { predictedUs, shape, requests, stepsMax, range: undefined, background }, traffic);
  }

  /** The next chunk of a prompt that a group computes, if one is ready. @param ahead or on its way */
  #launchStage(nowUs: number, ahead = false): boolean {
    const next = this.#parts.stages.next(ahead);
    if (next !== undefined) this.#run(nowUs, next);
    return next !== undefined;
  }

  #run(nowUs: number, planned: PlannedStep<S>, traffic = nothingMoved): void {
    const { work, borrower, handOffs } = this.#parts;
    const { requests, range } = planned;
    this.#flight = begun(planned, ++this.#steps, nowUs, borrower?.remoteWork(requests));
    this.#parts.hostTraffic.begins();
    const plan = work.plan(requests, range);
    this.#push(runStep(this.#flight, plan, traffic));
    if (borrower?.planned({ ...planned, step: this.#steps }) === true) this.#endAfterFirst(this.#flight);
    if (handOffs.departures.size > 0) handOffs.departures.launched(this.#steps);
  }

  /** How many equal steps may follow one another: until a request may end or the batcher has something to decide. */
  #stepsMax(requests: readonly S[]): number {
    const { batcher, handOffs, work } = this.#parts;
    let most = handOffs.departures.size > 0 ? 1 : batcher.steadySteps();
    for (let i = 0; i < requests.length && most > 1; i++) most = Math.min(most, work.growthMax(requests[i]));
    return most;
  }

  /** One that is still being loaded starts when that is done. */
  #admit(nowUs: number, served: S): void {
    if (served.sequence.loadPending) this.#landing.add(served);
    else this.#start(nowUs, served);
  }

  #lookAtLanding(nowUs: number): void {
    for (const served of this.#landing) {
      const { loadPending, state } = served.sequence;
      if (loadPending && state === 'running') continue;
      this.#landing.delete(served);
      if (state === 'running') this.#start(nowUs, served);
    }
  }

  /** The first time that a request runs; a preempted one has started before. */
  #start(nowUs: number, served: S): void {
    if (served.started) return;
    served.started = true;
    const { loads, handOffs, work, emit } = this.#parts;
    loads.started(served);
    const held = handOffs.arrivals.heldOf(served.id);
    if (held !== undefined) {
      handOffs.arrivals.drop(served.id);
      if (held.length > 0) work.joined(served, nowUs);
      else this.#push({ kind: 'migrated', id: served.id });
      for (const event of held) emit(served.id, event);
      return;
    }
    this.begin(served);
  }

  /** Its prompt is computed from now on. */
  begin(served: S): void {
    const { totals, pinning, handOffs, emit } = this.#parts;
    const { cachedTokens = 0, arriving } = served.sequence;
    totals.prompt += served.sequence.promptLength;
    totals.cached += cachedTokens;
    pinning.started(served, cachedTokens);
    emit(
      served.id,
      arriving === undefined ? { kind: 'started', cachedTokens } : { kind: 'started', cachedTokens, ahead: true },
    );
    handOffs.departures.ask(served.id);
  }

  /** A cancelled request's rows are not wanted any more; false when no step has any. */
  drop(nowUs: number, served: S): boolean {
    const flight = this.#flight;
    if (flight === undefined || served.sequence.planned === 0) return false;
    const abort = abortFor(nowUs, flight, served, this.#abortedLast);
    if (abort !== undefined) this.#push(abort);
    return true;
  }

  /** A creditor is out of reach: a step that waits for what it has is in vain, also where its blocks have come home meanwhile. */
  strand(creditor: InstanceIndex): void {
    const flight = this.#flight;
    if (flight === undefined || flight.aborting) return;
    const waits = flight.remote?.some((work) => work.creditor === creditor) === true;
    if (!waits && this.#parts.borrower?.hasLostBlocks(flight.requests) !== true) return;
    flight.aborting = true;
    this.#push({ kind: 'abortStep', step: flight.step });
  }

  /** Something was heard that the next step may heed. */
  endRun(): void {
    if (this.#flight === undefined) return;
    const ending = endingFor(this.#flight, this.#parts.batcher.waiting[0]);
    if (ending !== undefined) this.#push(ending);
  }

  /** What was said of the plan may change what the next step computes: the run has one. */
  #endAfterFirst(flight: InFlight<S>): void {
    if (flight.stepsMax === 1) return;
    flight.ending = true;
    this.#push({ kind: 'endRun', step: flight.step });
  }

  /** The step that has ended; where it is not in flight, why not. */
  ended({ kind, step }: StepEnded): InFlight<S> | string {
    const flight = this.#flight;
    if (flight?.step !== step) {
      const current = flight === undefined ? 'none is' : `step ${flight.step} is`;
      return `${kind}: step ${step} is not in flight: ${current}`;
    }
    this.#flight = undefined;
    this.#abortedLast = wasAborted(flight, kind);
    return flight;
  }
}
