// An instance's engine in the simulator: a step takes as long as its cost model says.

import type { HostLink } from '../../core/cost/host-link.ts';
import type { StepCostModel } from '../../core/cost/roofline.ts';
import type { LengthEvent } from '../../core/instance/length-instance.ts';
import { attentionUs, besideGuestsUs, distributedUs } from '../../core/lending/debtor/remote-work.ts';
import type { InstanceEffect } from '../../core/protocol/effects.ts';
import type { LoadSource } from '../../core/protocol/events.ts';
import type { AwaitedBlocks } from '../../core/transfer/prefix-fetch/prefix-loads.ts';
import { wideZero } from '../../util/wide-zero.ts';
import type { RemotePart } from '../lending/remote-attention.ts';
import type { EventHeap } from './event-heap.ts';
import { LayerWaits } from './layer-waits.ts';

type RunStep = Omit<Extract<InstanceEffect, { kind: 'runStep' }>, 'plan'>;
type StepShape = RunStep['shape'];

type Event = LengthEvent;
type StepEnd = Extract<Event, { kind: 'stepDone' | 'stepAborted' }>;

/** Hears of every run of equal steps as it ends: `shape` is that of its first step; both are valid during the call. */
export type StepWatch = (instance: number, startedUs: number, shape: StepShape, stepUs: readonly number[]) => void;

/** One run at a time; its end stands in the heap under the instance's number. */
export class SimulatedExecutor {
  readonly #cost: StepCostModel;
  readonly #heap: EventHeap;
  readonly #index: number;
  readonly #watch: StepWatch | undefined;
  readonly #hostLink: HostLink | undefined;
  /** How many times as long steps take from the next one on. */
  slowness = 1;
  #exposedUs = 0;
  #first: StepShape | undefined;
  #step = 0;
  #running = false;
  #endsUs: number = wideZero;
  #startedUs: number = wideZero;
  #computeUs: number = wideZero;
  /** How long each step of the run takes. */
  readonly #stepUs: number[] = [];
  /** What guests take of every step from the next on, in thousandths. */
  remoteAttentionPermille = 0;
  readonly #shape = { rows: 0, keyRows: 0, decodeRows: 0, decodeKeys: 0, logitRows: 0 };
  readonly #waits = new LayerWaits();

  /** @param hostLink undefined: nothing is loaded from host memory or stored there, or it costs nothing */
  constructor(
    { cost, hostLink }: { readonly cost: StepCostModel; readonly hostLink?: HostLink | undefined },
    heap: EventHeap,
    index: number,
    watch?: StepWatch,
  ) {
    this.#cost = cost;
    this.#hostLink = hostLink;
    this.#heap = heap;
    this.#index = index;
    this.#watch = watch;
  }

  get isRunning(): boolean {
    return this.#running;
  }

  /** How long the first step of the run takes. */
  get firstStepUs(): number {
    return this.#stepUs[0];
  }

  /** When the run in flight ends. */
  get endsUs(): number {
    return this.#endsUs;
  }

  /** What loads and stores added to the run in flight. */
  get exposedUs(): number {
    return this.#exposedUs;
  }

  /** @param remote what its rows see at other instances: the same for all steps of a run */
  run(nowUs: number, { step, shape, stepsMax, range, loadTokens, storeTokens }: RunStep, remote?: RemotePart): void {
    const computeUs = range === undefined ? this.#time(shape, stepsMax, remote) : this.#timeStage(shape, range);
    const total = computeUs + this.#addHostTraffic(loadTokens, storeTokens);
    this.#step = step;
    this.#first = shape;
    this.#startedUs = nowUs;
    this.#endsUs = nowUs + total;
    this.#computeUs = total;
    this.#running = true;
    this.#heap.push(this.#endsUs, this.#index);
  }

  /** The step that begins now does not end before these have come, each layer of it in time, or are given up: one step, and no run. */
  await(nowUs: number, awaited: readonly AwaitedBlocks[]): void {
    if (awaited.length === 0) return;
    this.#waits.begin(nowUs, awaited);
    const { nextUs } = this.#waits;
    if (nextUs < Number.POSITIVE_INFINITY) this.#heap.push(nextUs, this.#index);
  }

  /** Blocks of a request begin to come, as far as block `to`. */
  began(nowUs: number, id: string, source: LoadSource, to: number): void {
    this.#waits.began(nowUs, id, source, to);
  }

  /** Nobody wants them any more. */
  forget(id: string, source: LoadSource): void {
    this.#waits.forget(id, source);
  }

  /** What comes to the instance, or does not, may be what its step waits for. */
  hear(nowUs: number, event: Event): void {
    if (event.kind === 'arriving') this.began(nowUs, event.id, event.source, event.to);
    else if (event.kind === 'loaded') this.#came(nowUs, event.id, event.source, event.to);
    else if (event.kind === 'peer' && event.message.kind === 'missing')
      this.#came(nowUs, event.message.id, event.from, 0);
  }

  #came(nowUs: number, id: string, source: LoadSource, to: number): void {
    const waited = !this.#waits.isOver;
    const step = { startedUs: this.#startedUs, computeUs: this.#computeUs, layers: this.#cost.layers };
    const endsUs = this.#waits.came(nowUs, id, source, to, step);
    if (!waited) return;
    this.#hold(Math.max(nowUs, endsUs));
    if (this.#waits.isOver) this.#heap.push(this.#endsUs, this.#index);
  }

  /** The step in flight ends no sooner. */
  #hold(untilUs: number): void {
    this.#endsUs = Math.max(this.#endsUs, untilUs);
    this.#stepUs[0] = this.#endsUs - this.#startedUs;
  }

  /** The run ends with the step that runs at `nowUs`; one that ends just then has been followed by the next. */
  endRun(nowUs: number): void {
    let endsUs = this.#startedUs;
    let steps = 0;
    while (steps < this.#stepUs.length && endsUs <= nowUs) endsUs += this.#stepUs[steps++];
    if (steps === this.#stepUs.length) return;
    this.#stepUs.length = steps;
    this.#endsUs = endsUs;
    // The end that was planned first stays in the heap and finds nothing to do.
    this.#heap.push(endsUs, this.#index);
  }

  /** The step that runs at `nowUs` is given up then and there; those of its run that ended before it count. */
  abort(nowUs: number): void {
    const steps = this.endedBy(nowUs);
    if (!this.#running || steps === this.#stepUs.length) return;
    this.#waits.clear();
    this.#stepUs.length = steps;
    this.#endsUs = nowUs;
    this.#heap.push(nowUs, this.#index);
  }

  /** The run in flight is never heard of. Returns how many of its steps had ended. */
  stop(nowUs: number): number {
    const steps = this.endedBy(nowUs);
    this.#running = false;
    this.#waits.clear();
    return steps;
  }

  /** Of the run in flight, how many steps have ended. */
  endedBy(nowUs: number): number {
    if (!this.#running || !this.#waits.isOver) return 0;
    let endsUs = this.#startedUs;
    let steps = 0;
    while (steps < this.#stepUs.length && endsUs + this.#stepUs[steps] <= nowUs) endsUs += this.#stepUs[steps++];
    return steps;
  }

  /** The event for the machine if its run ends now; `stepUs` is valid until the next run. */
  due(nowUs: number): StepEnd | undefined {
    if (!this.#running || !this.#hasAll(nowUs) || nowUs !== this.#endsUs) return undefined;
    this.#running = false;
    if (this.#stepUs.length === 0) return { kind: 'stepAborted', step: this.#step };
    if (this.#first !== undefined) this.#watch?.(this.#index, this.#startedUs, this.#first, this.#stepUs);
    const { unanswered } = this.#waits;
    const result = unanswered && { unanswered };
    this.#waits.clear();
    return { kind: 'stepDone', step: this.#step, result, stepUs: this.#stepUs };
  }

  /** What it waited for is here, or given up. */
  #hasAll(nowUs: number): boolean {
    if (this.#waits.isOver) return true;
    this.#waits.expire(nowUs);
    if (!this.#waits.isOver) return false;
    this.#hold(nowUs);
    return true;
  }

  /** What the first step of a run loads from host memory and stores there takes longer than it computes. */
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

  /** Fills in the time of each step, all with the same rows, one token further each; returns their sum. */
  #time(shape: StepShape, steps: number, remote: RemotePart | undefined): number {
    const { rows, decodeRows } = shape;
    const keyRows = shape.keyRows - (remote?.keyRows ?? 0);
    const decodeKeys = shape.decodeKeys - (remote?.decodeKeys ?? 0);
    const now = this.#shape;
    now.rows = rows;
    now.decodeRows = decodeRows;
    now.logitRows = shape.logitRows;
    let total = 0;
    for (let i = 0; i < steps; i++) {
      now.keyRows = keyRows + i * rows;
      now.decodeKeys = decodeKeys + i * decodeRows;
      let us = this.slowness === 1 ? this.#cost.stepUs(now) : Math.round(this.#cost.stepUs(now) * this.slowness);
      if (remote !== undefined) us = distributedUs(us, attentionUs(this.#cost, now), remote.awaitedUs);
      if (this.remoteAttentionPermille > 0) us = besideGuestsUs(us, this.remoteAttentionPermille);
      this.#stepUs[i] = us;
      total += us;
    }
    // One by one: setting the length gives memory back that the next run wants again.
    while (this.#stepUs.length > steps) this.#stepUs.pop();
    return total;
  }
}
