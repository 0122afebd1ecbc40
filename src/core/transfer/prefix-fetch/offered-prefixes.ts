// The offered prefixes that an instance fetches, as far as it lacks them: a store all of them, others copies of hot prefixes.

import { digestWords } from '../../../util/blake2s.ts';
import type { BlockCache } from '../../kvcache/block-cache.ts';
import { localPrefix, type PrefixReceiveBuffer, receivePrefix, sendsPrefixes } from '../../kvcache/prefix-transfer.ts';
import type { InstanceIndex, RequestId } from '../../protocol/ids.ts';
import type { BlockChain } from '../../protocol/kv-events.ts';
import type { Identified, InstanceContext } from '../../scheduler/component.ts';
import type { RunningRequest } from '../../scheduler/executor/executor.ts';
import type { LoadPart } from './prefix-loads.ts';

interface Offer {
  readonly from: InstanceIndex;
  readonly chain: BlockChain;
  /** Number of leading blocks fetched before: if they are evicted meanwhile, memory is too short for the prefix. */
  readonly fetched: number;
}

/** Blocks `own..to` of the chain are being fetched. */
interface Fetch extends Offer {
  readonly buffer: PrefixReceiveBuffer;
  readonly own: number;
  readonly to: number;
  readonly untilUs: number;
  /** From here on the fetch is cancelled if a request waits for the memory of its buffer. */
  readonly yieldsUs: number;
}

/** Maximum number of fetches at once, and of waiting offers. */
const fetchesMax = 4;
const offersMax = 64;
/** Maximum blocks of one fetch, and its share of host memory (without it, of the pool); the rest of a longer prefix follows. */
const fetchBlocksMax = 32;
const fetchShare = 1 / 8;
/** Patience from the start of a fetch on. After a fetch that took longer, the patience doubles, up to the maximum. */
const patienceUsMin = 10_000_000;
const patienceUsMax = 120_000_000;
/** Patience for a copy into device memory while a request waits for memory: the copy is not worth a longer wait. */
const yieldUs = 1_000_000;

/** Fetches blocks from other instances. */
interface PeerSources {
  /** Answered by `arrive`. */
  fetchFrom(
    id: RequestId,
    chain: BlockChain,
    part: LoadPart & { source: InstanceIndex },
    buffer: PrefixReceiveBuffer,
  ): void;
  cancelFrom(id: RequestId, source: InstanceIndex): void;
}

export class OfferedPrefixes {
  readonly #cache: BlockCache;
  readonly #context: InstanceContext<Identified, RunningRequest>;
  readonly #sources: PeerSources;
  #offers: Offer[] = [];
  readonly #fetches = new Map<RequestId, Fetch>();
  #fetchNumber = 0;
  #patienceUs = patienceUsMin;
  /** Blocks fetched. */
  blocks = 0;
  /** Offers declined because memory or time was short. */
  declined = 0;

  constructor(context: InstanceContext<Identified, RunningRequest>, sources: PeerSources) {
    this.#cache = context.kvCache;
    this.#context = context;
    this.#sources = sources;
  }

  /** Prefixes that are being fetched. */
  get size(): number {
    return this.#fetches.size;
  }

  /** When the patience for a fetch ends. */
  get nextUs(): number {
    let nextUs = Number.POSITIVE_INFINITY;
    for (const current of this.#fetches.values()) nextUs = Math.min(nextUs, this.#endUs(current));
    return nextUs;
  }

  #endUs({ untilUs, yieldsUs }: Fetch): number {
    return this.#context.scheduler.isBlockedByMemory ? Math.min(untilUs, yieldsUs) : untilUs;
  }

  /** Returns why the offer is ignored. */
  offered(from: InstanceIndex, { blocks, words }: BlockChain): string | undefined {
    if (!sendsPrefixes(this.#cache)) return 'layers with a window require host memory';
    // The offer shows that the prefix is in use.
    this.#cache.lower?.touch({ blocks, words }, blocks);
    if (this.#offers.length >= offersMax) {
      this.declined++;
      return `${offersMax} offers wait`;
    }
    this.#offers.push({ from, chain: { blocks, words }, fetched: 0 });
    return undefined;
  }

  /** Cancels fetches that take too long, and starts those of waiting offers, as far as memory allows. */
  advance(nowUs: number): void {
    if (this.#fetches.size > 0)
      for (const [id, current] of [...this.#fetches])
        if (this.#endUs(current) <= nowUs) this.#abandon(nowUs, id, current);
    if (this.#offers.length > 0)
      this.#offers = this.#offers.filter((offer) => this.#fetches.size >= fetchesMax || !this.#begin(nowUs, offer));
  }

  /** False: another fetch is loading its first missing block. */
  #begin(nowUs: number, { from, chain, fetched }: Offer): boolean {
    const { lower } = this.#cache;
    const local = localPrefix(this.#cache, chain, chain.blocks);
    const own = lower?.inHostOrOnSsd(chain, local, chain.blocks) ?? local;
    if (own >= chain.blocks || own < fetched) return true;
    if (lower?.host.contains(chain.words, own * digestWords) === true || this.#isFetching(chain, own)) return false;
    const capacity = lower?.host.capacity ?? this.#cache.capacityTokens / this.#cache.blockTokens;
    const most = Math.min(fetchBlocksMax, Math.max(1, Math.floor(capacity * fetchShare)));
    const to = Math.min(chain.blocks, own + most);
    const buffer = receivePrefix(this.#cache, chain, own, to, this.#context.scheduler);
    if (buffer === undefined) {
      this.declined++;
      return true;
    }
    // Request ids have no blanks. The incarnation distinguishes fetches from those before a restart of the store.
    const id = `fetch ${this.#context.config.incarnation ?? 0}.${++this.#fetchNumber}`;
    const yieldsUs = lower === undefined ? nowUs + yieldUs : Number.POSITIVE_INFINITY;
    this.#fetches.set(id, { from, chain, fetched, buffer, own, to, untilUs: nowUs + this.#patienceUs, yieldsUs });
    this.#sources.fetchFrom(id, chain, { source: from, from: own, to }, buffer);
    return true;
  }

  #isFetching({ words }: BlockChain, block: number): boolean {
    const at = block * digestWords;
    return [...this.#fetches.values()].some(
      ({ own, to, chain }) =>
        own <= block &&
        block < to &&
        chain.words.slice(at, at + digestWords).every((word, i) => word === words[at + i]),
    );
  }

  /** The fetch has ended, with the blocks before `to`. False when it was not expected. */
  arrive(id: RequestId, source: InstanceIndex, to: number): boolean {
    const current = this.#fetches.get(id);
    if (current === undefined || current.from !== source) return false;
    const arrivedTo = Math.min(to, current.to);
    if (arrivedTo > current.own) {
      current.buffer.fill(current.own, arrivedTo, 'instance');
      this.blocks += arrivedTo - current.own;
    }
    this.#close(id, current);
    if (arrivedTo < current.to) return true;
    this.#patienceUs = Math.max(patienceUsMin, this.#patienceUs / 2);
    if (current.to < current.chain.blocks)
      this.#offers.unshift({ from: current.from, chain: current.chain, fetched: current.to });
    return true;
  }

  #abandon(nowUs: number, id: RequestId, current: Fetch): void {
    this.#sources.cancelFrom(id, current.from);
    this.#close(id, current);
    this.declined++;
    if (current.untilUs <= nowUs) this.#patienceUs = Math.min(patienceUsMax, 2 * this.#patienceUs);
  }

  #close(id: RequestId, { buffer }: Fetch): void {
    this.#fetches.delete(id);
    buffer.close();
  }

  /** Throws unless every fetch has a buffer for its blocks. */
  check(): void {
    if (this.#fetches.size > fetchesMax)
      throw new Error(`Store broken: ${this.#fetches.size} prefixes are fetched at once`);
    for (const [id, { buffer, own, to }] of this.#fetches)
      if (buffer.blocks !== to || own >= to)
        throw new Error(`Store broken: ${id} has ${own} of ${to} blocks, and a buffer up to ${buffer.blocks}`);
  }
}
