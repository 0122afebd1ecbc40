// Plans and launches the next step: the scheduler's rows, or a step of a component.

import type { Identified, StepDraft } from './component.ts';
import type { RunningRequest } from './executor/executor.ts';
import { noTraffic } from './host-traffic.ts';
import type { InstanceInternals } from './instance-internals.ts';
import type { RequestLifecycle } from './request-lifecycle.ts';
import { type PlannedStep, runStep, type StepOwner, shapeOf } from './step-in-flight.ts';

/** A step that is ready to be launched. */
export interface ReadyStep<S> {
  readonly planned: PlannedStep<S>;
  readonly draft: StepDraft<S>;
  readonly traffic: typeof noTraffic;
}

export class StepLauncher<Request extends Identified, S extends RunningRequest> {
  readonly #instance: InstanceInternals<Request, S>;
  readonly #lifecycle: RequestLifecycle<Request, S>;
  readonly #results: StepOwner<S>;
  /** Admitted, and not fully loaded. */
  readonly #loading = new Set<S>();

  constructor(instance: InstanceInternals<Request, S>, lifecycle: RequestLifecycle<Request, S>, results: StepOwner<S>) {
    this.#instance = instance;
    this.#lifecycle = lifecycle;
    this.#results = results;
  }

  /** Undefined: there is nothing to compute. */
  plan(): ReadyStep<S> | undefined {
    const { hooks, scheduler, requests, hostTraffic, config } = this.#instance;
    if (hooks.holdsSteps.some((component) => component.holdsSteps)) return undefined;
    const urgent = this.#ownStep(true);
    if (urgent !== undefined) return urgent;
    let keepsShort = false;
    for (const component of hooks.needsShortStep) keepsShort ||= component.needsShortStep;
    const sequences = scheduler.plan(keepsShort);
    for (const sequence of scheduler.admitted) this.#admit(requests.admit(sequence));
    if (this.#loading.size > 0) this.#startLoaded();
    const draft = this.#draft(requests.requestsOf(sequences), undefined, Number.POSITIVE_INFINITY);
    if (sequences.length === 0) return this.#ownStep(false);
    const shape = shapeOf(scheduler.shape);
    const predictedUs = Math.round(config.cost.predictUs(shape));
    const traffic = hostTraffic.planned(sequences);
    const [{ background }] = sequences;
    const { requests: running } = draft;
    const stepsMax = this.#stepsMax(draft);
    const owner = this.#results;
    const planned = { owner, predictedUs, shape, requests: running, stepsMax, range: undefined, background };
    return { planned, draft, traffic };
  }

  #ownStep(urgent: boolean): ReadyStep<S> | undefined {
    for (const component of this.#instance.hooks.ownStep) {
      const planned = component.ownStep(urgent);
      if (planned === undefined) continue;
      const draft = this.#draft(planned.requests, planned.range, planned.stepsMax);
      return { planned, draft, traffic: noTraffic };
    }
    return undefined;
  }

  #draft(requests: readonly S[], range: PlannedStep<S>['range'], stepsMax: number): StepDraft<S> {
    const draft = { requests, range, stepsMax, remote: undefined, waitsForBlocks: false };
    for (const component of this.#instance.hooks.contribute) component.contribute(draft);
    return draft;
  }

  /** Decode rows alone run up to `stepsMax` equal steps, unless a request may end or a component requires a decision before. */
  #stepsMax({ requests, stepsMax }: StepDraft<S>): number {
    const { scheduler, executor } = this.#instance;
    let most = stepsMax === 1 ? 1 : Math.min(stepsMax, scheduler.steadySteps());
    for (let i = 0; i < requests.length && most > 1; i++) most = Math.min(most, executor.growthMax(requests[i]));
    return most;
  }

  /** A request that is still being loaded starts when all of it is loaded. */
  #admit(running: S): void {
    if (running.sequence.loadPending) this.#loading.add(running);
    else this.#lifecycle.start(running);
  }

  #startLoaded(): void {
    for (const running of [...this.#loading]) {
      const { loadPending, state } = running.sequence;
      if (loadPending && state === 'running') continue;
      this.#loading.delete(running);
      if (state === 'running') this.#lifecycle.start(running);
    }
  }

  launch({ planned, draft, traffic }: ReadyStep<S>): void {
    const { steps, hostTraffic, executor, nowUs, hooks } = this.#instance;
    const flight = steps.launch(planned, nowUs, draft);
    hostTraffic.stepLaunched(planned.owner === this.#results ? planned.requests : []);
    this.#instance.emit(runStep(flight, executor.plan(planned.requests, planned.range), traffic));
    for (const component of hooks.launched) component.launched(flight);
  }

  /** No step is launched. */
  idle(): void {
    this.#instance.hostTraffic.flush();
    for (const component of this.#instance.hooks.launched) component.launched(undefined);
  }
}
