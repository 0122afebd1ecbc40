// Totals of an instance for metrics.

import { wideZero } from '../../util/wide-zero.ts';
import type { KvCaches } from '../kvcache/kv-caches.ts';
import type { BlockTier } from '../kvcache/tiers/block-tier.ts';
import type { InstanceSnapshot, MemorySnapshot, TierSnapshot } from '../protocol/ports.ts';
import type { Batcher } from './batching/batcher.ts';
import type { RunningRequest } from './executor/executor.ts';

/** Time between two visits of all blocks. */
const memoryPeriodUs = 1_000_000;
/** Requests that a snapshot names as owners of pages. */
const ownersMax = 8;

export class InstanceTotals {
  prompt = 0;
  cached = 0;
  computedPrompt = 0;
  generated = 0;
  #steps = 0;
  #stepUs: number = wideZero;
  #usedPageUs: number = wideZero;
  #pagesCountedUs: number = wideZero;
  #memory: MemorySnapshot | undefined;
  #memoryAtUs = Number.NEGATIVE_INFINITY;

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

  /** An idle instance sends no later snapshot, so its last one is exact. */
  #memoryAt(nowUs: number, batcher: Batcher, live: Iterable<RunningRequest>, kvCaches: KvCaches): MemorySnapshot {
    const isIdle = batcher.running.length + batcher.waiting.length === 0;
    if (this.#memory === undefined || isIdle || nowUs - this.#memoryAtUs >= memoryPeriodUs) {
      this.#memoryAtUs = nowUs;
      this.#memory = memoryOf(live, kvCaches);
    }
    return this.#memory;
  }

  snapshot(nowUs: number, batcher: Batcher, live: Iterable<RunningRequest>, kvCaches: KvCaches): InstanceSnapshot {
    const { all, first, pages, evicted, blocks, blockAges } = kvCaches;
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
      memory: this.#memoryAt(nowUs, batcher, live, kvCaches),
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

function memoryOf(live: Iterable<RunningRequest>, kvCaches: KvCaches): MemorySnapshot {
  const { all, first } = kvCaches;
  const owners = Array.from(live, ({ id, sequence }) => [id, kvCaches.of(sequence).pagesOf(sequence.table)] as const);
  let [pinned, lent] = [0, 0];
  for (const table of kvCaches.pinned) pinned += first.pagesOf(table);
  for (const { lentPages } of all) lent += lentPages;
  const held = owners.filter(([, pages]) => pages > 0).sort(([, a], [, b]) => b - a);
  return { pinned, lent, owners: held.slice(0, ownersMax), pagesByAge: kvCaches.cachedPagesByAge };
}
