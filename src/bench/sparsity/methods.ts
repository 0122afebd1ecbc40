// The methods of the sparsity bench: which keys of a prompt each layer reads, from the queries of its last rows.
import { type BudgetShape, layerBudgets } from '../../core/kvcache/sparsity/budgets.ts';
import { keyScores, type QueryRows, type ScoreRules, weightSums } from './key-scores.ts';
import type { AttentionCall, LayeredModel, LayerKeys } from './layered-model.ts';
import type { Predictions } from './scoring.ts';
import {
  attendChosen,
  type ChooseKeys,
  chooseKept,
  chooseOracle,
  chooseQuest,
  keepRandom,
  keepScored,
  keepWindow,
} from './sparse-attention.ts';

/**
 * `full` reads all keys. `uniform`, `pyramid` and `first-n` keep the keys of the highest scores; `window` keeps the last
 * ones, `random` any. For each query, `quest` reads the pages with the highest bounds, and `oracle` the keys with the
 * highest weights.
 */
export const sparsityMethods = [
  'full',
  'uniform',
  'pyramid',
  'first-n',
  'quest',
  'window',
  'random',
  'oracle',
] as const;
export type SparsityMethod = (typeof sparsityMethods)[number];

export interface SelectionRules extends ScoreRules {
  /** Rows at the end of the prompt with queries that score keys. */
  readonly observed: number;
  /** Recent tokens that every layer keeps. */
  readonly recent: number;
  /** The first layers that stay full, with any method; undefined: 3 with `first-n`, else none. */
  readonly fullLayers: number | undefined;
  readonly seed: number;
}

/** A method with a budget: a share of the prompt's tokens, 0..1. */
export interface SparseMethod {
  readonly method: SparsityMethod;
  readonly budget: number;
}

/** One prompt: computed once with full attention, continued with any method. */
export class SparseSequence {
  readonly #model: LayeredModel;
  readonly #rules: SelectionRules;
  readonly #promptTokens: number;
  readonly #keys: readonly LayerKeys[];
  readonly #observed: QueryRows[] = [];
  readonly #sums: (Float64Array[] | undefined)[] = [];

  /** @param continuation tokens that follow the prompt at most */
  constructor(model: LayeredModel, rules: SelectionRules, prompt: readonly number[], continuation: number) {
    this.#model = model;
    this.#rules = rules;
    this.#promptTokens = prompt.length;
    const start = prompt.length - Math.min(rules.observed, prompt.length);
    model.prefill(prompt.slice(0, start));
    model.run(prompt.slice(start), start, (call) => {
      this.#observed.push(call);
      return undefined;
    });
    this.#keys = model.layers.map(({ op }, layer) => {
      const empty = () => new Float32Array((prompt.length + continuation) * op.headDim);
      const keys = {
        keys: Array.from({ length: op.kvHeads }, empty),
        values: Array.from({ length: op.kvHeads }, empty),
      };
      model.readKeys(layer, 0, prompt.length, keys);
      return keys;
    });
  }

  /** Predictions after each token of a continuation of the prompt. */
  predict(method: SparseMethod, tokens: readonly number[]): Predictions {
    const { vocabulary, engine } = this.#model;
    const logits = new Float32Array(tokens.length * vocabulary);
    const attend = method.method === 'full' ? undefined : this.#attention(method);
    for (let from = 0; from < tokens.length; from += engine.tokensMax) {
      const rows = tokens.slice(from, from + engine.tokensMax);
      const start = this.#promptTokens + from;
      logits.set(
        attend === undefined ? this.#model.logits(rows, start) : this.#model.run(rows, start, attend),
        from * vocabulary,
      );
    }
    return { logits, vocabulary };
  }

  /** Share of the prompt's keys that a method keeps or, if it selects for each query, reads: 0..1. */
  keptShare(method: SparseMethod): number {
    const budgets = this.#budgets(method);
    return budgets.reduce((sum, budget) => sum + budget, 0) / (budgets.length * this.#promptTokens);
  }

  /** By head: causal softmax weights of the prompt's keys in a layer, summed over the observed rows. */
  weights(layer: number): Float64Array[] {
    const known = this.#sums[layer] ?? weightSums(this.#observed[layer], this.#keys[layer]);
    this.#sums[layer] = known;
    return known;
  }

  #budgets({ method, budget }: SparseMethod): readonly number[] {
    const { recent, fullLayers } = this.#rules;
    const layers = this.#model.layers.length;
    const tokens = this.#promptTokens;
    if (method === 'full') return new Array<number>(layers).fill(tokens);
    const full = Math.min(fullLayers ?? (method === 'first-n' ? 3 : 0), layers - 1);
    const shape: BudgetShape = method === 'pyramid' ? 'pyramid' : 'uniform';
    const mean = Math.max(recent + 1, Math.round(budget * tokens));
    const sparse = layerBudgets({ shape, layers: layers - full, budget: mean, recent }, tokens);
    return [...new Array<number>(full).fill(tokens), ...sparse.kept];
  }

  #attention(method: SparseMethod): (call: AttentionCall) => Float32Array | undefined {
    const budgets = this.#budgets(method);
    const chosen = budgets.map((budget, layer) =>
      budget >= this.#promptTokens ? undefined : this.#choose(method.method, layer, budget),
    );
    return (call) => {
      const choose = chosen[call.layer];
      if (choose === undefined) return undefined;
      const keys = this.#keys[call.layer];
      this.#model.readKeys(call.layer, call.start, call.start + call.rows, keys);
      return attendChosen(call, keys, this.#promptTokens, choose);
    };
  }

  #choose(method: SparsityMethod, layer: number, budget: number): ChooseKeys {
    const keys = this.#keys[layer];
    const promptTokens = this.#promptTokens;
    const { kvHeads, headDim } = this.#model.layers[layer].op;
    const { recent, seed } = this.#rules;
    switch (method) {
      case 'quest':
        return chooseQuest(keys, promptTokens, budget, headDim);
      case 'oracle':
        return chooseOracle(keys, promptTokens, budget);
      case 'window':
        return chooseKept(keepWindow(promptTokens, budget, kvHeads));
      case 'random':
        return chooseKept(keepRandom({ promptTokens, budget, recent, kvHeads, seed, layer }));
      default: {
        const scores = keyScores(this.weights(layer), kvHeads, Math.max(0, promptTokens - recent), this.#rules);
        return chooseKept(keepScored(scores, promptTokens, budget));
      }
    }
  }
}
