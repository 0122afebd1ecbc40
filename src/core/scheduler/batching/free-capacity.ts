// Whether there is room for one more sequence, in slots and in pages.
import type { BlockCache } from '../../kvcache/block-cache.ts';
import type { Growth } from '../../kvcache/group-cache.ts';
import { firstBackground } from './batch-jobs-budget.ts';
import type { OverflowMemory } from './overflow-memory.ts';
import type { Sequence } from './sequence.ts';
import type { BatchLimits } from './step-budget.ts';

/** A sequence counts with what it will hold at once until its known tokens are computed; whoever is alone has room. */
export class FreeCapacity {
  readonly #cache: BlockCache;
  readonly #limits: BatchLimits;
  readonly #overflow: OverflowMemory | undefined;

  constructor(cache: BlockCache, limits: BatchLimits, overflow: OverflowMemory | undefined) {
    this.#cache = cache;
    this.#limits = limits;
    this.#overflow = overflow;
  }

  /** Is there a slot, and room for all its tokens and one more, besides what the running ones still need for theirs? */
  hasPlace(sequence: Sequence, running: readonly Sequence[], parked: number): boolean {
    // Alone it has all there is, if need be in smaller chunks than it would like.
    if (running.length + parked === 0 && this.#overflow?.gathers !== true) return true;
    if (!this.hasSlot(running)) return false;
    const slack = this.isOverlong(sequence) ? (this.#overflow?.slackPages ?? 0) : 0;
    return this.#sparesFor(sequence, this.pagesNeeded(sequence) + slack, running);
  }

  hasSlot(running: readonly Sequence[]): boolean {
    return running.length < this.#limits.sequencesMax;
  }

  /** Would the running ones still get what they need for theirs, with so many pages fewer? Batch jobs count only for a batch job. */
  spares(wanted: number, running: readonly Sequence[]): boolean {
    return this.#sparesFor(undefined, wanted, running);
  }

  #sparesFor(sequence: Sequence | undefined, wanted: number, running: readonly Sequence[]): boolean {
    // A block each for the next growth of those that run, so that a newcomer is not preempted at once.
    const { pages, blockPages } = this.#cache;
    const others = sequence?.background === true ? running.length : firstBackground(running);
    const growth = Math.min(others, Math.ceil(Math.floor(pages.total / blockPages) / 16)) * blockPages;
    const promised = this.promised(running, others);
    const elsewhere = Math.min(
      this.#overflow?.pagesInHand ?? 0,
      promised + (sequence !== undefined && this.isOverlong(sequence) ? wanted : 0),
    );
    return wanted + growth + promised - elsewhere <= this.#cache.availablePages;
  }

  /** No memory here could hold it: what it may come to is promised to it before it starts, here or elsewhere. What fits is faster here, later. */
  isOverlong({ lengthMax }: Sequence): boolean {
    const { blockTokens, blockPages, pages } = this.#cache;
    return this.#overflow?.gathers === true && Math.ceil(lengthMax / blockTokens) * blockPages > pages.total;
  }

  /** Pages that those who run still need, and `next` where it waits for memory alone. */
  pagesAhead(running: readonly Sequence[], next: Sequence | undefined): number {
    const pages = this.promised(running, running.length);
    return next !== undefined && running.length === 0 ? pages + this.pagesNeeded(next) : pages;
  }

  /** Pages that the first `count` of those who run still need for their known tokens. */
  promised(running: readonly Sequence[], count: number): number {
    let pages = 0;
    for (let i = 0; i < count; i++) pages += this.#cache.pagesMissing(running[i].table, this.#growth(running[i]));
    return pages;
  }

  /** Takes blocks for `tokens` tokens of a sequence, which is parked with them; false, and none taken, where the running ones could not spare them. */
  hold(sequence: Sequence, tokens: number, running: readonly Sequence[]): boolean {
    const { table } = sequence;
    if (tokens > 0 && !this.spares(this.#cache.pagesMissing(table, { tokens, rows: tokens }), running)) return false;
    while (this.#cache.missing(table, tokens) > 0) if (!this.#cache.allocate(table)) throw new Error('Room broken');
    sequence.state = 'parked';
    return true;
  }

  /** Would it fit if every running sequence of lower priority went? */
  wouldFit(sequence: Sequence, running: readonly Sequence[]): boolean {
    let most = this.#cache.availablePages;
    let others = 0;
    for (const other of running) {
      if (other.priority < sequence.priority) most += this.#cache.pagesOf(other.table);
      else others++;
    }
    return others === 0 || this.pagesNeeded(sequence) <= most;
  }

  /** Pages that would be available no more if it came. */
  pagesNeeded(sequence: Sequence): number {
    const { arriving } = sequence;
    // The blocks that it starts behind are somebody's already.
    if (arriving !== undefined)
      return (
        (Math.ceil(this.#growth(sequence).tokens / this.#cache.blockTokens) - arriving.blocks) * this.#cache.blockPages
      );
    const kept = this.isOverlong(sequence) ? this.#overflow?.kept(sequence) : undefined;
    if (kept !== undefined) {
      const pages = this.#cache.pagesToRun(sequence.chain, kept.firstBlock, this.#growth(sequence));
      return pages - kept.blocks * this.#cache.blockPages;
    }
    return this.#cache.pagesToRun(
      sequence.chain,
      sequence.reusableBlocks(this.#cache.blockTokens),
      this.#growth(sequence),
      sequence.known,
    );
  }

  #growth(sequence: Sequence): Growth {
    const tokens = this.isOverlong(sequence) ? sequence.lengthMax : sequence.length;
    return { tokens, rows: Math.min(sequence.remaining, this.#limits.tokensMax) };
  }
}
