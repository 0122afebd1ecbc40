// Selects the sequences that migrate to a bigger instance: those that may outgrow the memory here and already fill much of it.

import type { BlockCache } from '../../kvcache/block-cache.ts';
import type { Sequence } from '../../scheduler/batching/sequence.ts';

export interface MigrationPolicy {
  /** Share of the memory that a sequence fills when a bigger instance is requested; 1: only when it cannot grow. */
  readonly mark: number;
}

/** True if the memory here cannot hold the sequence at its maximum length. */
export function mayOutgrow({ lengthMax }: Sequence, { blockTokens, blockPages, pages }: BlockCache): boolean {
  return Math.ceil(lengthMax / blockTokens) * blockPages > pages.total;
}

/** Running sequences that decode and fill more than the mark. Prompts are not considered: their memory is known before they start. */
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
