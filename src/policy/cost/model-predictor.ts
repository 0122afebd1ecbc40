// A predictor that knows the cost model of its instance: simulations, and fleets whose hardware has been measured.
import type { StepCostModel } from './roofline.ts';
import type { StepPredictor, StepShape } from './step-shape.ts';

export class ModelPredictor implements StepPredictor {
  readonly #model: StepCostModel;

  constructor(model: StepCostModel) {
    this.#model = model;
  }

  predictUs(shape: StepShape): number {
    return this.#model.stepUs(shape);
  }

  rowsWithin(budgetUs: number, shape: StepShape, position: number): number {
    return this.#model.rowsWithin(budgetUs, shape, position);
  }

  /** It knows all there is to know. */
  observe(): void {}
}
