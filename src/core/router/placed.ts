// What is kept of requests that were placed, and counted of their blocks.

import type { PrefixIndex } from '../kvcache/events/prefix-index.ts';
import type { Replication } from '../kvcache/events/replica-table.ts';
import type { InstanceIndex } from '../protocol/ids.ts';
import type { BlockChain } from '../protocol/kv-events.ts';
import type { BlockFates } from '../protocol/request-trace.ts';

/** Why blocks of prompts were computed, counted when their requests started. */
export interface MissReasons {
  /** Nobody has told of it before, as far as is remembered. */
  neverSeen: number;
  /** Instances had it; none has now. */
  evicted: number;
  /** An instance has it: another one, or this one since just now. */
  elsewhere: number;
  /** Not full, or the last token's, whose logits are wanted. */
  partial: number;
}

/** Of the blocks of prompts, counted when their requests started, and of what instances hold now. */
export interface BlockCounts {
  readonly hits: number;
  readonly misses: Readonly<MissReasons>;
  readonly replication: Replication;
}

/** What is kept of a placed request while it lives. */
export interface PlacementRecords {
  readonly instance: InstanceIndex;
  /** Others that compute the prompt with it. */
  readonly helpers: readonly InstanceIndex[];
  /** Those of them whose prefill has not ended. */
  readonly computing: Set<InstanceIndex>;
  readonly promptTokens: number;
  readonly chain: BlockChain | undefined;
  /** When its prefix is there. */
  readonly readyUs: number;
  /** Where it goes when its prompt is computed. */
  readonly decodeAt: InstanceIndex | undefined;
  /** Predicted of each of them, while its prefill has not ended. */
  prefillUs: number | undefined;
}

/** What became of the blocks of a prompt of which its instance had so many tokens. */
export function blockFates(
  index: PrefixIndex,
  chain: BlockChain,
  of: { readonly blockTokens: number; readonly promptTokens: number; readonly cachedTokens: number },
): BlockFates {
  const hits = Math.floor(of.cachedTokens / of.blockTokens);
  const reusable = Math.min(chain.blocks, Math.floor((of.promptTokens - 1) / of.blockTokens));
  const partial = Math.ceil(of.promptTokens / of.blockTokens) - reusable;
  const found = { hits, neverSeen: 0, evicted: 0, elsewhere: 0, partial };
  for (let i = hits; i < reusable; i++) {
    const fate = index.fate(chain, i);
    found[fate === 'held' ? 'elsewhere' : fate === 'evicted' ? 'evicted' : 'neverSeen']++;
  }
  return found;
}
