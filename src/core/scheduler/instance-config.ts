// What an instance is made with.

import type { LayerGroup } from '../../util/step.ts';
import type { TiersConfig } from '../kvcache/block-cache.ts';
import type { BlockListener } from '../kvcache/events/kv-event-log.ts';
import type { EvictionKind } from '../kvcache/eviction.ts';
import type { BorrowingConfig } from '../lending/debtor/borrower-config.ts';
import type { Store } from '../protocol/events.ts';
import type { RequestId } from '../protocol/ids.ts';
import type { MessageCounts } from '../protocol/message-counts.ts';
import type { StepPredictor } from '../protocol/step-shape.ts';
import type { HandOffConfig } from '../transfer/hand-off/hand-offs.ts';
import type { MigrationConfig } from '../transfer/migration/request-migrator.ts';
import type { BatchLimits } from './batching/step-budget.ts';

export interface InstanceConfig {
  /** Pages of the KV pool, and the model's layer groups, which share them. */
  readonly pages: number;
  readonly groups: readonly LayerGroup[];
  readonly blockTokens: number;
  readonly eviction: EvictionKind;
  readonly limits: BatchLimits;
  /** Predicts steps, and learns from those that ran if it can. */
  readonly cost: StepPredictor;
  /** Requests accepted and not ended, at most. */
  readonly queueMax: number;
  /** With other instances to hand prompts to, or to take them from. */
  readonly handOff?: HandOffConfig;
  /** Blocks of host memory and SSD that hold cached keys and values besides. Undefined: what leaves the pool is gone. */
  readonly tiers?: Omit<TiersConfig, 'mover'> | undefined;
  /** Blocks of the tiers have contents: effects say what is to be moved. `onSsd`: what lies there from before, (blocks, 6) slot, depth and digest, those written first first. */
  readonly contents?: { readonly onSsd: Uint32Array | undefined } | undefined;
  /** Requests may start while their prefixes are still on their way, layer by layer: whoever carries out steps waits for what `Instance.arriving` says. */
  readonly startsAhead?: boolean | undefined;
  /** How long so many blocks of SSD would take to read, as far as is known. Undefined: no time to speak of. */
  readonly ssdReadUs?: ((blocks: number) => number) | undefined;
  /** Do rows of chunks wait here, enough of them, that the members after this one have no room for? Then no chunk of the request begins here that waits for none, but for one that was begun before; a `wake` says that it is over. Undefined: never. */
  readonly rowsHeld?: ((id: RequestId) => boolean) | undefined;
  /** Of the pages, what pinned prefixes may hold; what other requests may be is that much shorter. Undefined: nothing is pinned. */
  readonly pinShare?: number | undefined;
  /** Lends memory to other instances and borrows from them; only for models of one layer group without a window. */
  readonly borrowing?: BorrowingConfig | undefined;
  /** Requests that outgrow its memory go on at bigger instances; not together with borrowing. */
  readonly migration?: MigrationConfig | undefined;
  /** A store: takes what others offer, and has no pages but those of its tiers. */
  readonly keeps?: boolean | undefined;
  /** Those that keep what it computes, until it is told of others. */
  readonly stores?: readonly Store[] | undefined;
  /** Tells conductors what the block cache stores and drops, as the life of this number. Undefined: nobody asks. */
  readonly journalIncarnation?: number;
  /** Hears at once what the block cache stores and drops: for those who check what conductors know. */
  readonly witness?: BlockListener | undefined;
  /** Between two reports to conductors; undefined: none are wanted. */
  readonly reportUs?: number | undefined;
  /** Counts what messages met. */
  readonly fates?: MessageCounts | undefined;
}
