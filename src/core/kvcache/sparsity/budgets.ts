// Budgets of sparse layers: how many tokens of a sequence each of them keeps.

/**
 * `uniform`: every sparse layer has the same budget. `pyramid`: lower layers keep more than higher ones (PyramidKV,
 * arXiv 2406.02069). A list has one budget for each sparse layer.
 */
export type BudgetShape = 'uniform' | 'pyramid' | readonly number[];

export interface BudgetRule {
  readonly shape: BudgetShape;
  /** Sparse layers, at least one. */
  readonly layers: number;
  /** Tokens that each KV head of a layer keeps, the recent ones included; their mean over the layers for a pyramid. A list ignores it. */
  readonly budget: number;
  /** Last tokens of the prompt, which are always kept. */
  readonly recent: number;
}

/** By sparse layer. */
export interface LayerBudgets {
  /** Tokens kept of the prompt. */
  readonly kept: Int32Array;
  /** Tokens kept at most while the sequence decodes: at least as many. */
  readonly slots: Int32Array;
}

/** Ratio of the mean budget to the smallest one of a pyramid, without the recent tokens. */
const pyramidSteepness = 20;

/** Budgets of a prompt of this length. A prompt below its budget is kept whole, and decoding fills the rest. */
export function layerBudgets(rule: BudgetRule, promptTokens: number): LayerBudgets {
  const slots = slotCounts(rule, promptTokens);
  return { kept: slots.map((most) => Math.min(most, promptTokens)), slots };
}

function slotCounts({ shape, layers, budget, recent }: BudgetRule, promptTokens: number): Int32Array {
  if (typeof shape !== 'string') return Int32Array.from(shape);
  const scored = budget - recent;
  const isShort = promptTokens < Math.max(budget, 2 * scored);
  if (shape === 'uniform' || isShort || layers === 1) return new Int32Array(layers).fill(budget);
  return pyramid(scored, layers, promptTokens - recent).map((tokens) => tokens + recent);
}

/**
 * Budgets that fall evenly from the first layer to the last. Those of layers at equal distance from the middle add up
 * to twice the mean, so that rounding does not change the sum.
 */
function pyramid(mean: number, layers: number, tokensMax: number): Int32Array {
  const least = Math.floor(mean / pyramidSteepness);
  const most = Math.min(2 * mean - least, tokensMax);
  const range = 2 * most - 2 * mean;
  return Int32Array.from({ length: layers }, (_, layer) => {
    const fromEnd = layers - 1 - layer;
    if (layer === fromEnd) return mean;
    const below = (nearest: number): number => Math.floor((nearest * range) / (layers - 1));
    return layer < fromEnd ? most - below(layer) : 2 * mean - most + below(fromEnd);
  });
}

/** The smallest budget that keeps a token besides the recent ones. */
export function budgetMin(recent: number): number {
  return recent + 1;
}
