// Steps that take as long as they took elsewhere: a run is replayed with the times of another one.

import type { TimedStep } from './linear-cost.ts';
import type { StepCostModel } from './roofline.ts';
import type { LayerRange, StepShape } from './step-shape.ts';

/** Step after step takes the recorded time while it has the recorded rows; others what the model says. */
export class RecordedSteps implements StepCostModel {
  readonly layers: number;
  readonly kvBytesPerToken: number;
  readonly kvCapacityTokens: number;
  readonly activationBytesPerToken: number;
  readonly #model: StepCostModel;
  readonly #steps: readonly TimedStep[];
  #next = 0;
  /** Steps that had the rows of the record. */
  matched = 0;

  constructor(steps: readonly TimedStep[], model: StepCostModel) {
    this.#steps = steps;
    this.#model = model;
    this.layers = model.layers;
    this.kvBytesPerToken = model.kvBytesPerToken;
    this.kvCapacityTokens = model.kvCapacityTokens;
    this.activationBytesPerToken = model.activationBytesPerToken;
  }

  stepUs(shape: StepShape): number {
    const recorded = this.#steps.at(this.#next);
    this.#next++;
    if (recorded === undefined) return this.#model.stepUs(shape);
    if (!isLike(recorded.shape, shape)) return this.#scaled(recorded, shape);
    this.matched++;
    return Math.max(1, Math.round(recorded.us));
  }

  stageUs(shape: StepShape, range: LayerRange): number {
    return this.#model.stageUs(shape, range);
  }

  rowsWithin(budgetUs: number, shape: StepShape, position: number): number {
    return this.#model.rowsWithin(budgetUs, shape, position);
  }

  /** As much slower or faster than the model as the recorded step was; what held that one up adds, whatever the rows. */
  #scaled({ shape: recorded, us }: TimedStep, shape: StepShape): number {
    const [here, there] = [this.#model.stepUs(shape), this.#model.stepUs(recorded)];
    const scaled = (here * us) / there;
    return Math.max(1, Math.round(us > there ? Math.min(scaled, here + us - there) : scaled));
  }
}

function isLike(a: StepShape, b: StepShape): boolean {
  return a.rows === b.rows && a.keyRows === b.keyRows && a.decodeRows === b.decodeRows;
}
