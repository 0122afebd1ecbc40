// Offers of computed prefixes to stores: which prefixes, to which store, and when.

import { digestWords } from '../../../util/blake2s.ts';
import { scramble } from '../../../util/scramble.ts';
import { sendsPrefixes } from '../../kvcache/prefix-transfer.ts';
import type { PrefixOffer, Store } from '../../protocol/events.ts';
import type { InstanceIndex, RequestId } from '../../protocol/ids.ts';
import type { BlockChain } from '../../protocol/kv-events.ts';
import type { Sequence } from '../../scheduler/batching/sequence.ts';
import type { Identified, InstanceContext } from '../../scheduler/component.ts';
import type { RunningRequest } from '../../scheduler/executor/executor.ts';
import type { PrefixSends } from './prefix-sends.ts';
import { ReplicationWorth } from './replication-worth.ts';

/** While so many prefixes are being sent, nothing is offered, so that sends do not delay computation. */
const sendsMax = 4;

/**
 * A prefix is offered when its prompt is computed, so that it survives its instance, and when its request ends, with the blocks of its output.
 * The store fetches what it lacks. An offer leaves no state here, so it needs no answer.
 */
export class PrefixOffers {
  readonly #context: InstanceContext<Identified, RunningRequest>;
  readonly #sends: Pick<PrefixSends, 'size'>;
  readonly #worth = new ReplicationWorth();
  #stores: readonly Store[] = [];
  /** Start of each fetch by a store, by store and id. */
  readonly #fetchStartUs = new Map<string, number>();

  constructor(
    context: InstanceContext<Identified, RunningRequest>,
    sends: Pick<PrefixSends, 'size'>,
    stores: readonly Store[],
  ) {
    this.#context = context;
    this.#sends = sends;
    this.#stores = stores;
  }

  /** The stores from now on. */
  set stores(stores: readonly Store[]) {
    this.#stores = stores;
  }

  /** Offers the computed blocks of the request, which are cached here. */
  offer({ id, sequence }: RunningRequest): void {
    if (this.#stores.length === 0 || this.#sends.size >= sendsMax || !sendsPrefixes(this.#context.kvCache)) return;
    const blocks = computedBlocks(sequence, this.#context.config.blockTokens);
    if (blocks <= sequence.offeredBlocks || !this.#worth.isWorth(blocks, this.#computeUs(blocks))) return;
    sequence.offeredBlocks = blocks;
    const chain = { blocks, words: sequence.chain.words.slice(0, blocks * digestWords) };
    this.#context.emit({ kind: 'send', to: storeOf(this.#stores, chain), message: { kind: 'offer', id, chain } });
  }

  /** Offers cached blocks of a waiting request, which a conductor copies because prompts wait for them. */
  offerTo({ id, sequence }: RunningRequest, { to, blocks: blocksMax }: PrefixOffer): void {
    if (this.#sends.size >= sendsMax || !sendsPrefixes(this.#context.kvCache)) return;
    const blocks = Math.min(blocksMax, sequence.chain.blocks);
    const chain = { blocks, words: sequence.chain.words.slice(0, blocks * digestWords) };
    this.#context.emit({ kind: 'send', to, message: { kind: 'offer', id, chain } });
  }

  #computeUs(blocks: number): number {
    const rows = blocks * this.#context.config.blockTokens;
    return this.#context.config.cost.predictUs({
      rows,
      keyRows: (rows * (rows + 1)) / 2,
      decodeRows: 0,
      decodeKeys: 0,
      logitRows: 0,
    });
  }

  /** A fetch of a cached prefix has started; only fetches by stores are timed. */
  fetchStarted(nowUs: number, to: InstanceIndex, id: RequestId): void {
    if (this.#stores.some(({ instance }) => instance === to)) this.#fetchStartUs.set(keyOf(to, id), nowUs);
  }

  /** A fetch has ended. @param blocks number of blocks sent */
  fetchEnded(nowUs: number, to: InstanceIndex, id: RequestId, blocks: number): void {
    const key = keyOf(to, id);
    const startUs = this.#fetchStartUs.get(key);
    if (startUs === undefined) return;
    this.#fetchStartUs.delete(key);
    this.#worth.copied(blocks, nowUs - startUs);
  }
}

function keyOf(to: InstanceIndex, id: RequestId): string {
  return `${to} ${id}`;
}

/** Full blocks whose digests are known. */
function computedBlocks({ computed, chain }: Sequence, blockTokens: number): number {
  return Math.min(chain.blocks, Math.floor(computed / blockTokens));
}

/** Rendezvous hashing by the first block: few prefixes change stores when a store joins or leaves. */
function storeOf(stores: readonly Store[], { words }: BlockChain): InstanceIndex {
  const weightOf = ({ key }: Store): number => scramble(scramble(key) ^ words[0]) >>> 0;
  return stores.reduce((best, store) => (weightOf(store) > weightOf(best) ? store : best)).instance;
}
