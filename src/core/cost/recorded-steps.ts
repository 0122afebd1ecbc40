// Steps that take as long as they took elsewhere: a run is replayed with the times of another one.

import type { LayerRange, StepShape } from '../protocol/step-shape.ts';
import type { TimedStep } from './linear-cost.ts';
import type { StepCostModel } from './roofline.ts';

/** A step that ran, by a clock that both runs have. */
export interface StepThen extends TimedStep {
  readonly startedUs: number;
}

/** What lies between two steps, where an instance does not wait. */
const gapUsMax = 2000;
/** A step that begins later than it did ends sooner, by this share of its time at most: until it ends when it did. */
const hurryMax = 1 / 2;

/**
 * A step with the rows of one that ran about then ends when that one did; others take as much longer or shorter than the model says as the one that ran at that time. So
 * where two runs part for a while, the one does not stay ahead of the other.
 */
export class RecordedSteps<Step extends StepThen = StepThen> implements StepCostModel {
  readonly layers: number;
  readonly kvBytesPerToken: number;
  readonly kvCapacityTokens: number;
  readonly activationBytesPerToken: number;
  readonly #model: StepCostModel;
  readonly #nowUs: () => number;
  readonly #steps: readonly Step[];
  readonly #ran: Uint8Array;
  /** Those before are long over. */
  #from = 0;
  /** Steps that had the rows of the record. */
  matched = 0;
  /** The recorded one that the latest step had the rows of, and the same of the step before; undefined: none. */
  latest: Step | undefined;
  previous: Step | undefined;
  /** When the latest began here. */
  beganUs: number | undefined;

  /** @param steps in their order, one at a time */
  constructor(steps: readonly Step[], model: StepCostModel, nowUs: () => number) {
    this.#steps = steps;
    this.#ran = new Uint8Array(steps.length);
    this.#nowUs = nowUs;
    this.#model = model;
    this.layers = model.layers;
    this.kvBytesPerToken = model.kvBytesPerToken;
    this.kvCapacityTokens = model.kvCapacityTokens;
    this.activationBytesPerToken = model.activationBytesPerToken;
  }

  stepUs(shape: StepShape): number {
    const nowUs = this.#nowUs();
    this.previous = this.latest;
    this.latest = undefined;
    this.beganUs = nowUs;
    while (this.#from < this.#steps.length && isOver(this.#steps[this.#from], nowUs)) this.#from++;
    let then: StepThen | undefined;
    for (let i = this.#from; i < this.#steps.length && isNear(this.#steps[i], nowUs); i++) {
      if (then === undefined || this.#steps[i].startedUs <= nowUs) then = this.#steps[i];
      if (this.#ran[i] === 1 || !isLike(this.#steps[i].shape, shape)) continue;
      this.#ran[i] = 1;
      this.matched++;
      this.latest = this.#steps[i];
      const { startedUs, us } = this.#steps[i];
      return Math.max(1, Math.round(Math.max(us * hurryMax, startedUs + us - nowUs)));
    }
    return then === undefined ? this.#model.stepUs(shape) : this.#scaled(then, shape, nowUs);
  }

  stageUs(shape: StepShape, range: LayerRange): number {
    return this.#model.stageUs(shape, range);
  }

  rowsWithin(budgetUs: number, shape: StepShape, position: number): number {
    return this.#model.rowsWithin(budgetUs, shape, position);
  }

  /** What held the recorded one up adds, whatever the rows, and no longer than it did. */
  #scaled({ shape: recorded, startedUs, us }: StepThen, shape: StepShape, nowUs: number): number {
    const [here, there] = [this.#model.stepUs(shape), this.#model.stepUs(recorded)];
    const scaled = (here * us) / there;
    if (us <= there) return Math.max(1, Math.round(scaled));
    const heldUs = Math.min(us - there, Math.max(0, startedUs + us - nowUs));
    return Math.max(1, Math.round(Math.min(scaled, here + heldUs)));
  }
}

/** It ended so long ago that none that begins now is the same. */
function isOver({ startedUs, us }: StepThen, nowUs: number): boolean {
  return startedUs + 2 * us + gapUsMax < nowUs;
}

/** It has begun, or will before long. */
function isNear({ startedUs, us }: StepThen, nowUs: number): boolean {
  return startedUs <= nowUs + us + gapUsMax;
}

function isLike(a: StepShape, b: StepShape): boolean {
  return a.rows === b.rows && a.keyRows === b.keyRows && a.decodeRows === b.decodeRows;
}
