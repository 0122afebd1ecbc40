// An instance's engine in the simulator: a step takes as long as its cost model says.
import type { InstanceEffect } from '../cluster/effects.ts';
import type { LengthRequest, StepCostModel } from '../cluster/length-work.ts';
import type { InstanceEvent } from '../cluster/messages.ts';
import type { EventHeap } from './event-heap.ts';

type StepShape = Extract<InstanceEffect, { kind: 'runStep' }>['shape'];

type StepDone = Extract<InstanceEvent<LengthRequest, undefined>, { kind: 'stepDone' }>;

/** One run at a time; its end stands in the heap under the instance's number. */
export class SimulatedExecutor {
  readonly #cost: StepCostModel;
  readonly #heap: EventHeap;
  readonly #index: number;
  #step = 0;
  #running = false;
  #endsUs = 0;
  #startedUs = 0;
  /** How long each step of the run takes; the first `#steps` of them count. */
  #stepUs = new Float64Array(64);
  #steps = 0;

  constructor(cost: StepCostModel, heap: EventHeap, index: number) {
    this.#cost = cost;
    this.#heap = heap;
    this.#index = index;
  }

  run(nowUs: number, step: number, shape: StepShape, stepsMax: number): void {
    if (stepsMax > this.#stepUs.length) this.#stepUs = new Float64Array(2 * stepsMax);
    const now = { ...shape };
    let total = 0;
    for (let i = 0; i < stepsMax; i++) {
      const us = this.#cost.stepUs(now);
      this.#stepUs[i] = us;
      total += us;
      now.keyRows += now.rows;
      now.decodeKeys += now.decodeRows;
    }
    this.#step = step;
    this.#startedUs = nowUs;
    this.#steps = stepsMax;
    this.#endsUs = nowUs + total;
    this.#running = true;
    this.#heap.push(this.#endsUs, this.#index);
  }

  /** The run ends with the step that runs at `nowUs`; one that ends just then has been followed by the next. */
  endRun(nowUs: number): void {
    let endsUs = this.#startedUs;
    let steps = 0;
    while (steps < this.#steps && endsUs <= nowUs) endsUs += this.#stepUs[steps++];
    if (steps === this.#steps) return;
    this.#steps = steps;
    this.#endsUs = endsUs;
    // The end that was planned first stays in the heap and finds nothing to do.
    this.#heap.push(endsUs, this.#index);
  }

  /** The event for the machine if its run ends now; `stepUs` is valid until the next run. */
  due(nowUs: number): StepDone | undefined {
    if (!this.#running || nowUs !== this.#endsUs) return undefined;
    this.#running = false;
    const stepUs = this.#stepUs.subarray(0, this.#steps);
    return { kind: 'stepDone', step: this.#step, result: undefined, stepUs };
  }
}
