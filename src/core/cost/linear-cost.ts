// A cost model fitted to measured steps, linear in the features of a step's shape, like the online predictor of
// instances.

import { type LayerRange, layersOf, type StepShape } from '../protocol/step-shape.ts';
import type { StepCostModel } from './roofline.ts';

/**
 * Microseconds of a step, and of each row, each key that a row attends to, each decoding sequence, and each row with
 * logits.
 */
export interface LinearTimes {
  readonly stepUs: number;
  readonly rowUs: number;
  readonly keyUs: number;
  readonly decodeRowUs: number;
  readonly logitRowUs: number;
}

export interface TimedStep {
  readonly shape: StepShape;
  readonly us: number;
}

export interface KvSizes {
  readonly layers: number;
  readonly kvBytesPerToken: number;
  readonly kvCapacityTokens: number;
  readonly activationBytesPerToken: number;
}

export class LinearCost implements StepCostModel {
  readonly layers: number;
  readonly kvBytesPerToken: number;
  readonly kvCapacityTokens: number;
  readonly activationBytesPerToken: number;
  readonly #times: LinearTimes;

  constructor(times: LinearTimes, sizes: KvSizes) {
    this.#times = times;
    this.layers = sizes.layers;
    this.kvBytesPerToken = sizes.kvBytesPerToken;
    this.kvCapacityTokens = sizes.kvCapacityTokens;
    this.activationBytesPerToken = sizes.activationBytesPerToken;
  }

  stepUs(shape: StepShape): number {
    const { stepUs, rowUs, keyUs, decodeRowUs, logitRowUs } = this.#times;
    const { rows, keyRows, decodeRows, logitRows } = shape;
    const us = stepUs + rows * rowUs + keyRows * keyUs + decodeRows * decodeRowUs + logitRows * logitRowUs;
    return Math.max(1, Math.round(us));
  }

  /** Assumes that time is proportional to layers. */
  stageUs(shape: StepShape, range: LayerRange): number {
    return Math.max(1, Math.round((this.stepUs(shape) * layersOf(this.layers, range)) / this.layers));
  }

  /** n rows add n row + key (n position + n (n + 1) / 2). */
  rowsWithin(budgetUs: number, shape: StepShape, position: number): number {
    const { rowUs, keyUs, logitRowUs } = this.#times;
    const left = budgetUs - this.stepUs(shape) - logitRowUs;
    if (left <= 0) return 0;
    const linear = rowUs + keyUs * (position + 1 / 2);
    return Math.floor((2 * left) / (linear + Math.sqrt(linear * linear + 2 * keyUs * left)));
  }
}

/**
 * Least squares of relative errors, so that a decode step weighs as much as a chunk. Coefficients are not negative:
 * negative ones are removed one at a time, and so are those that depend linearly on others before them.
 * @param required coefficients to fit; the others are 0
 * @throws RangeError without steps
 */
export function fitLinearCost(
  steps: readonly TimedStep[],
  required: readonly (keyof LinearTimes)[] = names,
): LinearTimes {
  if (steps.length === 0) throw new RangeError('Cannot fit a cost model: there are no steps');
  const used = [...required];
  for (;;) {
    const solved = solve(steps, used);
    const worst = solved.indexOf(Math.min(...solved));
    if (solved[worst] >= 0) {
      const times = { stepUs: 0, rowUs: 0, keyUs: 0, decodeRowUs: 0, logitRowUs: 0 };
      for (const [i, name] of used.entries()) times[name] = solved[i];
      return times;
    }
    used.splice(worst, 1);
  }
}

const names = ['stepUs', 'rowUs', 'keyUs', 'decodeRowUs', 'logitRowUs'] as const;

const features: Readonly<Record<keyof LinearTimes, (shape: StepShape) => number>> = {
  stepUs: () => 1,
  rowUs: ({ rows }) => rows,
  keyUs: ({ keyRows }) => keyRows,
  decodeRowUs: ({ decodeRows }) => decodeRows,
  logitRowUs: ({ logitRows }) => logitRows,
};

/**
 * Minimum of an unknown's own sum, of 1, after elimination of those before it; below it the unknown is linearly
 * dependent.
 */
const independentMin = 1e-9;

/**
 * Solves the normal equations by elimination, with each unknown scaled so that its own sum is 1. A linearly dependent
 * unknown becomes negative.
 */
function solve(steps: readonly TimedStep[], used: readonly (keyof LinearTimes)[]): readonly number[] {
  const n = used.length;
  const columns = used.map((name) => Float64Array.from(steps, ({ shape, us }) => features[name](shape) / us));
  const norms = columns.map((column) => Math.sqrt(dot(column, column)));
  const ones = new Float64Array(steps.length).fill(1);
  const matrix = columns.map((a, i) => [
    ...columns.map((b, j) => dot(a, b) / (norms[i] * norms[j])),
    dot(a, ones) / norms[i],
  ]);
  for (let i = 0; i < n; i++) {
    // No row exchanges: the matrix is positive definite except for dependent unknowns.
    const divisor = matrix[i][i];
    if (!(divisor > independentMin)) return used.map((_, k) => (k === i ? -1 : 0));
    for (let k = 0; k < n; k++) {
      if (k === i) continue;
      const factor = matrix[k][i] / divisor;
      for (let j = i; j <= n; j++) matrix[k][j] -= factor * matrix[i][j];
    }
  }
  return matrix.map((row, i) => row[n] / row[i] / norms[i]);
}

function dot(a: Float64Array, b: Float64Array): number {
  let sum = 0;
  for (const [i, value] of a.entries()) sum += value * b[i];
  return sum;
}
