// Predicted step time: a linear model of the step's shape, fitted online to the steps that ran.

import { type LayerRange, laterShape, layersOf, type StepPredictor, type StepShape } from '../protocol/step-shape.ts';

const features = 5;

/** Unit of each coefficient: keeps the five values at a similar size, so that the filter is well conditioned. */
const unit = Float64Array.of(1, 256, 65_536, 32, 32);

/** Initial guess in microseconds per unit: a small model on a few cores. A few steps replace it. */
const prior = Float64Array.of(2_000, 60_000, 40_000, 9_500, 6_000);

/** Relative standard deviation of step times that the shape does not explain. */
const noise = 0.2;
/** Share of the prior's uncertainty that every step adds, so that the fit follows a changing machine load. */
const drift = 0.03;
/** Errors are limited to this number of standard deviations: a pause of the machine does not ruin the fit. */
const errorDeviationsMax = 4;
/** An error is relative to the prediction, or to this share of the time if that is more: a first step may take five times as long. */
const timeShare = 2 / 3;
const stepUsMin = 100;

/**
 * A Kalman filter with slowly drifting coefficients: recursive least squares that forgets, but keeps coefficients
 * without new data. Errors are relative to the prediction: a decode step of 5 ms weighs as much as a chunk of 100 ms,
 * and slow steps as much as fast ones, so that predictions are right in the mean. Prompt rows and decode rows have
 * coefficients of their own: kernels for few rows differ, and decode steps must not change the time of prompts.
 * Coefficients are not negative.
 */
export class StepCost implements StepPredictor {
  readonly #weights = Float64Array.from(prior);
  /** (5, 5): covariance of the weights. */
  readonly #covariance = new Float64Array(features * features);
  readonly #x = new Float64Array(features);
  readonly #gain = new Float64Array(features);
  readonly #layers: number | undefined;
  #observed = 0;

  /** @param layers of the model; undefined: all ranges of layers are equal */
  constructor(layers?: number) {
    this.#layers = layers;
    for (let i = 0; i < features; i++) this.#covariance[i * features + i] = priorVariance(i);
  }

  /** Number of observed steps. */
  get observed(): number {
    return this.#observed;
  }

  /** Of a step, a prompt row, a key of a row, a decode row and a row with logits, in their units. */
  get coefficients(): readonly number[] {
    return [...this.#weights];
  }

  /** Replaces the coefficients by those of another predictor. */
  setCoefficients(coefficients: readonly number[]): void {
    this.#weights.set(coefficients);
  }

  predictUs(shape: StepShape): number {
    this.#describe(shape, 1);
    return Math.max(stepUsMin, this.#dot());
  }

  /** Assumes equal layers. */
  predictStageUs(shape: StepShape, range: LayerRange): number {
    return this.predictUs(shape) * this.layerShare(range);
  }

  layerShare(range: LayerRange): number {
    return this.#layers === undefined ? 1 / range.stages : layersOf(this.#layers, range) / this.#layers;
  }

  observe(shape: StepShape, stepUs: ArrayLike<number>): void {
    for (let i = 0; i < stepUs.length; i++) this.#learn(laterShape(shape, i), stepUs[i]);
  }

  #learn(shape: StepShape, us: number): void {
    const scale = 1 / Math.max(this.predictUs(shape), timeShare * us);
    this.#describe(shape, scale);
    const variance = this.#multiplyCovariance() + noise * noise;
    const bound = errorDeviationsMax * Math.sqrt(variance);
    const error = Math.min(bound, Math.max(-bound, us * scale - this.#dot()));
    this.#update(error, variance);
    this.#observed++;
  }

  /**
   * Prefill rows of one sequence, the first at `position`, that fit into `budgetUs` on top of `shape`: the largest n
   * with n (row + key (position + 1)) + key n (n - 1) / 2 within the rest; infinite if rows are predicted to take no
   * time.
   */
  rowsWithin(budgetUs: number, shape: StepShape, position: number): number {
    const left = budgetUs - this.predictUs(shape);
    if (left <= 0) return 0;
    const key = this.#weights[2] / unit[2];
    const linear = this.#weights[1] / unit[1] + key * (position + 1 / 2);
    // The root of key n^2 / 2 + linear n = left, in the form without cancellation for a small key.
    return Math.floor((2 * left) / (linear + Math.sqrt(linear * linear + 2 * key * left)));
  }

  #describe(shape: StepShape, scale: number): void {
    this.#x[0] = scale;
    this.#x[1] = ((shape.rows - shape.decodeRows) * scale) / unit[1];
    this.#x[2] = (this.#keyRows(shape) * scale) / unit[2];
    this.#x[3] = (shape.decodeRows * scale) / unit[3];
    this.#x[4] = (shape.logitRows * scale) / unit[4];
  }

  /** Sparse layers read fewer keys. To score a key takes half of the operations of attention to it. */
  #keyRows({ keyRows, sparse }: StepShape): number {
    if (sparse === undefined) return keyRows;
    return keyRows + (sparse.scoredKeyRows / 2 - sparse.skippedKeyRows) / (this.#layers ?? 1);
  }

  #dot(): number {
    let sum = 0;
    for (let i = 0; i < features; i++) sum += this.#weights[i] * this.#x[i];
    return sum;
  }

  /** gain = P x; returns x' P x. */
  #multiplyCovariance(): number {
    let variance = 0;
    for (let i = 0; i < features; i++) {
      let sum = 0;
      for (let j = 0; j < features; j++) sum += this.#covariance[i * features + j] * this.#x[j];
      this.#gain[i] = sum;
      variance += sum * this.#x[i];
    }
    return variance;
  }

  #update(error: number, variance: number): void {
    for (let i = 0; i < features; i++) {
      const gain = this.#gain[i] / variance;
      this.#weights[i] += gain * error;
      for (let j = 0; j < features; j++) this.#covariance[i * features + j] -= gain * this.#gain[j];
    }
    for (let i = 0; i < features; i++) {
      const at = i * features + i;
      const most = priorVariance(i);
      this.#covariance[at] = Math.min(most, this.#covariance[at] + drift * drift * most);
    }
    this.#projectNonNegative();
  }

  /**
   * Projects onto non-negative coefficients, weighted by the covariance: raising one lowers those correlated with it,
   * so that predictions of observed steps stay the same.
   */
  #projectNonNegative(): void {
    for (let n = 0; n < features; n++) {
      let low = 0;
      for (let i = 1; i < features; i++) if (this.#weights[i] / prior[i] < this.#weights[low] / prior[low]) low = i;
      const below = this.#weights[low];
      if (below >= 0) return;
      const variance = this.#covariance[low * features + low];
      for (let i = 0; i < features; i++) this.#weights[i] -= (below * this.#covariance[i * features + low]) / variance;
      this.#weights[low] = 0;
    }
    for (let i = 0; i < features; i++) this.#weights[i] = Math.max(0, this.#weights[i]);
  }
}

/** The initial guess may be wrong by a factor of several. */
function priorVariance(i: number): number {
  return (3 * prior[i]) ** 2;
}
