// Free capacity: whether slots and pages suffice for one more sequence, and which sequences exceed the instance.
import { boundPages } from '../../../util/step.ts';
import type { Growth } from '../../kvcache/group-cache.ts';
import type { KvCaches } from '../../kvcache/kv-caches.ts';
import { pagesOfLayout } from '../../kvcache/sparsity/slot-pages.ts';
import type { OverflowMemory } from './overflow-memory.ts';
import { firstBackground } from './ranked-list.ts';
import type { Sequence } from './sequence.ts';
import type { BatchLimits } from './step-budget.ts';

/**
 * A sequence counts with the pages that it holds at once until its known tokens are computed. A sequence that would run
 * alone always fits.
 */
export class FreeCapacity {
  readonly #caches: KvCaches;
  readonly #limits: BatchLimits;
  readonly #overflow: OverflowMemory | undefined;

  constructor(caches: KvCaches, limits: BatchLimits, overflow: OverflowMemory | undefined) {
    this.#caches = caches;
    this.#limits = limits;
    this.#overflow = overflow;
  }

  /**
   * True if there are a slot and pages for all its tokens and one more, besides the pages that running sequences still
   * require.
   */
  fits(sequence: Sequence, running: readonly Sequence[], parked: number): boolean {
    if (!this.hasSlot(running)) return false;
    const beside = this.besideOf(sequence, running);
    // A sequence alone may use all pages, if necessary in smaller chunks.
    if (beside.length + parked === 0 && this.#overflow?.reservesWhole !== true) return true;
    const slack = this.isOverCapacity(sequence) ? (this.#overflow?.slackPages ?? 0) : 0;
    return this.#canSpareFor(sequence, this.pagesRequired(sequence) + slack, beside);
  }

  /** The running sequences with blocks in the same cache. */
  besideOf({ worker }: Sequence, running: readonly Sequence[]): readonly Sequence[] {
    return this.#caches.all.length === 1 ? running : running.filter((other) => other.worker === worker);
  }

  hasSlot(running: readonly Sequence[]): boolean {
    return running.length < this.#limits.sequencesMax;
  }

  /**
   * True if the running sequences still have enough pages with `pages` fewer. Batch jobs count only for a batch job.
   */
  canSpare(required: number, running: readonly Sequence[]): boolean {
    return this.#canSpareFor(undefined, required, running);
  }

  #canSpareFor(sequence: Sequence | undefined, required: number, running: readonly Sequence[]): boolean {
    // A block for the next growth of each running sequence, up to a sixteenth of the pool: a new sequence is not preempted at once.
    const cache = sequence === undefined ? this.#caches.first : this.#caches.of(sequence);
    const { pages, blockPages } = cache;
    const others = sequence?.background === true ? running.length : firstBackground(running);
    const growth = Math.min(others, Math.ceil(Math.floor(pages.total / blockPages) / 16)) * blockPages;
    const pagesMissing = this.pagesMissing(running, others);
    const offloadable = Math.min(
      this.#overflow?.freePages ?? 0,
      pagesMissing + (sequence !== undefined && this.isOverCapacity(sequence) ? required : 0),
    );
    return required + growth + pagesMissing - offloadable <= cache.availablePages;
  }

  /**
   * True if the pages of this instance cannot hold the sequence at its maximum length. Its maximum memory is then reserved
   * before it starts, here or on other instances. A sequence that fits waits for local memory, which is faster.
   */
  isOverCapacity(sequence: Sequence): boolean {
    return this.#overflow?.reservesWhole === true && this.exceedsPages(sequence);
  }

  /** True if the pages of this instance cannot hold the full KV of the sequence at its maximum length. */
  exceedsPages({ lengthMax, hasBudget }: Sequence): boolean {
    const { blockTokens, blockPages, pages } = this.#caches.first;
    return !hasBudget && Math.ceil(lengthMax / blockTokens) * blockPages > pages.total;
  }

  /** Pages that running sequences still require, with those of `next` if it waits for memory alone. */
  pagesOutstanding(running: readonly Sequence[], next: Sequence | undefined): number {
    const pages = this.pagesMissing(running, running.length);
    return next !== undefined && running.length === 0 ? pages + this.pagesRequired(next) : pages;
  }

  /** Pages that the first `count` running sequences still require for their known tokens. */
  pagesMissing(running: readonly Sequence[], count: number): number {
    let pages = 0;
    for (let i = 0; i < count; i++)
      pages += this.#caches.first.pagesMissing(running[i].table, this.#growth(running[i]));
    return pages;
  }

  /**
   * Parks a sequence with blocks for `tokens` tokens. False if the running sequences cannot spare them, or others reserve
   * memory: then no block is allocated.
   */
  allocateParked(sequence: Sequence, tokens: number, running: readonly Sequence[]): boolean {
    const { table } = sequence;
    const cache = this.#caches.first;
    if (tokens > 0 && this.#overflow?.admitsParked(sequence) === false) return false;
    if (tokens > 0 && !this.canSpare(cache.pagesMissing(table, { tokens, rows: tokens }), running)) return false;
    while (cache.blocksMissing(table, tokens) > 0)
      if (!cache.allocate(table)) throw new Error('Free capacity broken: a spare block cannot be allocated');
    sequence.state = 'parked';
    return true;
  }

  /** True if it would fit after preemption of every running sequence of lower priority. */
  fitsAfterPreemption(sequence: Sequence, running: readonly Sequence[]): boolean {
    const cache = this.#caches.of(sequence);
    let most = cache.availablePages;
    let others = 0;
    for (const other of this.besideOf(sequence, running)) {
      if (other.priority < sequence.priority) most += cache.pagesOf(other.table);
      else others++;
    }
    return others === 0 || this.pagesRequired(sequence) <= most;
  }

  /** Pages that would become unavailable if the sequence started. */
  pagesRequired(sequence: Sequence): number {
    const { arriving, sparsity, receivedTokens } = sequence;
    const cache = this.#caches.of(sequence);
    if (sparsity !== undefined && receivedTokens > 0) return cache.pagesToAdopt(sequence.length, sparsity.layout);
    // The blocks of the arriving prefix are already allocated.
    if (arriving !== undefined) {
      const { tokens, slotPages = 0, boundLayers = 0 } = this.#growth(sequence);
      const blocks = Math.ceil(tokens / cache.blockTokens);
      return (blocks - arriving.blocks) * cache.blockPages + slotPages + boundPages(blocks, boundLayers);
    }
    const remote = this.isOverCapacity(sequence) ? this.#overflow?.remotePrefix(sequence) : undefined;
    if (remote !== undefined) {
      const pages = cache.pagesToRun(sequence.chain, remote.firstBlock, this.#growth(sequence));
      return pages - remote.blocks * cache.blockPages;
    }
    return cache.pagesToRun(
      sequence.chain,
      sequence.reusableBlocks(cache.blockTokens),
      this.#growth(sequence),
      sequence.known,
    );
  }

  #growth(sequence: Sequence): Growth {
    const tokens = this.isOverCapacity(sequence) ? sequence.lengthMax : sequence.length;
    const growth = { tokens, rows: Math.min(sequence.remaining, this.#limits.tokensMax) };
    const { sparsity, pageChoice, promptLength } = sequence;
    if (pageChoice !== undefined) return { ...growth, boundLayers: pageChoice.layers };
    if (sparsity === undefined) return growth;
    return { ...growth, sparseTokens: promptLength, slotPages: pagesOfLayout(sparsity.layout) };
  }
}

interface Batch {
  readonly capacity: FreeCapacity;
  readonly running: readonly Sequence[];
  readonly waiting: readonly Sequence[];
}

/** Pages that the running sequences still require. */
export function runningPagesMissing({ capacity, running }: Batch): number {
  return capacity.pagesMissing(running, running.length);
}

/** The first waiting sequence over capacity that reserves memory, and the pages that it requires. */
export function firstReserving({
  capacity,
  waiting,
}: Batch): { readonly sequence: Sequence; readonly pages: number } | undefined {
  const sequence = waiting.find((each) => capacity.isOverCapacity(each) && !each.waitsForDecodeMemory);
  return sequence && { sequence, pages: capacity.pagesRequired(sequence) };
}

/** Number of running sequences over capacity. */
export function guaranteedCount({ capacity, running }: Batch): number {
  let count = 0;
  for (const sequence of running) if (capacity.isOverCapacity(sequence)) count++;
  return count;
}
