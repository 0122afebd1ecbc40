// Prefixes on their way to an instance: which blocks of whose prompts are expected, and from where.
import type { BlockCache } from '../policy/blocks/block-cache.ts';
import { BlockTable } from '../policy/blocks/block-table.ts';
import { digestWords } from '../util/blake2s.ts';
import type { InstanceIndex } from './messages.ts';
import type { RequestId } from './ports.ts';
import type { Served } from './work.ts';

/** Where blocks are that are not in the instance's own pool. */
export type LoadSource = InstanceIndex | 'host' | 'ssd';

/** A source is said to have the chain's blocks before `to`. */
export interface PrefixOffer {
  readonly source: LoadSource;
  readonly to: number;
}

/** Blocks `from..to` of a chain, expected from one place. */
export interface LoadPart extends PrefixOffer {
  readonly from: number;
}

interface Part extends LoadPart {
  /** Blocks before this one are here; undefined until the source has done its part. */
  arrivedTo: number | undefined;
}

interface Load<S> {
  readonly served: S;
  /** The prefix that is here, and empty blocks for the rest: pinned while it loads. */
  readonly table: BlockTable;
  /** Blocks that are here. */
  here: number;
  /** In the order of their blocks. */
  parts: Part[];
}

/** The instance, as its loads see it. */
interface Owner<S> {
  /** Get it: it is answered by `arrive`. */
  readonly ask: (served: S, part: LoadPart) => void;
  /** It is not wanted any more. */
  readonly stop: (served: S, part: LoadPart) => void;
  /** All that will come is here: the request takes its place among those who wait. */
  readonly start: (served: S) => void;
  /** Would those that run still get what they need, with so many pages fewer? */
  readonly spares: (pages: number) => boolean;
}

/**
 * A request that is loading waits outside the batcher, and others overtake it. What has come becomes cache like any other, told in the
 * journal; so when the request starts it finds it there, or computes it where it was evicted since.
 * What is under way already for one is not asked for by another: that one follows.
 */
export class PrefixLoads<S extends Served> {
  readonly #cache: BlockCache;
  readonly #owner: Owner<S>;
  readonly #loads = new Map<RequestId, Load<S>>();
  readonly #followers = new Map<RequestId, { readonly served: S; readonly offers: readonly PrefixOffer[] }>();

  constructor(cache: BlockCache, owner: Owner<S>) {
    this.#cache = cache;
    this.#owner = owner;
  }

  /** Requests that wait for blocks. */
  get size(): number {
    return this.#loads.size + this.#followers.size;
  }

  /** Asks for what the offers, in the order of their ends, have beyond what is here. False when there is nothing to wait for, or no room. */
  begin(served: S, offers: readonly PrefixOffer[]): boolean {
    const { chain, known } = served.sequence;
    const blocksMax = Math.min(chain.blocks, served.sequence.reusableBlocks(this.#cache.blockTokens));
    const own = this.#cache.match(chain, blocksMax, known);
    const parts = partsBeyond(own, offers, blocksMax);
    if (parts.length === 0) return false;
    if (this.#isUnderWay(chain.words, own)) {
      this.#followers.set(served.id, { served, offers });
      return true;
    }
    const to = parts[parts.length - 1].to;
    const tokens = to * this.#cache.blockTokens;
    if (!this.#owner.spares(this.#cache.pagesToRun(chain, own, { tokens, rows: tokens }))) return false;
    const table = new BlockTable(this.#cache.groups.length, to);
    this.#cache.share(chain, own, table);
    for (let block = own; block < to; block++) this.#cache.allocate(table);
    this.#cache.moving.add(table);
    this.#loads.set(served.id, { served, table, here: own, parts });
    for (const part of parts) this.#owner.ask(served, part);
    return true;
  }

  #isUnderWay(words: Uint32Array, block: number): boolean {
    const at = block * digestWords;
    for (const { served, here, parts } of this.#loads.values()) {
      const other = served.sequence.chain.words;
      if (block < here || block >= parts[parts.length - 1].to) continue;
      let same = true;
      for (let i = 0; i < digestWords; i++) same &&= other[at + i] === words[at + i];
      if (same) return true;
    }
    return false;
  }

  /** A source has done its part: the chain's blocks before `to` are here, as far as those before its own are. False when it was not expected. */
  arrive(id: RequestId, source: LoadSource, to: number): boolean {
    const load = this.#loads.get(id);
    const part = load?.parts.find((part) => part.source === source && part.arrivedTo === undefined);
    if (load === undefined || part === undefined) return false;
    part.arrivedTo = Math.max(part.from, Math.min(to, part.to));
    this.#take(load);
    return true;
  }

  /** The source has gone: what it has not sent will not come. */
  lost(source: LoadSource): void {
    for (const { served } of [...this.#loads.values()]) this.arrive(served.id, source, 0);
  }

  /** Commits what is here without a gap. What lies behind a gap is of no use. */
  #take(load: Load<S>): void {
    const { served, table, parts } = load;
    while (parts.length > 0 && parts[0].arrivedTo !== undefined) {
      const { to, arrivedTo } = parts[0];
      parts.shift();
      if (arrivedTo > load.here) {
        this.#cache.leaveBehind(table, arrivedTo * this.#cache.blockTokens);
        this.#cache.commit(served.sequence.chain, load.here, arrivedTo, table);
        load.here = arrivedTo;
      }
      if (arrivedTo < to) this.#stop(load);
    }
    if (parts.length > 0) return;
    this.#close(load);
    this.#owner.start(served);
    this.#wakeFollowers();
  }

  /** The request is wanted no more. False when it was not loading. */
  drop(id: RequestId): boolean {
    const load = this.#loads.get(id);
    if (load === undefined) return this.#followers.delete(id);
    this.#stop(load);
    this.#close(load);
    this.#wakeFollowers();
    return true;
  }

  #stop(load: Load<S>): void {
    for (const part of load.parts) if (part.arrivedTo === undefined) this.#owner.stop(load.served, part);
    load.parts = [];
  }

  #close({ served, table }: Load<S>): void {
    this.#loads.delete(served.id);
    this.#cache.moving.delete(table);
    this.#cache.release(table);
  }

  #wakeFollowers(): void {
    for (const [id, { served, offers }] of [...this.#followers]) {
      this.#followers.delete(id);
      if (!this.begin(served, offers)) this.#owner.start(served);
    }
  }

  /** Throws unless every load holds room for what it expects, and whoever follows has somebody to follow. */
  check(): void {
    for (const { served, table, here, parts } of this.#loads.values()) {
      const to = parts.at(-1)?.to ?? 0;
      if (served.sequence.state !== 'new' || table.length !== to || here >= to)
        throw new Error(`Prefix loads broken: request ${served.id} has ${here} of ${to} blocks, ${table.length} held`);
    }
    if (this.#followers.size > 0 && this.#loads.size === 0)
      throw new Error(`Prefix loads broken: ${this.#followers.size} requests follow nobody`);
  }
}

/** What each offer has beyond those before it. */
function partsBeyond(own: number, offers: readonly PrefixOffer[], blocksMax: number): Part[] {
  const parts: Part[] = [];
  let from = own;
  for (const offer of offers) {
    const to = Math.min(offer.to, blocksMax);
    if (to <= from) continue;
    parts.push({ source: offer.source, from, to, arrivedTo: undefined });
    from = to;
  }
  return parts;
}
