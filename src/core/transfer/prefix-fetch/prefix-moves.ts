// The prefixes that come to an instance and leave it: what its peers and its driver tell it about them.

import { digestWords } from '../../../util/blake2s.ts';
import type { BlockCache } from '../../kvcache/block-cache.ts';
import type { CanSpare, PrefixReceiveBuffer } from '../../kvcache/prefix-transfer.ts';
import type { InstanceEvent, LoadSource, PrefixFetch, PrefixMessage } from '../../protocol/events.ts';
import type { InstanceIndex, RequestId, SlotId } from '../../protocol/ids.ts';
import type { BlockChain, SsdBlock } from '../../protocol/kv-events.ts';
import type { StoreSnapshot } from '../../protocol/ports.ts';
import type { StepPredictor } from '../../protocol/step-shape.ts';
import type { Batcher } from '../../scheduler/batching/batcher.ts';
import type { Sequence } from '../../scheduler/batching/sequence.ts';
import type { RunningRequest } from '../../scheduler/executor/executor.ts';
import type { InstanceConfig } from '../../scheduler/instance-config.ts';
import type { Push } from '../hand-off/hand-offs.ts';
import type { EarlyStart } from './early-start.ts';
import { type LoadPart, PrefixLoads } from './prefix-loads.ts';
import { PrefixOffers } from './prefix-offers.ts';
import { PrefixSends } from './prefix-sends.ts';
import { PrefixStagings } from './prefix-stagings.ts';
import { PrefixStore } from './prefix-stores.ts';

type MoveEvent = Extract<InstanceEvent, { kind: 'arriving' | 'loaded' | 'prefixSent' | 'ssdWritten' | 'stores' }>;

type PeerPart = LoadPart & { readonly source: InstanceIndex };
type Keeping = Pick<InstanceConfig, 'keeps' | 'stores' | 'journalIncarnation'>;

/** The instance, as what moves sees it. */
interface Owner<Request> {
  readonly push: Push<Request>;
  readonly spares: CanSpare;
  /** Blocks have contents: effects say what is to be moved. */
  readonly contents: boolean;
  readonly nowUs: () => number;
  readonly cost: Pick<StepPredictor, 'predictUs'>;
  readonly batcher: Pick<Batcher, 'arrived' | 'recompute'>;
  /** Undefined: nobody starts before its prefix is here. */
  readonly start: EarlyStart | undefined;
  readonly readUs?: InstanceConfig['ssdReadUs'];
}

export class PrefixMoves<Request, S extends RunningRequest> {
  readonly loads: PrefixLoads<S>;
  readonly sends: PrefixSends;
  readonly offers: PrefixOffers;
  /** Undefined: it is no store. */
  readonly takes: PrefixStore | undefined;
  readonly #push: Push<Request>;
  readonly #contents: boolean;
  readonly #nowUs: () => number;
  readonly #cache: BlockCache;
  readonly #stagings: PrefixStagings;
  /** What is being read of SSD, by request. */
  readonly #ssdReads = new Map<RequestId, readonly SsdBlock[]>();

  constructor(
    cache: BlockCache,
    { push, spares, contents, nowUs, cost, batcher, start, readUs }: Owner<Request>,
    config: Keeping = {},
  ) {
    this.#push = push;
    this.#contents = contents;
    this.#cache = cache;
    this.sends = new PrefixSends(cache, { push, spares, contents });
    this.#nowUs = nowUs;
    this.offers = new PrefixOffers({ push, cost, blockTokens: cache.blockTokens, sends: this.sends });
    this.offers.stores = config.stores ?? [];
    this.#stagings = new PrefixStagings(cache, {
      push,
      spares,
      send: (to, id, order) => void this.sends.send(to, id, order),
    });
    this.loads = new PrefixLoads(cache, {
      ask: (served, part, landing) => this.#ask(served, part, landing),
      stop: (served, part) => this.#stop(served, part),
      spares,
      batcher,
      start,
      readUs,
    });
    if (config.keeps !== true) return;
    this.takes = new PrefixStore(cache, {
      ask: (name, chain, part, landing) => this.#fetch(name, chain, part, landing),
      stop: (name, source) => this.#unwant(name, source),
      spares,
      incarnation: config.journalIncarnation ?? 0,
    });
  }

  /** SSD may have more of its prompt, and another instance has, as far as is known, where `prefix` says so. */
  want(served: S, prefix: PrefixFetch | undefined): void {
    if (prefix !== undefined) this.loads.want(served, [{ source: prefix.from, to: prefix.blocks }], prefix);
    else if (this.#cache.lower?.ssd !== undefined)
      this.loads.want(served, [], { patienceUs: Number.POSITIVE_INFINITY });
  }

  /** The driver has done something; returns why that changed nothing, where it did not. */
  tell(event: MoveEvent): string | undefined {
    switch (event.kind) {
      case 'loaded':
        if (event.source === 'ssd' && this.#stagings.read(event.id, event.to, event.bad)) return undefined;
        if (event.source === 'ssd') this.#readOfSsd(event.id, event.bad);
        return this.#arrive(event.id, event.source, event.to);
      case 'arriving':
        return this.loads.announce(event.id, event.source, event.to)
          ? undefined
          : `request ${event.id} does not wait for it`;
      case 'prefixSent':
        this.offers.left(this.#nowUs(), event.to, event.id, this.sends.blocksOf(event.to, event.id));
        return this.sends.sent(event.to, event.id) ? undefined : `nothing is being sent for request ${event.id}`;
      case 'stores':
        this.offers.stores = event.stores;
        return undefined;
      case 'ssdWritten':
        this.#cache.lower?.written(event.blocks, event.failed);
        return undefined;
    }
  }

  /** What host memory had no room for since the last call is to be written. */
  writeSsd(): void {
    const writes = this.#cache.lower?.takeSsdWrites();
    if (writes === undefined || writes.count === 0) return;
    this.#push({ kind: 'writeSsd', blocks: writes.count, ...(writes.blocks && { what: writes.blocks }) });
  }

  #readOfSsd(id: RequestId, bad?: SlotId): void {
    const blocks = this.#ssdReads.get(id);
    this.#ssdReads.delete(id);
    if (blocks !== undefined) this.#cache.lower?.ssdReadEnded(blocks, bad);
  }

  /** Returns why the message changed nothing, where it did not. */
  hear(from: InstanceIndex, message: PrefixMessage): string | undefined {
    const { id } = message;
    switch (message.kind) {
      case 'fetch':
        if (this.#stagings.begin(from, id, message)) return undefined;
        if (!this.sends.send(from, id, message)) return `request ${id} is being served`;
        if (this.sends.blocksOf(from, id) > 0) this.offers.asked(this.#nowUs(), from, id);
        return undefined;
      case 'missing':
        return this.#arrive(id, from, 0);
      case 'unwanted':
        this.offers.left(this.#nowUs(), from, id, 0);
        if (this.#stagings.stop(from, id)) return undefined;
        return this.sends.stop(from, id) ? undefined : `nothing is being sent for request ${id}`;
      case 'offer':
        return this.takes === undefined ? 'it keeps nothing of others' : this.takes.offered(from, message.chain);
    }
  }

  /** Blocks before `to` are here. Returns why that changed nothing, where it did not. */
  #arrive(id: RequestId, source: LoadSource, to: number): string | undefined {
    if (this.loads.arrive(id, source, to)) return undefined;
    if (source !== 'ssd' && this.takes?.arrive(id, source, to) === true) return undefined;
    return `request ${id} does not wait for it`;
  }

  /** Begins with what has been waited for, and gives up what has been waited for too long. */
  advance(nowUs: number, waiting: readonly Sequence[]): void {
    this.loads.advance(nowUs, waiting);
    this.takes?.advance(nowUs);
  }

  /** Undefined: it is no store. */
  get kept(): StoreSnapshot | undefined {
    return (
      this.takes && {
        takenBlocks: this.takes.blocks,
        declinedOffers: this.takes.declined,
        sentBlocks: this.sends.blocks,
      }
    );
  }

  /** Prefixes that come or leave. */
  get moving(): number {
    return this.loads.size + this.sends.size + (this.takes?.size ?? 0);
  }

  get nextUs(): number {
    return Math.min(this.loads.nextUs, this.takes?.nextUs ?? Number.POSITIVE_INFINITY);
  }

  check(): void {
    this.loads.check();
    this.takes?.check();
  }

  #ask({ id, sequence }: S, { source, from, to }: LoadPart, landing: PrefixReceiveBuffer): void {
    const { lower } = this.#cache;
    if (source === 'ssd') {
      const read = lower?.readSsd(sequence.chain, from, to, landing) ?? { blocks: [], to };
      const { blocks } = read;
      this.#ssdReads.set(id, blocks);
      const pages = landing.inPool && this.#contents ? landing.pages(from, read.to) : undefined;
      const what = lower?.moves && { what: blocks, pages };
      this.#push({ kind: 'readSsd', id, blocks: blocks.length, to: read.to, ...what });
      if (landing.inPool) this.loads.announce(id, source, read.to);
      return;
    }
    this.#fetch(id, sequence.chain, { source, from, to }, landing);
  }

  #fetch(id: RequestId, { words }: BlockChain, { source, from, to }: PeerPart, landing: PrefixReceiveBuffer): void {
    const ahead = landing.inPool ? from : undefined;
    if (this.#contents) this.#push({ kind: 'expectPrefix', id, from: source, pages: landing.pages(from, to), ahead });
    const chain = { blocks: to, words: words.slice(0, to * digestWords) };
    this.#push({ kind: 'send', to: source, message: { kind: 'fetch', id, chain, from } });
  }

  #stop({ id }: S, { source }: LoadPart): void {
    if (source === 'ssd') {
      if (this.#cache.lower?.moves !== undefined) this.#push({ kind: 'stopRead', id });
      this.#readOfSsd(id);
      return;
    }
    this.#unwant(id, source);
  }

  #unwant(id: RequestId, source: InstanceIndex): void {
    if (this.#contents) this.#push({ kind: 'closePrefix', id });
    this.#push({ kind: 'send', to: source, message: { kind: 'unwanted', id } });
  }
}
