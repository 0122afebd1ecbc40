// Prompts that were placed on an instance, and how many of their blocks the prefix cache had.

import type { PrefixIndex } from '../../kvcache/events/prefix-index.ts';
import type { Replication } from '../../kvcache/events/replica-table.ts';
import type { InstanceIndex } from '../../protocol/ids.ts';
import type { BlockChain } from '../../protocol/kv-events.ts';
import type { PromptBlockCounts } from '../../protocol/request-trace.ts';
import type { PrefillRank } from './prefill-queues.ts';

/** Why blocks of prompts were computed, counted when their requests started. */
export interface MissReasons {
  /** No instance has stored the block, as far as the index remembers. */
  neverSeen: number;
  /** An instance held the block; none holds it now. */
  evicted: number;
  /** Another instance holds the block, or this one stored it after the decision. */
  elsewhere: number;
  /** The block is not full, or holds the last token, which is always computed for its logits. */
  partial: number;
}

/** Prefix cache hits and misses, counted when requests started, and copies of blocks that instances hold now. */
export interface BlockCounts {
  readonly hits: number;
  readonly misses: Readonly<MissReasons>;
  readonly replication: Replication;
}

/** The state of a placed prompt until its request ends. */
export interface PlacedPrompt {
  readonly instance: InstanceIndex;
  /** Other members of its pipeline group. */
  readonly helpers: readonly InstanceIndex[];
  /** Instances that still compute the prompt. */
  readonly computing: Set<InstanceIndex>;
  readonly promptTokens: number;
  readonly rank: PrefillRank;
  readonly chain: BlockChain | undefined;
  /** Predicted time at which its prefix is on the instance. */
  readonly readyUs: number;
  /** The instance that decodes, when it is another one. */
  readonly decodeAt: InstanceIndex | undefined;
  /** The instance has reported the start of the prefill, and not its end. */
  running: boolean;
  /** Predicted duration of the prefill on each of `computing`; undefined once the prefill has ended. */
  prefillUs: number | undefined;
}

/** Classifies the blocks of a prompt of which its instance had `cachedTokens` tokens. */
export function countPromptBlocks(
  index: PrefixIndex,
  chain: BlockChain,
  of: { readonly blockTokens: number; readonly promptTokens: number; readonly cachedTokens: number },
): PromptBlockCounts {
  const hits = Math.floor(of.cachedTokens / of.blockTokens);
  const reusable = Math.floor((of.promptTokens - 1) / of.blockTokens);
  const partial = Math.ceil(of.promptTokens / of.blockTokens) - reusable;
  // A prompt of a trace may lack the digests of its blocks.
  const known = Math.min(chain.blocks, reusable);
  const found = { hits, neverSeen: reusable - Math.max(hits, known), evicted: 0, elsewhere: 0, partial };
  for (let i = hits; i < known; i++) {
    const state = index.replicaState(chain, i);
    found[state === 'held' ? 'elsewhere' : state === 'evicted' ? 'evicted' : 'neverSeen']++;
  }
  return found;
}
