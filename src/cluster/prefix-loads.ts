// Prefixes on their way to an instance: which blocks of whose prompts are expected, and from where.
import type { Sequence } from '../policy/batching/sequence.ts';
import type { BlockCache } from '../policy/blocks/block-cache.ts';
import { type Landing, landPrefix, prefixHere, type Spares } from '../policy/blocks/moving-prefix.ts';
import { digestWords } from '../util/blake2s.ts';
import type { InstanceIndex } from './messages.ts';
import type { RequestId } from './ports.ts';
import type { Served } from './work.ts';

/** Where blocks are that are not in the instance's own memory. */
export type LoadSource = InstanceIndex | 'ssd';

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
  /** Room for what comes. */
  readonly landing: Landing;
  /** Blocks that are here. */
  here: number;
  /** In the order of their blocks. */
  parts: Part[];
  /** What has not come by then is computed. */
  readonly untilUs: number;
}

/** The instance, as its loads see it. */
interface Owner<S> {
  /** Get it: it is answered by `arrive`. */
  readonly ask: (served: S, part: LoadPart, landing: Landing) => void;
  /** It is not wanted any more. */
  readonly stop: (served: S, part: LoadPart) => void;
  readonly spares: Spares;
}

/** A request that waits, and who has more of its prompt. */
interface Wish<S> {
  readonly served: S;
  readonly offers: readonly PrefixOffer[];
  readonly patienceUs: number;
}

/** Of those who wait so many may load: what came long before its turn would be evicted again. */
const ahead = 4;

/**
 * What the first of those who wait lack is asked for while others compute; a request is not let in while it loads. What has come becomes cache
 * like any other, told in the journal: when the request starts it finds it there. What is under way already for one is not asked for by another.
 */
export class PrefixLoads<S extends Served> {
  readonly #cache: BlockCache;
  readonly #owner: Owner<S>;
  readonly #wishes = new Map<Sequence, Wish<S>>();
  readonly #loads = new Map<RequestId, Load<S>>();

  constructor(cache: BlockCache, owner: Owner<S>) {
    this.#cache = cache;
    this.#owner = owner;
  }

  /** Requests whose blocks are under way. */
  get size(): number {
    return this.#loads.size;
  }

  /** When it is near its turn, the request is to have what the offers, in the order of their ends, have beyond what is here. @param patienceUs from when it is asked for */
  want(served: S, offers: readonly PrefixOffer[], patienceUs: number): void {
    this.#wishes.set(served.sequence, { served, offers, patienceUs });
  }

  /** When patience ends for something that is under way. */
  get nextUs(): number {
    let nextUs = Number.POSITIVE_INFINITY;
    if (this.#loads.size > 0) for (const { untilUs } of this.#loads.values()) nextUs = Math.min(nextUs, untilUs);
    return nextUs;
  }

  /** Gives up what takes too long, and asks for what the first of those who wait lack, as far as there is room. */
  advance(nowUs: number, waiting: readonly Sequence[]): void {
    if (this.#wishes.size + this.#loads.size === 0) return;
    if (this.nextUs <= nowUs)
      for (const { served, untilUs } of [...this.#loads.values()]) if (untilUs <= nowUs) this.drop(served);
    if (this.#wishes.size === 0) return;
    for (let i = 0; i < waiting.length && i < ahead; i++) {
      const wish = this.#wishes.get(waiting[i]);
      if (wish !== undefined) this.#begin(nowUs, wish);
    }
  }

  #begin(nowUs: number, { served, offers, patienceUs }: Wish<S>): void {
    const { sequence } = served;
    const { chain } = sequence;
    const blocksMax = Math.min(chain.blocks, sequence.reusableBlocks(this.#cache.blockTokens));
    const own = prefixHere(this.#cache, chain, blocksMax);
    const onSsd = this.#cache.lower?.inHostOrOnSsd(chain, own, blocksMax) ?? own;
    const parts = partsBeyond(own, [{ source: 'ssd', to: onSsd }, ...offers], blocksMax);
    sequence.loading = parts.length > 0 && this.#isUnderWay(chain.words, own);
    if (sequence.loading) return;
    if (parts.length === 0) {
      this.#wishes.delete(sequence);
      return;
    }
    const landing = landPrefix(this.#cache, chain, own, parts[parts.length - 1].to, this.#owner.spares);
    if (landing === undefined) return;
    this.#wishes.delete(sequence);
    this.#loads.set(served.id, { served, landing, here: own, parts, untilUs: nowUs + patienceUs });
    sequence.loading = true;
    for (const part of parts) this.#owner.ask(served, part, landing);
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
    const { landing, parts } = load;
    while (parts.length > 0 && parts[0].arrivedTo !== undefined) {
      const { source, to, arrivedTo } = parts[0];
      parts.shift();
      if (arrivedTo > load.here) {
        landing.fill(load.here, arrivedTo, source === 'ssd' ? source : 'instance');
        load.here = arrivedTo;
      }
      if (arrivedTo < to) this.#stop(load);
    }
    if (parts.length > 0) return;
    this.#close(load);
  }

  /** The request starts with what is here, or is gone. */
  drop({ id, sequence }: S): void {
    this.#wishes.delete(sequence);
    const load = this.#loads.get(id);
    if (load === undefined) return;
    this.#stop(load);
    this.#close(load);
  }

  #stop(load: Load<S>): void {
    for (const part of load.parts) if (part.arrivedTo === undefined) this.#owner.stop(load.served, part);
    load.parts = [];
  }

  #close({ served, landing }: Load<S>): void {
    this.#loads.delete(served.id);
    served.sequence.loading = false;
    landing.close();
  }

  /** Throws unless every load holds room for what it expects, for a request that waits. */
  check(): void {
    for (const { served, landing, here, parts } of this.#loads.values()) {
      const to = parts.at(-1)?.to ?? 0;
      const { state, loading } = served.sequence;
      if (state !== 'waiting' || !loading || landing.blocks !== to || here >= to)
        throw new Error(
          `Prefix loads broken: request ${served.id} has ${here} of ${to} blocks, room for ${landing.blocks}`,
        );
    }
    for (const [{ state, arrival }] of this.#wishes)
      if (state !== 'waiting') throw new Error(`Prefix loads broken: arrival ${arrival} wants blocks and is ${state}`);
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
