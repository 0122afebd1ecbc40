// The prefixes that come to an instance and leave it: what its peers and its driver tell it about them.
import type { BlockCache } from '../policy/blocks/block-cache.ts';
import type { SlotId } from '../policy/blocks/block-tier.ts';
import type { Landing, Spares } from '../policy/blocks/moving-prefix.ts';
import type { SsdBlock } from '../policy/blocks/tier-moves.ts';
import { digestWords } from '../util/blake2s.ts';
import type { Push } from './hand-offs.ts';
import type { InstanceEvent, InstanceIndex, PrefixFetch, PrefixMessage } from './messages.ts';
import type { RequestId } from './ports.ts';
import { type LoadPart, PrefixLoads } from './prefix-loads.ts';
import { PrefixSends } from './prefix-sends.ts';
import { PrefixStagings } from './prefix-stagings.ts';
import type { Served } from './work.ts';

type MoveEvent = Extract<InstanceEvent, { kind: 'loaded' | 'prefixSent' | 'ssdWritten' }>;

/** The instance, as what moves sees it. */
interface Owner<Request> {
  readonly push: Push<Request>;
  readonly spares: Spares;
  /** Blocks have contents: effects say what is to be moved. */
  readonly contents: boolean;
}

export class PrefixMoves<Request, S extends Served> {
  readonly loads: PrefixLoads<S>;
  readonly sends: PrefixSends;
  readonly #push: Push<Request>;
  readonly #contents: boolean;
  readonly #cache: BlockCache;
  readonly #stagings: PrefixStagings;
  /** What is being read of SSD, by request. */
  readonly #ssdReads = new Map<RequestId, readonly SsdBlock[]>();

  constructor(cache: BlockCache, { push, spares, contents }: Owner<Request>) {
    this.#push = push;
    this.#contents = contents;
    this.#cache = cache;
    this.sends = new PrefixSends(cache, { push, spares, contents });
    this.#stagings = new PrefixStagings(cache, {
      push,
      spares,
      send: (to, id, order) => void this.sends.send(to, id, order),
    });
    this.loads = new PrefixLoads(cache, {
      ask: (served, part, landing) => this.#ask(served, part, landing),
      stop: (served, part) => this.#stop(served, part),
      spares,
    });
  }

  /** SSD may have more of its prompt, and another instance has, as far as is known, where `prefix` says so. */
  want(served: S, prefix: PrefixFetch | undefined): void {
    if (prefix !== undefined) this.loads.want(served, [{ source: prefix.from, to: prefix.blocks }], prefix.patienceUs);
    else if (this.#cache.lower?.ssd !== undefined) this.loads.want(served, [], Number.POSITIVE_INFINITY);
  }

  /** The driver has done something; returns why that changed nothing, where it did not. */
  tell(event: MoveEvent): string | undefined {
    switch (event.kind) {
      case 'loaded':
        if (event.source === 'ssd' && this.#stagings.read(event.id, event.to, event.bad)) return undefined;
        if (event.source === 'ssd') this.#readOfSsd(event.id, event.bad);
        return this.loads.arrive(event.id, event.source, event.to)
          ? undefined
          : `request ${event.id} does not wait for it`;
      case 'prefixSent':
        return this.sends.sent(event.to, event.id) ? undefined : `nothing is being sent for request ${event.id}`;
      case 'ssdWritten':
        this.#cache.lower?.written(event.blocks, event.failed);
        return undefined;
    }
  }

  /** What host memory had no room for since the last call is to be written. */
  writeSsd(): void {
    const writes = this.#cache.lower?.takeWrites();
    if (writes === undefined || writes.count === 0) return;
    this.#push({ kind: 'writeSsd', blocks: writes.count, ...(writes.blocks && { what: writes.blocks }) });
  }

  #readOfSsd(id: RequestId, bad?: SlotId): void {
    const blocks = this.#ssdReads.get(id);
    this.#ssdReads.delete(id);
    if (blocks !== undefined) this.#cache.lower?.readOfSsd(blocks, bad);
  }

  /** Returns why the message changed nothing, where it did not. */
  hear(from: InstanceIndex, message: PrefixMessage): string | undefined {
    const { id } = message;
    switch (message.kind) {
      case 'fetch':
        if (this.#stagings.begin(from, id, message)) return undefined;
        return this.sends.send(from, id, message) ? undefined : `request ${id} is being served`;
      case 'missing':
        return this.loads.arrive(id, from, 0) ? undefined : `request ${id} does not wait for it`;
      case 'unwanted':
        if (this.#stagings.stop(from, id)) return undefined;
        return this.sends.stop(from, id) ? undefined : `nothing is being sent for request ${id}`;
    }
  }

  #ask({ id, sequence }: S, { source, from, to }: LoadPart, landing: Landing): void {
    const { lower } = this.#cache;
    if (source === 'ssd') {
      const read = lower?.readSsd(sequence.chain, from, to, landing) ?? { blocks: [], to };
      const { blocks } = read;
      this.#ssdReads.set(id, blocks);
      this.#push({ kind: 'readSsd', id, blocks: blocks.length, to: read.to, ...(lower?.moves && { what: blocks }) });
      return;
    }
    if (this.#contents) this.#push({ kind: 'expectPrefix', id, from: source, pages: landing.pages(from, to) });
    const chain = { blocks: to, words: sequence.chain.words.slice(0, to * digestWords) };
    this.#push({ kind: 'send', to: source, message: { kind: 'fetch', id, chain, from } });
  }

  #stop({ id }: S, { source }: LoadPart): void {
    if (source === 'ssd') {
      if (this.#cache.lower?.moves !== undefined) this.#push({ kind: 'stopRead', id });
      this.#readOfSsd(id);
      return;
    }
    if (this.#contents) this.#push({ kind: 'closePrefix', id });
    this.#push({ kind: 'send', to: source, message: { kind: 'unwanted', id } });
  }
}
