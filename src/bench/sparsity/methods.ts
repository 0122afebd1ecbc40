// The methods of the sparsity bench: what of a prompt's KV the tokens after it read.
import { type BudgetShape, layerBudgets } from '../../core/kvcache/sparsity/budgets.ts';
import { pageTokens } from '../../util/step.ts';
import { weightSums } from './key-scores.ts';
import type { AttentionCall, LayeredModel, LayerKeys } from './layered-model.ts';
import { type Predictions, topToken } from './scoring.ts';
import { attendChosen, type ChooseKeys, chooseKept, chooseOracle, keepRandom, keepWindow } from './sparse-attention.ts';
import type { DecodeEviction, SelectionRules } from './sparse-steps.ts';

/**
 * `full` reads all keys. `uniform`, `pyramid` and `first-n` keep the keys of the highest scores, and `quest` reads the
 * pages with the highest bounds: with the operations that serving uses. In this bench alone, `window` keeps the last
 * keys, `random` any, and `oracle` reads the keys with the highest weights of each query.
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

export interface MethodRules extends SelectionRules {
  /** The first layers that stay full, with any method; undefined: the default of `fullLayersOf`. */
  readonly fullLayers: number | undefined;
  /** Of the methods that keep tokens by score. */
  readonly eviction: DecodeEviction;
  /** Of `quest`: fewer pages where the bounds reach this mass, in (0, 1]. */
  readonly topP: number;
  readonly seed: number;
}

/** A method with a budget: a share of the prompt's tokens, 0..1. */
export interface SparseMethod {
  readonly method: SparsityMethod;
  readonly budget: number;
  /** How a method that keeps tokens by score chooses them; undefined: by the rules of the sequence. */
  readonly selection?: SelectionRules | undefined;
}

/** True for methods that keep tokens by score. */
export function keepsByScore(method: SparsityMethod): boolean {
  return scoredMethods.has(method);
}

/** As in serving: 3 with `first-n`, 2 with `quest`, else none. */
export function fullLayersOf(method: SparsityMethod, requested: number | undefined): number {
  return requested ?? (method === 'first-n' ? 3 : method === 'quest' ? 2 : 0);
}

const scoredMethods: ReadonlySet<SparsityMethod> = new Set(['uniform', 'pyramid', 'first-n']);

/** One prompt: computed once with full attention, continued with any method. */
export class SparseSequence {
  readonly #model: LayeredModel;
  readonly #rules: MethodRules;
  readonly #prompt: readonly number[];
  readonly #capacity: number;
  readonly #keys = new Map<number, LayerKeys>();
  #selected: SparseMethod | undefined;

  /** @param continuation tokens that follow the prompt at most */
  constructor(model: LayeredModel, rules: MethodRules, prompt: readonly number[], continuation: number) {
    this.#model = model;
    this.#rules = rules;
    this.#prompt = prompt;
    this.#capacity = prompt.length + continuation;
    model.prefill(prompt);
  }

  /** Predictions after each token of a continuation of the prompt. */
  predict(method: SparseMethod, tokens: readonly number[]): Predictions {
    const { vocabulary, engine } = this.#model;
    const logits = new Float32Array(tokens.length * vocabulary);
    const run = this.#runner(method);
    for (let from = 0; from < tokens.length; from += engine.tokensMax)
      logits.set(run(tokens.slice(from, from + engine.tokensMax), from), from * vocabulary);
    return { logits, vocabulary };
  }

  /** A token after the prompt, and the greedy tokens of the full model after it: `count` in all. */
  continueGreedily(first: number, count: number): number[] {
    const tokens = [first];
    while (tokens.length < count)
      tokens.push(topToken(this.#model.logits(tokens.slice(-1), this.#prompt.length + tokens.length - 1)));
    return tokens;
  }

  /** Share of the prompt's keys that a method keeps or, if it selects for each query, reads: 0..1. */
  keptShare(method: SparseMethod): number {
    const tokens = this.#prompt.length;
    const budgets = this.#budgets(method);
    return budgets.reduce((sum, budget) => sum + budget, 0) / (budgets.length * tokens);
  }

  /** By layer and head: causal softmax weights of the prompt's keys, summed over the observed rows. */
  weights(): Float64Array[][] {
    const weights: Float64Array[][] = [];
    const rows = this.#observedRows();
    this.#model.run(rows, this.#prompt.length - rows.length, (call) => {
      weights.push(weightSums(call, this.#keysOf(call.layer)));
      return undefined;
    });
    return weights;
  }

  /** Computes tokens that follow the prompt and `from` others: (rows, vocabulary) logits. */
  #runner(method: SparseMethod): (rows: readonly number[], from: number) => Float32Array {
    const tokens = this.#prompt.length;
    const { sparsePages } = this.#model;
    if (method.method === 'full') return (rows, from) => this.#model.logits(rows, tokens + from);
    if (method.method === 'quest') {
      const prompt = this.#questPages(method.budget);
      return (rows, from) => {
        // Pages of later tokens come on top, as with kept tokens.
        const added = pageOf(tokens + from + rows.length - 1) - pageOf(tokens - 1);
        return this.#model.logits(rows, tokens + from, {
          pageSelections: sparsePages.pageSelections(prompt + added, this.#rules.topP),
        });
      };
    }
    if (!keepsByScore(method.method)) {
      const attend = this.#attention(method);
      return (rows, from) => this.#model.run(rows, tokens + from, attend);
    }
    const { eviction } = this.#rules;
    const rules = method.selection ?? this.#rules;
    const budgetOf = this.#budgetOf(method);
    this.#select(method);
    return (rows, from) =>
      this.#model.logits(rows, tokens + from, {
        sparse: sparsePages.sparseKeys(rules, budgetOf, tokens, from, eviction),
      });
  }

  /** Selects the tokens that a method keeps, unless the slots hold them already. */
  #select(method: SparseMethod): void {
    const held = this.#selected;
    const same = held?.method === method.method && held.budget === method.budget && held.selection === method.selection;
    if (same && this.#rules.eviction === 'none') return;
    const rules = method.selection ?? this.#rules;
    const rows = this.#observedRows(rules);
    const selections = this.#model.sparsePages.selections(rules, this.#budgetOf(method));
    this.#model.select(rows, this.#prompt.length - rows.length, selections);
    this.#selected = method;
  }

  #observedRows({ observed }: SelectionRules = this.#rules): readonly number[] {
    return this.#prompt.slice(-observed);
  }

  #questPages(budget: number): number {
    return Math.max(2, Math.round((budget * this.#prompt.length) / pageTokens));
  }

  /** By layer of a group. */
  #budgetOf(method: SparseMethod): (group: number, index: number) => number {
    const budgets = this.#budgets(method);
    const layers = this.#model.layers.map(({ op }) => op.layer);
    return (group, index) => budgets[layers.findIndex((layer) => layer.group === group && layer.index === index)];
  }

  /** By layer of the model. Layers with a window keep it. */
  #budgets({ method, budget }: SparseMethod): readonly number[] {
    const { recent, fullLayers } = this.#rules;
    const tokens = this.#prompt.length;
    const { layers } = this.#model;
    const full = fullLayersOf(method, fullLayers);
    const isSparse = layers.map(({ op }, layer) => op.window === undefined && layer >= full);
    const sparse = isSparse.filter(Boolean).length;
    if (method === 'full' || sparse === 0) return layers.map(() => tokens);
    if (method === 'quest') {
      const read = Math.min(tokens, this.#questPages(budget) * pageTokens);
      return isSparse.map((yes) => (yes ? read : tokens));
    }
    const shape: BudgetShape = method === 'pyramid' ? 'pyramid' : 'uniform';
    const mean = Math.max(recent + 1, Math.round(budget * tokens));
    const kept = [...layerBudgets({ shape, layers: sparse, budget: mean, recent }, tokens).kept];
    return isSparse.map((yes) => (yes ? (kept.shift() ?? tokens) : tokens));
  }

  #keysOf(layer: number): LayerKeys {
    const known = this.#keys.get(layer);
    if (known !== undefined) return known;
    const { headDim, kvHeads } = this.#model.layers[layer].op;
    const empty = () => Array.from({ length: kvHeads }, () => new Float32Array(this.#capacity * headDim));
    const keys = { keys: empty(), values: empty() };
    this.#model.readKeys(layer, 0, this.#prompt.length, keys);
    this.#keys.set(layer, keys);
    return keys;
  }

  #attention(method: SparseMethod): (call: AttentionCall) => Float32Array | undefined {
    const tokens = this.#prompt.length;
    const chosen = this.#budgets(method).map((budget, layer) =>
      budget >= tokens ? undefined : this.#choose(method.method, layer, budget),
    );
    return (call) => {
      const choose = chosen[call.layer];
      if (choose === undefined) return undefined;
      const keys = this.#keysOf(call.layer);
      this.#model.readKeys(call.layer, call.start, call.start + call.rows, keys);
      return attendChosen(call, keys, tokens, choose);
    };
  }

  #choose(method: SparsityMethod, layer: number, budget: number): ChooseKeys {
    const promptTokens = this.#prompt.length;
    const { kvHeads } = this.#model.layers[layer].op;
    const { recent, seed } = this.#rules;
    if (method === 'oracle') return chooseOracle(this.#keysOf(layer), promptTokens, budget);
    return chooseKept(
      method === 'window'
        ? keepWindow(promptTokens, budget, kvHeads)
        : keepRandom({ promptTokens, budget, recent, kvHeads, seed, layer }),
    );
  }
}

function pageOf(position: number): number {
  return Math.floor(position / pageTokens);
}
