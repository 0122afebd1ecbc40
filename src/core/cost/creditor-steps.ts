// Step times of an instance that also computes attention for debtors.

import type { LayerRange, StepPredictor, StepShape } from '../protocol/step-shape.ts';
import { withoutServedAttentionUs, withServedAttentionUs } from './dist-attention.ts';

/**
 * Predicts steps with the share of attention for debtors that the instance serves now. The predictor inside learns and
 * predicts the instance's own work alone, so that a change of the share changes all predictions at once.
 */
export class CreditorSteps implements StepPredictor {
  readonly #own: StepPredictor;
  /** Share of steps that attention for debtors takes, in thousandths: now, and when the step in flight began. */
  #permille = 0;
  #permilleAtBegin = 0;

  constructor(own: StepPredictor) {
    this.#own = own;
  }

  /** Those of the own work. */
  get coefficients(): readonly number[] | undefined {
    return this.#own.coefficients;
  }

  /** Share of steps that attention for debtors takes, in thousandths. */
  get servedPermille(): number {
    return this.#permille;
  }

  set servedPermille(permille: number) {
    this.#permille = permille;
  }

  /** A step begins: `observe` takes its time to contain the current share. */
  begin(): void {
    this.#permilleAtBegin = this.#permille;
  }

  /** Time of the own work alone. */
  ownUs(shape: StepShape): number {
    return this.#own.predictUs(shape);
  }

  predictUs(shape: StepShape): number {
    return withServedAttentionUs(this.#own.predictUs(shape), this.#permille);
  }

  predictStageUs(shape: StepShape, range: LayerRange): number {
    return withServedAttentionUs(this.#own.predictStageUs(shape, range), this.#permille);
  }

  layerShare(range: LayerRange): number {
    return this.#own.layerShare(range);
  }

  rowsWithin(budgetUs: number, shape: StepShape, position: number): number {
    return this.#own.rowsWithin(withoutServedAttentionUs(budgetUs, this.#permille), shape, position);
  }

  observe(shape: StepShape, stepUs: ArrayLike<number>): void {
    const permille = this.#permilleAtBegin;
    const ownUs = permille === 0 ? stepUs : Array.from(stepUs, (us) => withoutServedAttentionUs(us, permille));
    this.#own.observe(shape, ownUs);
  }
}
