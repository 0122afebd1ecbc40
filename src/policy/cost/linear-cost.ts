// A cost model fitted to steps that ran: linear in what a step's time depends on, like the predictor that instances learn on line.
import type { StepCostModel } from './roofline.ts';
import { type LayerRange, layersOf, type StepShape } from './step-shape.ts';

/** Microseconds: of any step, of each row, of each key that a row sees, of each sequence that decodes, of each row of logits. */
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

  /** As if the time went by layers. */
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
 * Least squares of relative errors, so that a decode step weighs as much as a chunk; no time is negative (what would be is left out, one at a time).
 * @throws RangeError where the steps do not tell
 */
export function fitLinearCost(steps: readonly TimedStep[]): LinearTimes {
  const used = [0, 1, 2, 3, 4];
  for (;;) {
    const solved = solve(steps, used);
    const worst = solved.indexOf(Math.min(...solved));
    if (solved[worst] >= 0) {
      const all = new Array<number>(5).fill(0);
      for (const [i, feature] of used.entries()) all[feature] = solved[i] / units[feature];
      const [stepUs, rowUs, keyUs, decodeRowUs, logitRowUs] = all;
      return { stepUs, rowUs, keyUs, decodeRowUs, logitRowUs };
    }
    used.splice(worst, 1);
  }
}

/** Keeps the unknowns of like size. */
const units = [1, 256, 65_536, 32, 32];

function featuresOf({ rows, keyRows, decodeRows, logitRows }: StepShape): readonly number[] {
  return [1, rows, keyRows, decodeRows, logitRows].map((value, i) => value / units[i]);
}

/** Normal equations by elimination. */
function solve(steps: readonly TimedStep[], used: readonly number[]): readonly number[] {
  const n = used.length;
  const matrix = Array.from({ length: n }, () => new Array<number>(n + 1).fill(0));
  for (const { shape, us } of steps) {
    const all = featuresOf(shape);
    const x = used.map((feature) => all[feature] / us);
    for (let i = 0; i < n; i++) {
      for (let j = 0; j < n; j++) matrix[i][j] += x[i] * x[j];
      matrix[i][n] += x[i];
    }
  }
  for (let i = 0; i < n; i++) {
    const pivot = matrix
      .slice(i)
      .reduce((best, row, k) => (Math.abs(row[i]) > Math.abs(matrix[best][i]) ? i + k : best), i);
    [matrix[i], matrix[pivot]] = [matrix[pivot], matrix[i]];
    const divisor = matrix[i][i];
    if (Math.abs(divisor) < 1e-18) throw new RangeError(`Cannot fit a cost model: ${steps.length} steps are too alike`);
    for (let k = 0; k < n; k++) {
      if (k === i) continue;
      const factor = matrix[k][i] / divisor;
      for (let j = i; j <= n; j++) matrix[k][j] -= factor * matrix[i][j];
    }
  }
  return matrix.map((row, i) => row[n] / row[i]);
}
