// Totals of an instance for metrics.

import { wideZero } from '../../util/wide-zero.ts';
import type { KvCaches } from '../kvcache/kv-caches.ts';
import type { BlockTier } from '../kvcache/tiers/block-tier.ts';
import type { InstanceSnapshot, TierSnapshot } from '../protocol/ports.ts';
import type { Batcher } from './batching/batcher.ts';

export class InstanceTotals {
  prompt = 0;
  cached = 0;
  computedPrompt = 0;
  generated = 0;
  #steps = 0;
  #stepUs: number = wideZero;
  #usedPageUs: number = wideZero;
  #pagesCountedUs: number = wideZero;

  /** Counts steps that ran. @param stepUs (steps): time of each */
  stepsRan(stepUs: ArrayLike<number>): void {
    for (let i = 0; i < stepUs.length; i++) this.#stepUs += stepUs[i];
    this.#steps += stepUs.length;
  }

  /** Integrates page use: so many pages have been in use until now. */
  addPageTime(nowUs: number, usedPages: number): void {
    this.#usedPageUs += usedPages * (nowUs - this.#pagesCountedUs);
    this.#pagesCountedUs = nowUs;
  }

  snapshot(batcher: Batcher, { all, first, pages, evicted, blocks, blockAges }: KvCaches): InstanceSnapshot {
    const { lower } = first;
    const total = all.reduce((sum, { receivePages }) => sum + receivePages.total, 0);
    const free = all.reduce((sum, { receivePages }) => sum + receivePages.free, 0);
    return {
      ...(total > 0 && { receivePages: { total, free } }),
      ready: true,
      waiting: batcher.waiting.length,
      running: batcher.running.length,
      pages,
      promptTokens: this.prompt,
      cachedTokens: this.cached,
      computedPromptTokens: this.computedPrompt,
      generatedTokens: this.generated,
      preemptions: batcher.preemptions,
      steps: this.#steps,
      stepMsTotal: this.#stepUs / 1_000,
      evictedBlocks: evicted,
      blockAges,
      blocks,
      usedPageSeconds: this.#usedPageUs / 1e6,
      tiers: lower && {
        host: tierSnapshot(lower.host),
        ssd: tierSnapshot(lower.ssd),
        reads: lower.reads,
        lostBlocks: lower.lostBlocks,
      },
    };
  }
}

function tierSnapshot(tier: BlockTier | undefined): TierSnapshot {
  if (tier === undefined) return { blocks: 0, capacity: 0 };
  return { blocks: tier.held + tier.arriving, capacity: tier.capacity - tier.reserved };
}
