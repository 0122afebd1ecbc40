// Prefixes that a store fetches from the instances that offer them, as far as it lacks them.

import { digestWords } from '../../../util/blake2s.ts';
import type { BlockCache } from '../../kvcache/block-cache.ts';
import { type PrefixReceiveBuffer, receivePrefix } from '../../kvcache/prefix-transfer.ts';
import type { InstanceIndex, RequestId } from '../../protocol/ids.ts';
import type { BlockChain } from '../../protocol/kv-events.ts';
import type { Identified, InstanceContext } from '../../scheduler/component.ts';
import type { RunningRequest } from '../../scheduler/executor/executor.ts';
import type { LoadPart } from './prefix-loads.ts';

interface Offer {
  readonly from: InstanceIndex;
  readonly chain: BlockChain;
  /** Blocks that have been fetched of it: if they are evicted, there is no room for all of it. */
  readonly taken: number;
}

/** Blocks `own..to` of the chain are being fetched. */
interface Take extends Offer {
  readonly buffer: PrefixReceiveBuffer;
  readonly own: number;
  readonly to: number;
  readonly untilUs: number;
}

/** Maximum number of fetches at once, and of waiting offers. */
const takesMax = 4;
const offersMax = 64;
/** Maximum blocks of one fetch, and its share of host memory; the rest of a longer prefix follows. */
const takeBlocksMax = 32;
const takeShare = 1 / 8;
/** Patience from the start of a fetch on. After a fetch that took longer, the patience doubles, up to the maximum. */
const patienceUsMin = 10_000_000;
const patienceUsMax = 120_000_000;

/** Fetches blocks from other instances. */
interface PeerSources {
  /** Answered by `arrive`. */
  fetchFrom(
    name: RequestId,
    chain: BlockChain,
    part: LoadPart & { source: InstanceIndex },
    buffer: PrefixReceiveBuffer,
  ): void;
  cancelFrom(name: RequestId, source: InstanceIndex): void;
}

export class PrefixStore {
  readonly #cache: BlockCache;
  readonly #context: InstanceContext<Identified, RunningRequest>;
  readonly #sources: PeerSources;
  #offers: Offer[] = [];
  readonly #takes = new Map<RequestId, Take>();
  #names = 0;
  #patienceUs = patienceUsMin;
  /** Blocks fetched, and offers declined for want of room or time. */
  blocks = 0;
  declined = 0;

  constructor(context: InstanceContext<Identified, RunningRequest>, sources: PeerSources) {
    this.#cache = context.kvCache;
    this.#context = context;
    this.#sources = sources;
  }

  /** Prefixes that are being fetched. */
  get size(): number {
    return this.#takes.size;
  }

  /** When the patience for a fetch ends. */
  get nextUs(): number {
    let nextUs = Number.POSITIVE_INFINITY;
    for (const { untilUs } of this.#takes.values()) nextUs = Math.min(nextUs, untilUs);
    return nextUs;
  }

  /** Returns why the offer is ignored. */
  offered(from: InstanceIndex, { blocks, words }: BlockChain): string | undefined {
    const { lower } = this.#cache;
    if (lower === undefined) return 'there is no memory for what others have';
    // The offer shows that the prefix is in use.
    lower.touch({ blocks, words }, blocks);
    if (this.#offers.length >= offersMax) {
      this.declined++;
      return `${offersMax} offers wait`;
    }
    this.#offers.push({ from, chain: { blocks, words }, taken: 0 });
    return undefined;
  }

  /** Gives up fetches that take too long, and starts those of waiting offers, as far as there is room. */
  advance(nowUs: number): void {
    if (this.#takes.size > 0)
      for (const [name, take] of [...this.#takes]) if (take.untilUs <= nowUs) this.#giveUp(name, take);
    if (this.#offers.length > 0)
      this.#offers = this.#offers.filter((offer) => this.#takes.size >= takesMax || !this.#begin(nowUs, offer));
  }

  /** False: another fetch brings its first block. */
  #begin(nowUs: number, { from, chain, taken }: Offer): boolean {
    const { lower } = this.#cache;
    const own = lower?.inHostOrOnSsd(chain, 0, chain.blocks) ?? chain.blocks;
    if (lower === undefined || own >= chain.blocks || own < taken) return true;
    if (lower.host.contains(chain.words, own * digestWords)) return false;
    const most = Math.min(takeBlocksMax, Math.max(1, Math.floor(lower.host.capacity * takeShare)));
    const to = Math.min(chain.blocks, own + most);
    const buffer = receivePrefix(this.#cache, chain, own, to, this.#context.scheduler);
    if (buffer === undefined) {
      this.declined++;
      return true;
    }
    // Request ids have no blanks. The incarnation tells takes apart from those of the store before it restarted.
    const name = `take ${this.#context.config.incarnation ?? 0}.${++this.#names}`;
    this.#takes.set(name, { from, chain, taken, buffer, own, to, untilUs: nowUs + this.#patienceUs });
    this.#sources.fetchFrom(name, chain, { source: from, from: own, to }, buffer);
    return true;
  }

  /** The fetch has ended, with the blocks before `to`. False when it was not expected. */
  arrive(name: RequestId, source: InstanceIndex, to: number): boolean {
    const take = this.#takes.get(name);
    if (take === undefined || take.from !== source) return false;
    const arrivedTo = Math.min(to, take.to);
    if (arrivedTo > take.own) {
      take.buffer.fill(take.own, arrivedTo, 'instance');
      this.blocks += arrivedTo - take.own;
    }
    this.#close(name, take);
    if (arrivedTo < take.to) return true;
    this.#patienceUs = Math.max(patienceUsMin, this.#patienceUs / 2);
    if (take.to < take.chain.blocks) this.#offers.unshift({ from: take.from, chain: take.chain, taken: take.to });
    return true;
  }

  #giveUp(name: RequestId, take: Take): void {
    this.#sources.cancelFrom(name, take.from);
    this.#close(name, take);
    this.declined++;
    this.#patienceUs = Math.min(patienceUsMax, 2 * this.#patienceUs);
  }

  #close(name: RequestId, { buffer }: Take): void {
    this.#takes.delete(name);
    buffer.close();
  }

  /** Throws unless every fetch has a buffer for its blocks. */
  check(): void {
    if (this.#takes.size > takesMax) throw new Error(`Store broken: ${this.#takes.size} prefixes come at once`);
    for (const [name, { buffer, own, to }] of this.#takes)
      if (buffer.blocks !== to || own >= to)
        throw new Error(`Store broken: ${name} has ${own} of ${to} blocks, room for ${buffer.blocks}`);
  }
}
