// An instance's engine in the simulator: a step takes the time that its cost model predicts.

import { attentionUs, distributedUs, withServedAttentionUs } from '../../core/cost/dist-attention.ts';
import type { HostLink } from '../../core/cost/host-link.ts';
import type { RemoteWait } from '../../core/cost/remote-way.ts';
import type { StepCostModel } from '../../core/cost/roofline.ts';
import type { LengthEvent } from '../../core/instance/length-instance.ts';
import type { InstanceEffect } from '../../core/protocol/effects.ts';
import type { LoadSource } from '../../core/protocol/events.ts';
import { laterShape, meanShape } from '../../core/protocol/step-shape.ts';
import type { PendingBlocks } from '../../core/transfer/prefix-fetch/prefix-loads.ts';
import { wideZero } from '../../util/wide-zero.ts';
import type { EventQueue, Timer } from './event-queue.ts';
import { LayerWaits } from './layer-waits.ts';

type RunStep = Omit<Extract<InstanceEffect, { kind: 'runStep' }>, 'plan'>;
type StepShape = RunStep['shape'];

type Event = LengthEvent;
export type StepEnd = Extract<Event, { kind: 'stepDone' | 'stepAborted' }>;

/** Called with each run of equal steps as it ends. `shape` is that of its first step; `shape` and `stepUs` are valid during the call. */
export type StepListener = (instance: number, startedUs: number, shape: StepShape, stepUs: readonly number[]) => void;

/** One run of equal steps at a time; the timer fires at its end. */
export class SimulatedExecutor {
  readonly #cost: StepCostModel;
  readonly #queue: EventQueue;
  readonly #timer: Timer;
  readonly #index: number;
  readonly #stepListener: StepListener | undefined;
  readonly #hostLink: HostLink | undefined;
  /** Factor on the time of steps, from the next one on. */
  slowness = 1;
  /** Time of all selections of kept tokens. */
  selectionUs = 0;
  /** Keys in the contexts of all decode rows, and those of them that the mean layer read, bounds of pages included. */
  decodeKeys = 0;
  decodeKeysRead = 0;
  #exposedUs = 0;
  #firstShape: StepShape | undefined;
  #step = 0;
  #running = false;
  #endsUs: number = wideZero;
  #startedUs: number = wideZero;
  #computeUs: number = wideZero;
  /** Of the first step, the time that the instance does not learn. */
  #gapUs = 0;
  /** Times of the steps of the run. */
  readonly #stepUs: number[] = [];
  /** Share of every step that attention for debtors takes, in thousandths, from the next step on. */
  servedAttentionPermille = 0;
  readonly #shape = { rows: 0, keyRows: 0, decodeRows: 0, decodeKeys: 0, logitRows: 0 };
  readonly #waits = new LayerWaits();
  /** Places of the step in flight without an answer of attention workers. */
  #failedSequences: readonly number[] | undefined;

  /** @param hostLink undefined: loads from host memory and stores to it take no time */
  constructor(
    { cost, hostLink }: { readonly cost: StepCostModel; readonly hostLink?: HostLink | undefined },
    queue: EventQueue,
    timer: Timer,
    index = 0,
    stepListener?: StepListener,
  ) {
    this.#cost = cost;
    this.#hostLink = hostLink;
    this.#queue = queue;
    this.#timer = timer;
    this.#index = index;
    this.#stepListener = stepListener;
  }

  get isRunning(): boolean {
    return this.#running;
  }

  /** Time of the first step of the run. */
  get firstStepUs(): number {
    return this.#stepUs[0];
  }

  /** End of the run in flight. */
  get endsUs(): number {
    return this.#endsUs;
  }

  /** Time that loads and stores add to the run in flight. */
  get exposedUs(): number {
    return this.#exposedUs;
  }

  /** @param remote keys at other instances that the rows attend to: the same for all steps of a run */
  run({ step, shape, stepsMax, range, loadTokens, storeTokens }: RunStep, remote?: RemoteWait): void {
    const added = this.#cost.containsRemoteAttention === true ? undefined : remote;
    const computeUs = range === undefined ? this.#timeSteps(shape, stepsMax, added) : this.#timeStage(shape, range);
    this.#gapUs = this.#cost.gapUs ?? 0;
    const total = computeUs + this.#addHostTraffic(loadTokens, storeTokens);
    const { nowUs } = this.#queue;
    this.#step = step;
    this.#firstShape = shape;
    this.#startedUs = nowUs;
    this.#endsUs = nowUs + total;
    this.#computeUs = total;
    this.#running = true;
    this.#timer.schedule(this.#endsUs);
  }

  /** The step that begins now waits for these blocks, layer by layer, until they arrive or time out: a single step, not a run. */
  waitForBlocks(pending: readonly PendingBlocks[]): void {
    if (pending.length === 0) return;
    this.#waits.begin(this.#queue.nowUs, pending);
    const { nextUs } = this.#waits;
    if (nextUs < Number.POSITIVE_INFINITY) this.#timer.schedule(nextUs);
  }

  /** Blocks of a request begin to arrive, up to block `to`. */
  blocksArriving(id: string, source: LoadSource, to: number): void {
    this.#waits.arriving(this.#queue.nowUs, id, source, to);
  }

  /** The blocks are not required any more. */
  cancelWait(id: string, source: LoadSource): void {
    this.#waits.forget(id, source);
  }

  /** Handles the events that deliver pending blocks or report them missing. */
  observe(event: Event): void {
    if (event.kind === 'arriving') this.blocksArriving(event.id, event.source, event.to);
    else if (event.kind === 'loaded') this.#blocksArrived(event.id, event.source, event.to);
    else if (event.kind === 'peer' && event.message.kind === 'prefixMissing')
      this.#blocksArrived(event.message.id, event.from, 0);
  }

  #blocksArrived(id: string, source: LoadSource, to: number): void {
    const { nowUs } = this.#queue;
    const waited = !this.#waits.isOver;
    const step = { startedUs: this.#startedUs, computeUs: this.#computeUs, layers: this.#cost.layers };
    const endsUs = this.#waits.arrived(nowUs, id, source, to, step);
    if (!waited) return;
    this.#endNotBefore(Math.max(nowUs, endsUs));
    if (this.#waits.isOver) this.#timer.schedule(this.#endsUs);
  }

  /** Extends the step in flight to `untilUs`, unless it ends later. */
  #endNotBefore(untilUs: number): void {
    this.#endsUs = Math.max(this.#endsUs, untilUs);
    this.#stepUs[0] = this.#endsUs - this.#startedUs;
  }

  /** The run ends with the present step: at the boundary of two steps, with the later one. */
  endStepRun(): void {
    const { nowUs } = this.#queue;
    let endsUs = this.#startedUs;
    let steps = 0;
    while (steps < this.#stepUs.length && endsUs <= nowUs) endsUs += this.#stepUs[steps++];
    if (steps === this.#stepUs.length) return;
    this.#stepUs.length = steps;
    this.#endsUs = endsUs;
    // The timer of the earlier end fires without effect.
    this.#timer.schedule(endsUs);
  }

  /** Aborts the present step; the earlier steps of its run count. */
  abort(): void {
    const { nowUs } = this.#queue;
    const steps = this.stepsEnded;
    if (!this.#running || steps === this.#stepUs.length) return;
    this.#waits.clear();
    this.#failedSequences = undefined;
    this.#stepUs.length = steps;
    this.#endsUs = nowUs;
    this.#timer.schedule(nowUs);
  }

  /** Attention workers do not answer: the step that has just begun ends after `us`, and the sequences at these places fail. */
  failStep(us: number, places: readonly number[]): void {
    this.#failedSequences = places;
    this.#endsUs = this.#startedUs + us;
    this.#stepUs.length = 1;
    this.#stepUs[0] = us;
    this.#timer.schedule(this.#endsUs);
  }

  /** Drops the run in flight without a result. Returns how many of its steps had ended. */
  stop(): number {
    const steps = this.stepsEnded;
    this.#running = false;
    this.#waits.clear();
    this.#failedSequences = undefined;
    return steps;
  }

  /** Number of steps of the run in flight that have ended. */
  get stepsEnded(): number {
    const { nowUs } = this.#queue;
    if (!this.#running || !this.#waits.isOver) return 0;
    let endsUs = this.#startedUs;
    let steps = 0;
    while (steps < this.#stepUs.length && endsUs + this.#stepUs[steps] <= nowUs) endsUs += this.#stepUs[steps++];
    return steps;
  }

  /** The event for the instance if its run ends now; `stepUs` is valid until the next run. */
  takeEnd(): StepEnd | undefined {
    const { nowUs } = this.#queue;
    if (!this.#running || !this.#waitsAreOver(nowUs) || nowUs !== this.#endsUs) return undefined;
    this.#running = false;
    if (this.#stepUs.length === 0) return { kind: 'stepAborted', step: this.#step };
    if (this.#firstShape !== undefined)
      this.#stepListener?.(this.#index, this.#startedUs, this.#firstShape, this.#stepUs);
    const failedSequences = this.#failedSequences ?? this.#waits.failedSequences;
    const result = failedSequences && { failedSequences };
    this.#stepUs[0] -= this.#gapUs;
    this.#waits.clear();
    this.#failedSequences = undefined;
    return { kind: 'stepDone', step: this.#step, result, stepUs: this.#stepUs };
  }

  /** True when all pending blocks have arrived or timed out. */
  #waitsAreOver(nowUs: number): boolean {
    if (this.#waits.isOver) return true;
    this.#waits.expire(nowUs);
    if (!this.#waits.isOver) return false;
    this.#endNotBefore(nowUs);
    return true;
  }

  /** Adds the part of the first step's loads and stores that its computation does not hide. */
  #addHostTraffic(loadTokens: number, storeTokens: number): number {
    this.#exposedUs = 0;
    if (this.#hostLink === undefined || loadTokens + storeTokens === 0) return 0;
    this.#exposedUs = Math.round(this.#hostLink.exposedUs(this.#stepUs[0], loadTokens, storeTokens));
    this.#stepUs[0] += this.#exposedUs;
    return this.#exposedUs;
  }

  #timeStage(shape: StepShape, range: NonNullable<RunStep['range']>): number {
    const us = Math.round(this.#cost.stageUs(shape, range) * this.slowness);
    while (this.#stepUs.length > 1) this.#stepUs.pop();
    this.#stepUs[0] = us;
    return us;
  }

  /** Sets the time of each step and returns their sum. All steps have the same rows, each one token after the last step's. */
  #timeSteps(shape: StepShape, steps: number, remote: RemoteWait | undefined): number {
    const { rows, decodeRows } = shape;
    const keyRows = shape.keyRows - (remote?.keyRows ?? 0);
    const decodeKeys = shape.decodeKeys - (remote?.decodeKeys ?? 0);
    const now = this.#shape;
    now.rows = rows;
    now.decodeRows = decodeRows;
    now.logitRows = shape.logitRows;
    if (shape.sparse !== undefined) this.selectionUs += this.#cost.selectionUs?.(shape.sparse) ?? 0;
    let total = 0;
    for (let i = 0; i < steps; i++) {
      now.keyRows = keyRows + i * rows;
      now.decodeKeys = decodeKeys + i * decodeRows;
      const later = shape.sparse === undefined ? now : laterShape(shape, i);
      this.decodeKeys += later.decodeKeys;
      this.decodeKeysRead += meanShape(later, this.#cost.layers).decodeKeys;
      let us = this.#cost.stepUs(later);
      if (this.slowness !== 1) us = Math.round(us * this.slowness);
      if (remote !== undefined) us = distributedUs(us, attentionUs(this.#cost, now), remote.remoteUs);
      if (this.servedAttentionPermille > 0 && this.#cost.containsRemoteAttention !== true)
        us = Math.round(withServedAttentionUs(us, this.servedAttentionPermille));
      this.#stepUs[i] = us;
      total += us;
    }
    // One by one: setting the length frees memory that the next run needs again.
    while (this.#stepUs.length > steps) this.#stepUs.pop();
    return total;
  }
}
