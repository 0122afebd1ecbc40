// Batch jobs: the memory and time that they may take of an instance beside online requests.
import type { BlockCache } from '../../kvcache/block-cache.ts';
import type { Sequence } from './sequence.ts';

export interface BackgroundLimits {
  /** Maximum share of all pages that batch jobs hold together; a single one may hold more. */
  readonly memoryShare: number;
  /** Predicted time of a step of batch jobs alone: an online request waits no longer than that. */
  readonly stepUs: number;
  /** Share of a step's predicted time that rows of batch jobs may add to it. */
  readonly timeShare: number;
}

export const backgroundLimits: BackgroundLimits = { memoryShare: 0.2, stepUs: 50_000, timeShare: 0.01 };

/** Index of the first batch job in a ranked list: batch jobs are last. */
export function firstBackground(sequences: readonly Sequence[]): number {
  let first = sequences.length;
  while (first > 0 && sequences[first - 1].background) first--;
  return first;
}

/** Pages that batch jobs hold; shared pages count twice. */
export function backgroundPages(cache: BlockCache, running: readonly Sequence[]): number {
  let pages = 0;
  for (let i = firstBackground(running); i < running.length; i++) pages += cache.pagesOf(running[i].table);
  return pages;
}
