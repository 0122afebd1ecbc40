// Requests with a KV budget: what they keep, which lengths fit, and the figures of their slots.

import { boundPages } from '../../util/step.ts';
import { blockPages, capacityTokens, pagesFor } from '../kvcache/layer-groups.ts';
import { pagesOfLayout } from '../kvcache/sparsity/slot-pages.ts';
import { SparsePlan, type SparsityConfig } from '../kvcache/sparsity/sparse-plan.ts';
import type { InstanceSnapshot } from '../protocol/ports.ts';
import type { RequestSize } from '../protocol/request-size.ts';
import { type Identified, InstanceComponent, type InstanceContext } from './component.ts';
import type { RunningRequest } from './executor/executor.ts';

export class SparseKv<Request extends Identified, S extends RunningRequest> extends InstanceComponent<Request, S> {
  readonly plan: SparsePlan;
  readonly #context: InstanceContext<Request, S>;
  #selections = 0;
  #promptTokens = 0;
  #keptTokens = 0;

  /** @throws Error if the step cannot hold the rows that select kept tokens beside the decode rows */
  constructor(context: InstanceContext<Request, S>, config: SparsityConfig) {
    super();
    const { groups, blockTokens, limits } = context.config;
    this.#context = context;
    this.plan = new SparsePlan(config, groups, blockTokens);
    const most = limits.tokensMax - limits.sequencesMax;
    if (config.observed > most)
      throw new RangeError(`Cannot select kept tokens with ${config.observed} rows: a step has ${most} for them`);
  }

  /**
   * With kept tokens, prefill holds the blocks of the prompt and the slots, and decoding holds the slots, and blocks of
   * the full layers alone. With chosen pages, a sequence holds its blocks and their bounds.
   */
  override capacityOf({ promptTokens, kvBudget, resumedTokens = 0 }: RequestSize): number | undefined {
    const { sparsity, pageChoice } = this.plan.budgetedKv(kvBudget, promptTokens - resumedTokens);
    if (sparsity === undefined && pageChoice === undefined) return undefined;
    const { groups, blockTokens, pinShare = 0 } = this.#context.config;
    const { total } = this.#context.kvCache.pages;
    const held = total - Math.floor(total * pinShare);
    if (sparsity === undefined) {
      let blocks = Math.floor(held / blockPages(groups));
      while (blocks * blockPages(groups) + boundPages(blocks, pageChoice?.layers ?? 0) > held) blocks--;
      return blocks * blockTokens;
    }
    const pages = held - pagesOfLayout(sparsity.layout);
    const isTooLong = pagesFor(groups, promptTokens - resumedTokens, blockTokens) > pages;
    if (isTooLong) return capacityTokens(groups, pages, blockTokens);
    const full = groups.filter(({ sparse }) => sparse !== true);
    return full.length === 0 ? Number.POSITIVE_INFINITY : capacityTokens(full, pages, blockTokens);
  }

  /** Tokens of the longest request with the default budget: that of a short prompt. 0: requests keep all tokens. */
  get longestTokens(): number {
    return this.capacityOf({ promptTokens: 1, outputTokensMax: 1 }) ?? 0;
  }

  override computed({ sequence }: S): void {
    const { table, promptLength } = sequence;
    if (table.slots === undefined) return;
    this.#selections++;
    this.#promptTokens += promptLength * table.slots.kept.length;
    this.#keptTokens += table.slots.keptTokens;
  }

  override snapshot(): Partial<InstanceSnapshot> {
    const { kvCaches, scheduler } = this.#context;
    let sequences = 0;
    let slotTokens = 0;
    for (const { table, readsPart } of scheduler.running) {
      if (!readsPart) continue;
      sequences++;
      slotTokens += table.slots?.keptTokens ?? 0;
    }
    return {
      sparse: {
        sequences,
        slotTokens,
        slotPages: kvCaches.all.reduce((sum, { slots, bounds }) => sum + slots.pages + bounds.pages, 0),
        selections: this.#selections,
        promptTokens: this.#promptTokens,
        keptTokens: this.#keptTokens,
      },
    };
  }
}
