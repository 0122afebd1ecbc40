// A cost model from learned step times, as live instances report them.

import type { KvSizes } from '../../core/cost/linear-cost.ts';
import type { StepCostModel } from '../../core/cost/roofline.ts';
import { StepCost } from '../../core/cost/step-cost.ts';
import type { LayerRange, StepShape } from '../../core/protocol/step-shape.ts';

export class LearnedCost implements StepCostModel {
  readonly layers: number;
  readonly kvBytesPerToken: number;
  readonly kvCapacityTokens: number;
  readonly activationBytesPerToken: number;
  readonly #steps: StepCost;

  constructor(sizes: KvSizes) {
    this.layers = sizes.layers;
    this.kvBytesPerToken = sizes.kvBytesPerToken;
    this.kvCapacityTokens = sizes.kvCapacityTokens;
    this.activationBytesPerToken = sizes.activationBytesPerToken;
    this.#steps = new StepCost(sizes.layers);
  }

  /** @param coefficients of `StepCost`, as an instance reports them */
  setCoefficients(coefficients: readonly number[]): void {
    this.#steps.setCoefficients(coefficients);
  }

  stepUs(shape: StepShape): number {
    return Math.round(this.#steps.predictUs(shape));
  }

  stageUs(shape: StepShape, range: LayerRange): number {
    return Math.round(this.#steps.predictStageUs(shape, range));
  }

  rowsWithin(budgetUs: number, shape: StepShape, position: number): number {
    return this.#steps.rowsWithin(budgetUs, shape, position);
  }
}
