// Which sequences are to go on at a bigger instance: those that may outgrow the memory of their own, once they fill enough of it.

import type { BlockCache } from '../../kvcache/block-cache.ts';
import type { Sequence } from '../../scheduler/batching/sequence.ts';

export interface MigrationPolicy {
  /** Share of the instance's memory that a sequence holds when a bigger instance is asked for; 1: when it has no room to grow. */
  readonly mark: number;
}

/** No memory here can hold all that it may come to. */
export function mayOutgrow({ lengthMax }: Sequence, { blockTokens, blockPages, pages }: BlockCache): boolean {
  return Math.ceil(lengthMax / blockTokens) * blockPages > pages.total;
}

/** Those of a batch that fill more than the mark, and decode: what a prompt needs is known before it starts. */
export function outgrowing(
  running: readonly Sequence[],
  cache: BlockCache,
  { mark }: MigrationPolicy,
): readonly Sequence[] {
  return running.filter(
    (sequence) =>
      sequence.remaining === 1 &&
      mayOutgrow(sequence, cache) &&
      cache.pagesOf(sequence.table) > mark * cache.pages.total,
  );
}
