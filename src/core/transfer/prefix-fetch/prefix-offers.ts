// Offers of computed prefixes to stores: which prefixes, to which store, and when.

import { digestWords } from '../../../util/blake2s.ts';
import { scramble } from '../../../util/scramble.ts';
import type { Store } from '../../protocol/events.ts';
import type { InstanceIndex, RequestId } from '../../protocol/ids.ts';
import type { BlockChain } from '../../protocol/kv-events.ts';
import type { Sequence } from '../../scheduler/batching/sequence.ts';
import type { Identified, InstanceContext } from '../../scheduler/component.ts';
import type { RunningRequest } from '../../scheduler/executor/executor.ts';
import type { PrefixSends } from './prefix-sends.ts';
import { ReplicationWorth } from './replication-worth.ts';

/** While so many prefixes are being sent, nothing is offered, so that computation is not delayed. */
const leavingMax = 4;

/**
 * A prefix is offered when its prompt is computed, so that it survives its instance, and when its request ends, with the blocks of its output.
 * The store fetches what it lacks. An offer leaves no state here, so it needs no answer.
 */
export class PrefixOffers {
  readonly #context: InstanceContext<Identified, RunningRequest>;
  readonly #sends: Pick<PrefixSends, 'size'>;
  readonly #worth = new ReplicationWorth();
  #stores: readonly Store[] = [];
  /** When a store has fetched a prefix, by store and name. */
  readonly #asked = new Map<string, number>();

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
    if (this.#stores.length === 0 || this.#sends.size >= leavingMax) return;
    const blocks = computedBlocks(sequence, this.#context.config.blockTokens);
    if (blocks <= sequence.offeredBlocks || !this.#worth.isWorth(blocks, this.#computeUs(blocks))) return;
    sequence.offeredBlocks = blocks;
    const chain = { blocks, words: sequence.chain.words.slice(0, blocks * digestWords) };
    this.#context.emit({ kind: 'send', to: storeOf(this.#stores, chain), message: { kind: 'offer', id, chain } });
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

  /** A store fetches a prefix that it was offered, or an instance one for a request. */
  asked(nowUs: number, to: InstanceIndex, name: RequestId): void {
    if (this.#stores.some(({ instance }) => instance === to)) this.#asked.set(keyOf(to, name), nowUs);
  }

  /** So many blocks have been sent, or none. */
  left(nowUs: number, to: InstanceIndex, name: RequestId, blocks: number): void {
    const key = keyOf(to, name);
    const askedUs = this.#asked.get(key);
    if (askedUs === undefined) return;
    this.#asked.delete(key);
    this.#worth.copied(blocks, nowUs - askedUs);
  }
}

function keyOf(to: InstanceIndex, name: RequestId): string {
  return `${to} ${name}`;
}

/** Full blocks whose digests are known. */
function computedBlocks({ computed, chain }: Sequence, blockTokens: number): number {
  return Math.min(chain.blocks, Math.floor(computed / blockTokens));
}

/** Rendezvous hashing by the first block: few prefixes change stores when a store joins or leaves. */
function storeOf(stores: readonly Store[], { words }: BlockChain): InstanceIndex {
  const lotOf = ({ key }: Store): number => scramble(scramble(key) ^ words[0]) >>> 0;
  return stores.reduce((best, store) => (lotOf(store) > lotOf(best) ? store : best)).instance;
}
