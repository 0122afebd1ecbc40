// Batch jobs: what they may have of an instance beside those who wait for answers.
import type { BlockCache } from '../../kvcache/block-cache.ts';
import type { Sequence } from './sequence.ts';

export interface BackgroundLimits {
  /** Of all pages, what batch jobs hold at most together; one alone may have more. */
  readonly memoryShare: number;
  /** Predicted time of a step of batch jobs alone: whoever comes then waits no longer than that. */
  readonly stepUs: number;
  /** What their rows may add to a step of others, over its predicted time. */
  readonly timeShare: number;
}

export const backgroundLimits: BackgroundLimits = { memoryShare: 0.2, stepUs: 50_000, timeShare: 0.01 };

/** Where batch jobs begin in a list by rank: they stand last. */
export function firstBackground(sequences: readonly Sequence[]): number {
  let first = sequences.length;
  while (first > 0 && sequences[first - 1].background) first--;
  return first;
}

/** Pages that batch jobs hold, those counted twice that they share. */
export function backgroundPages(cache: BlockCache, running: readonly Sequence[]): number {
  let pages = 0;
  for (let i = firstBackground(running); i < running.length; i++) pages += cache.pagesOf(running[i].table);
  return pages;
}
