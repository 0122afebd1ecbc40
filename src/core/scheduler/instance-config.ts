// Configuration of every instance; components have configurations of their own.

import type { LayerGroup } from '../../util/step.ts';
import type { BlockCacheConfig, TiersConfig } from '../kvcache/block-cache.ts';
import type { KvEventPublisherConfig } from '../kvcache/events/kv-event-publisher.ts';
import type { EvictionRule, FutureUses } from '../kvcache/eviction.ts';
import type { SparsityConfig } from '../kvcache/sparsity/sparse-plan.ts';
import type { MessageCounts } from '../protocol/message-counts.ts';
import type { StepPredictor } from '../protocol/step-shape.ts';
import type { BatchLimits } from './batching/step-budget.ts';

export interface InstanceConfig
  extends KvEventPublisherConfig,
    Pick<BlockCacheConfig, 'receivePages' | 'stagingBlocks' | 'hostRows'> {
  /** Pages of the KV pool, and the model's layer groups, which share them. */
  readonly pages: number;
  readonly groups: readonly LayerGroup[];
  /** Equal parts of the pages, of which each sequence has its blocks in one; undefined: one cache has all pages. */
  readonly cacheParts?: number | undefined;
  readonly blockTokens: number;
  readonly eviction: EvictionRule;
  /** Of a simulated workload, for eviction policies. */
  readonly futureUses?: FutureUses | undefined;
  readonly limits: BatchLimits;
  /** Predicts the time of steps, and may learn from steps that ran. */
  readonly cost: StepPredictor;
  /** Maximum number of requests accepted and not ended. */
  readonly queueMax: number;
  /** Host memory and SSD below the pool. Undefined: evicted blocks are lost. */
  readonly tiers?: Omit<TiersConfig, 'mover'> | undefined;
  /** Share of the pages that pinned prefixes may hold; the longest request is shorter by as much. Undefined: nothing is pinned. */
  readonly pinShare?: number | undefined;
  /** Requests may keep only some tokens in the sparse layer group; undefined: no group is sparse. */
  readonly sparsity?: SparsityConfig | undefined;
  /** The instance is a store: it has no pages but those of its tiers, and publishes every change of its cache immediately. */
  readonly isStore?: boolean | undefined;
  /** Interval of the reports to conductors; undefined: no reports. */
  readonly reportUs?: number | undefined;
  /** Counts anomalies of messages. */
  readonly messageCounts?: MessageCounts | undefined;
}
