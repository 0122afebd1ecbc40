// What an instance offers to stores of what it has computed: which prefixes, to whom, and when.

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

/** While so many prefixes leave nothing more is offered: who computes is not to be held up. */
const leavingMax = 4;

/**
 * A prefix is offered when its prompt is computed, so that it outlives its instance, and when its request ends, for what output has added to
 * it. The store asks (`fetch`) for what it lacks of it; of an offer nothing is kept here, so none has to be answered.
 */
export class PrefixOffers {
  readonly #context: InstanceContext<Identified, RunningRequest>;
  readonly #sends: Pick<PrefixSends, 'size'>;
  readonly #worth = new ReplicationWorth();
  #stores: readonly Store[] = [];
  /** What a store has asked for, by store and name: since when. */
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

  /** These are there from now on, and no others. */
  set stores(stores: readonly Store[]) {
    this.#stores = stores;
  }

  /** All of it that is computed is cache here. */
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

  /** Somebody asks for a prefix: a store for one that it was offered, or an instance for a request. */
  asked(nowUs: number, to: InstanceIndex, name: RequestId): void {
    if (this.#stores.some(({ instance }) => instance === to)) this.#asked.set(keyOf(to, name), nowUs);
  }

  /** So many blocks have left, or none. */
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

/** Full ones whose digests are known. */
function computedBlocks({ computed, chain }: Sequence, blockTokens: number): number {
  return Math.min(chain.blocks, Math.floor(computed / blockTokens));
}

/** Each store has a lot for each beginning of a prefix; the highest wins, so that few prefixes change stores when one comes or goes. */
function storeOf(stores: readonly Store[], { words }: BlockChain): InstanceIndex {
  const lotOf = ({ key }: Store): number => scramble(scramble(key) ^ words[0]) >>> 0;
  return stores.reduce((best, store) => (lotOf(store) > lotOf(best) ? store : best)).instance;
}
