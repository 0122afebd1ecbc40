// A predictor with the exact cost model of its instance, for simulations and for fleets with measured hardware.

import { type LayerRange, layersOf, type StepPredictor, type StepShape } from '../protocol/step-shape.ts';
import type { StepCostModel } from './roofline.ts';

export class ModelPredictor implements StepPredictor {
  readonly #model: StepCostModel;

  constructor(model: StepCostModel) {
    this.#model = model;
  }

  predictUs(shape: StepShape): number {
    return this.#model.stepUs(shape);
  }

  predictStageUs(shape: StepShape, range: LayerRange): number {
    return this.#model.stageUs(shape, range);
  }

  layerShare(range: LayerRange): number {
    return layersOf(this.#model.layers, range) / this.#model.layers;
  }

  rowsWithin(budgetUs: number, shape: StepShape, position: number): number {
    return this.#model.rowsWithin(budgetUs, shape, position);
  }

  /** The model is exact: there is nothing to learn. */
  observe(): void {}
}
