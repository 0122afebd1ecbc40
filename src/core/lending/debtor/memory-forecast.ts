// Forecasts the memory that the sequences of an instance will need, from its batcher, each time a step is planned.

import type { BlockCache } from '../../kvcache/block-cache.ts';
import type { DemandUpdate, Reservation } from '../../protocol/lending-messages.ts';
import type { StepShape } from '../../protocol/step-shape.ts';
import type { Batcher } from '../../scheduler/batching/batcher.ts';
import { firstReserving, guaranteedCount, runningPagesMissing } from '../../scheduler/batching/free-capacity.ts';

export class MemoryForecast {
  readonly #cache: BlockCache;
  readonly #moves: { readonly leavingBlocks: number };
  readonly #slackBlocks: number;
  readonly #reporter = new DemandReporter();
  /** Nothing runs, and a prompt waits. */
  isStarved = false;
  /** Counts admissions of prompts that exceed this instance. */
  #reservationsAdmitted = 0;

  /** @param slackBlocks blocks that may stay unused because only whole ranges move */
  constructor(cache: BlockCache, moves: { readonly leavingBlocks: number }, slackBlocks: number) {
    this.#cache = cache;
    this.#moves = moves;
    this.#slackBlocks = slackBlocks;
  }

  /** The plan has admitted these sequences. */
  admitted({ admitted, capacity }: Batcher): void {
    for (const sequence of admitted) if (capacity.isOverCapacity(sequence)) this.#reservationsAdmitted++;
  }

  /** The current demand; undefined if it has not changed. */
  demand(
    batcher: Batcher,
    { rows, decodeRows }: Pick<StepShape, 'rows' | 'decodeRows'>,
    predictedUs: number,
  ): DemandUpdate | undefined {
    const { availablePages, blockPages, blockTokens } = this.#cache;
    const { leavingBlocks } = this.#moves;
    this.isStarved = batcher.running.length + batcher.parked.size === 0 && batcher.waiting.length > 0;
    const figures = {
      rows,
      decodeRows,
      isStarved: this.isStarved,
      availableBlocks: Math.floor(availablePages / blockPages),
      aheadBlocks: Math.ceil(batcher.pagesOutstanding / blockPages) - leavingBlocks,
      guaranteedBlocks: Math.ceil(runningPagesMissing(batcher) / blockPages) - leavingBlocks,
      reservation: this.#reservation(batcher),
      reservedSequences: guaranteedCount(batcher),
      reservationsAdmitted: this.#reservationsAdmitted,
    };
    return this.#reporter.changed(figures, (decodeRows * 1e6) / (blockTokens * predictedUs));
  }

  #reservation(batcher: Batcher): Reservation | undefined {
    const reserving = firstReserving(batcher);
    if (reserving === undefined) return undefined;
    const blocks = Math.ceil(reserving.pages / this.#cache.blockPages) + this.#slackBlocks;
    return { number: reserving.sequence.arrival, blocks };
  }
}

export interface DemandFigures {
  readonly rows: number;
  readonly decodeRows: number;
  /** Nothing runs, and a prompt waits. */
  readonly isStarved: boolean;
  /** Blocks at home that no sequence holds. */
  readonly availableBlocks: number;
  /**
   * Blocks that sequences will need, less the blocks that are leaving; `guaranteedBlocks`: the part of running
   * sequences.
   */
  readonly aheadBlocks: number;
  readonly guaranteedBlocks: number;
  readonly reservation: Reservation | undefined;
  readonly reservedSequences: number;
  readonly reservationsAdmitted: number;
}

/** Reports the demand whenever its figures change. */
export class DemandReporter {
  #reported: DemandFigures | undefined;

  /** The update to report; undefined if the figures are those last reported. */
  changed(figures: DemandFigures, blocksPerSecond: number): DemandUpdate | undefined {
    if (this.#reported !== undefined && isSame(this.#reported, figures)) return undefined;
    this.#reported = figures;
    const { isStarved, availableBlocks, aheadBlocks, guaranteedBlocks, reservation } = figures;
    return {
      kind: 'demand',
      blocksPerSecond: Math.ceil(blocksPerSecond),
      aheadBlocks,
      // A prompt that fits at home waits for home memory: borrowed blocks do not admit it.
      starvedBlocks: isStarved ? Math.max(0, aheadBlocks - availableBlocks) : 0,
      guaranteedBlocks: Math.max(0, guaranteedBlocks),
      reservation,
      reservedSequences: figures.reservedSequences,
      reservationsAdmitted: figures.reservationsAdmitted,
    };
  }
}

function isSame(a: DemandFigures, b: DemandFigures): boolean {
  return (
    a.rows === b.rows &&
    a.decodeRows === b.decodeRows &&
    a.isStarved === b.isStarved &&
    a.availableBlocks === b.availableBlocks &&
    a.aheadBlocks === b.aheadBlocks &&
    a.guaranteedBlocks === b.guaranteedBlocks &&
    a.reservedSequences === b.reservedSequences &&
    a.reservationsAdmitted === b.reservationsAdmitted &&
    a.reservation?.number === b.reservation?.number &&
    a.reservation?.blocks === b.reservation?.blocks
  );
}
