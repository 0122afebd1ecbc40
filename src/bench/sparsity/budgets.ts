// Kept tokens by layer: the first layers full, a pyramid, or all equal.

export const layerRules = ['uniform', 'pyramid', 'first-n'] as const;
export type LayerRule = (typeof layerRules)[number];

export interface BudgetRequest {
  readonly layers: number;
  /** Tokens of the prompt. */
  readonly tokens: number;
  /** Mean tokens that a sparse layer keeps, the recent window included. */
  readonly budget: number;
  /** Recent tokens that every layer keeps. */
  readonly recent: number;
  /** Full layers of `first-n`. */
  readonly fullLayers: number;
}

/** PyramidKV's slope: the last layer keeps (budget - recent) / beta tokens besides the recent window. */
const beta = 20;

/** (layers): kept tokens, all of the prompt's in a full layer. */
export function layerBudgets(rule: LayerRule, request: BudgetRequest): readonly number[] {
  const { layers, tokens, budget, recent, fullLayers } = request;
  const capped = Math.min(tokens, Math.max(budget, recent));
  if (rule !== 'pyramid')
    return Array.from({ length: layers }, (_, layer) => (rule === 'first-n' && layer < fullLayers ? tokens : capped));
  const mean = capped - recent;
  if (capped >= tokens || layers === 1) return Array.from({ length: layers }, () => capped);
  let least = mean / beta;
  let most = 2 * mean - least;
  if (most >= tokens - recent) {
    most = tokens - recent;
    least = 2 * mean - most;
  }
  const slope = (most - least) / (layers - 1);
  return Array.from({ length: layers }, (_, layer) => recent + Math.round(most - layer * slope));
}
