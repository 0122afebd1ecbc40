// Forecasts the memory that the sequences of an instance will need, from its batcher, each time a step is planned.

import type { BlockCache } from '../../kvcache/block-cache.ts';
import type { DemandUpdate, Reservation } from '../../protocol/lending-messages.ts';
import type { StepShape } from '../../protocol/step-shape.ts';
import type { Batcher } from '../../scheduler/batching/batcher.ts';
import { committedCount, firstReserving, runningPagesMissing } from '../../scheduler/batching/free-capacity.ts';
import { DemandReporter } from '../demand-report.ts';

export class MemoryForecast {
  readonly #cache: BlockCache;
  readonly #moves: { readonly leavingBlocks: number };
  readonly #slackBlocks: number;
  readonly #reporter = new DemandReporter();
  /** Nothing runs, and a prompt waits. */
  isStarved = false;
  /** Counts admissions of prompts that exceed this instance. */
  #gatherings = 0;

  /** @param slackBlocks blocks that may stay unused because only whole ranges move */
  constructor(cache: BlockCache, moves: { readonly leavingBlocks: number }, slackBlocks: number) {
    this.#cache = cache;
    this.#moves = moves;
    this.#slackBlocks = slackBlocks;
  }

  /** The plan has admitted these sequences. */
  admitted({ admitted, capacity }: Batcher): void {
    for (const sequence of admitted) if (capacity.isOverCapacity(sequence)) this.#gatherings++;
  }

  /** The current demand; undefined when it has not changed. */
  demand(
    batcher: Batcher,
    { rows, decodeRows }: Pick<StepShape, 'rows' | 'decodeRows'>,
    predictedUs: number,
  ): DemandUpdate | undefined {
    const { availablePages, blockPages, blockTokens } = this.#cache;
    const outBlocks = this.#moves.leavingBlocks;
    const available = Math.floor(availablePages / blockPages);
    const alone = batcher.running.length + batcher.parked.size === 0 && batcher.waiting.length > 0;
    this.isStarved = alone;
    const ahead = Math.ceil(batcher.pagesOutstanding / blockPages) - outBlocks;
    const promised = Math.ceil(runningPagesMissing(batcher) / blockPages) - outBlocks;
    const turn = this.#overCapacity(batcher);
    const counts = { gathered: committedCount(batcher), gatherings: this.#gatherings };
    const figures = { rows, decodeRows, available, ahead, promised, alone, turn, ...counts };
    return this.#reporter.changed(figures, (decodeRows * 1e6) / (blockTokens * predictedUs));
  }

  #overCapacity(batcher: Batcher): Reservation | undefined {
    const overCapacity = firstReserving(batcher);
    if (overCapacity === undefined) return undefined;
    const blocks = Math.ceil(overCapacity.pages / this.#cache.blockPages) + this.#slackBlocks;
    return { number: overCapacity.sequence.arrival, blocks };
  }
}
