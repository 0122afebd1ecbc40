// What an instance keeps of requests with a KV budget: which layers are sparse, and how many slots and pages they take.
import { type HeadReduce, type KvSelection, type LayerGroup, slotsNeeded } from '../../../util/step.ts';
import { type BudgetShape, layerBudgets } from './budgets.ts';
import type { SlotLayout } from './slot-pages.ts';

/** The KV budget that a request asks for: tokens by sparse layer and KV head, or all of them. */
export type KvBudget = number | 'full';

export interface SparsityConfig {
  readonly shape: BudgetShape;
  /** Budget of requests that ask for none; undefined: they keep all tokens. A list of budgets has none. */
  readonly budget: number | undefined;
  /**
   * Sequences keep all tokens, and their decode rows read the pages with the highest bounds, as many as hold the budget
   * (Quest). `topP`: fewer where the bounds reach this mass. Undefined: sequences evict tokens.
   */
  readonly pages?: { readonly topP: number } | undefined;
  /** Last tokens, which are never evicted (recent window). */
  readonly recent: number;
  /** Last queries of the prompt, whose attention scores the keys (observation window). */
  readonly observed: number;
  readonly pooling: KvSelection['pooling'];
  readonly headReduce: HeadReduce;
  /** While decoding: 0 replaces one token by each new one; else so many are evicted together, after as many steps. */
  readonly compactEvery: number;
  /** The full KV of the prompt in the sparse layers stays as prefix cache. */
  readonly keepsFull: boolean;
  /** Pages of slots with states in one page; infinite where slots have no contents. */
  readonly slotPagesOfState: number;
}

/** With the division of the model's layers. */
export interface LayeredSparsity extends SparsityConfig {
  /** (layers of the model): false for layers that keep all tokens. */
  readonly sparseLayers: readonly boolean[];
}

/** What a sequence with a KV budget keeps in sparse layers. */
export interface SequenceSparsity extends Pick<SparsityConfig, 'observed' | 'compactEvery' | 'keepsFull'> {
  readonly layout: SlotLayout;
}

/** What decode rows of a sequence read in sparse layers. */
export interface PageChoice {
  readonly layers: number;
  /** Pages that a KV head reads. */
  readonly pages: number;
}

/** At most one of both. */
export interface BudgetedKv {
  readonly sparsity: SequenceSparsity | undefined;
  readonly pageChoice: PageChoice | undefined;
}

/** Running scores of slots are sums (H2O, arXiv 2306.14048). */
export const scoreDecay = 1;

/** The first and the last page are always read. */
const pagesMin = 2;

export class SparsePlan {
  readonly config: SparsityConfig;
  /** Index of the sparse layer group. */
  readonly group: number;
  /** Layer groups. */
  readonly groups: number;
  readonly #layers: number;
  readonly #blockTokens: number;

  /** @throws Error unless exactly one layer group is sparse */
  constructor(config: SparsityConfig, groups: readonly LayerGroup[], blockTokens: number) {
    const sparse = groups.filter((group) => group.sparse === true);
    if (sparse.length !== 1)
      throw new Error(`Cannot keep a KV budget: one layer group must be sparse: found ${sparse.length}`);
    this.config = config;
    this.groups = groups.length;
    this.group = groups.findIndex((group) => group.sparse);
    this.#layers = sparse[0].layers;
    this.#blockTokens = blockTokens;
  }

  /** Of a sequence with this prompt. */
  budgetedKv(requested: KvBudget | undefined, promptTokens: number): BudgetedKv {
    if (this.config.pages === undefined)
      return { sparsity: this.#sequenceSparsity(requested, promptTokens), pageChoice: undefined };
    const budget = requested ?? this.config.budget ?? 'full';
    if (budget === 'full') return { sparsity: undefined, pageChoice: undefined };
    const pages = Math.max(pagesMin, Math.ceil(budget / this.#blockTokens));
    return { sparsity: undefined, pageChoice: { layers: this.#layers, pages } };
  }

  /** Undefined: it keeps all tokens. */
  #sequenceSparsity(requested: KvBudget | undefined, promptTokens: number): SequenceSparsity | undefined {
    const { shape, recent, compactEvery, keepsFull, slotPagesOfState } = this.config;
    const budget = requested ?? this.config.budget ?? (typeof shape === 'string' ? 'full' : 0);
    if (budget === 'full') return undefined;
    const { slots } = layerBudgets({ shape, layers: this.#layers, budget, recent }, promptTokens);
    const pageStart = new Int32Array(this.#layers + 1);
    for (let layer = 0; layer < this.#layers; layer++)
      pageStart[layer + 1] = pageStart[layer] + Math.ceil(slotsNeeded(slots[layer], compactEvery) / this.#blockTokens);
    const statePages = Math.ceil(pageStart[this.#layers] / slotPagesOfState);
    // A prompt shorter than the window is observed as a whole.
    const observed = Math.min(this.config.observed, promptTokens);
    return { observed, compactEvery, keepsFull, layout: { budget: slots, pageStart, statePages } };
  }
}

/** Tokens of the prompt that each KV head of a sparse layer keeps, averaged over the layers and rounded. */
export function meanKept({ budget }: SlotLayout, promptTokens: number): number {
  const sum = budget.reduce((total, tokens) => total + Math.min(tokens, promptTokens), 0);
  return Math.round(sum / budget.length);
}
