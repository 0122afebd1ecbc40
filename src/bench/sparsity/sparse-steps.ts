// Steps of one sequence that keeps only some tokens of its prompt, or reads only some of its pages, with the engine's
// own operations.
import { scoreDecay } from '../../core/kvcache/sparsity/sparse-plan.ts';
import type { KvShape } from '../../engine/load-model.ts';
import {
  boundPages,
  type KvSelection,
  keptAfter,
  keptOfPrompt,
  pageTokens,
  type SlotTable,
  type SparseKeys,
  slotStatePages,
} from '../../util/step.ts';

/** How kept tokens are chosen at the end of a prompt. */
export type SelectionRules = Pick<KvSelection, 'observed' | 'recent' | 'pooling' | 'headReduce'>;

/** What happens to kept tokens while tokens follow the prompt: all stay, or `SparseKeys.compactEvery`. */
export type DecodeEviction = 'none' | number;

interface GroupPages {
  readonly group: number;
  readonly layers: number;
  /** False: the group's layers stay full when pages are selected. */
  readonly selectsPages: boolean;
  readonly slots: SlotTable;
  readonly bounds: Int32Array;
}

/** Slots and bounds of one sequence, in pages behind those of its keys. */
export class SparsePages {
  /** Pages of all groups. */
  readonly count: number;
  readonly #groups: readonly GroupPages[];
  readonly #context: number;

  /** @param context tokens of the sequence at most @param firstPage of consecutive free pages */
  constructor({ groups, headDim, type }: KvShape, context: number, firstPage: number) {
    let next = firstPage;
    const take = (count: number): Int32Array => Int32Array.from({ length: count }, () => next++);
    this.#context = context;
    this.#groups = groups.flatMap((group, index) => {
      if (group.window !== undefined) return [];
      const { layers, sparse: selectsPages = false } = group;
      // A layer that evicts tokens together has a page of slots beyond its budget.
      const layerPages = Math.ceil(context / pageTokens) + 1;
      const pages = take(layers * layerPages);
      const pageStart = Int32Array.from({ length: layers + 1 }, (_, layer) => layer * layerPages);
      const states = take(slotStatePages(pages.length, headDim, type));
      const bounds = take(boundPages(Math.ceil(context / pageTokens), layers));
      return [{ group: index, layers, selectsPages, slots: { pages, pageStart, states }, bounds }];
    });
    this.count = next - firstPage;
  }

  /** @param budgetOf of a layer of a group */
  selections(rules: SelectionRules, budgetOf: (group: number, index: number) => number): KvSelection[] {
    const { observed, recent, pooling, headReduce } = rules;
    return this.#groups.map(({ group, layers, slots }) => ({
      ...{ sequence: 0, group, slots, budget: budgetsOf(group, layers, budgetOf) },
      ...{ observed, recent, pooling, headReduce },
    }));
  }

  /** Rows after a selection. @param before rows since then */
  sparseKeys(
    rules: SelectionRules,
    budgetOf: (group: number, index: number) => number,
    promptTokens: number,
    before: number,
    eviction: DecodeEviction,
  ): SparseKeys[] {
    const compactEvery = eviction === 'none' ? this.#context : eviction;
    const { recent, headReduce } = rules;
    return this.#groups.map(({ group, layers, slots }) => {
      const budget = budgetsOf(group, layers, budgetOf);
      const kept = budget.map((most) => keptAfter(keptOfPrompt(promptTokens, most), most, compactEvery, before));
      return { sequence: 0, group, slots, kept, budget, compactEvery, recent, decay: scoreDecay, headReduce };
    });
  }

  /** @param budget pages that each KV head reads at most */
  pageSelections(budget: number, topP: number) {
    return this.#groups
      .filter(({ selectsPages }) => selectsPages)
      .map(({ group, bounds }) => ({ sequence: 0, group, bounds, bounded: 0, budget, topP }));
  }
}

function budgetsOf(group: number, layers: number, budgetOf: (group: number, index: number) => number): Int32Array {
  return Int32Array.from({ length: layers }, (_, index) => budgetOf(group, index));
}
