// Prefixes on their way to an instance: which blocks of whose prompts are expected, and from where.

import { digestWords } from '../../../util/blake2s.ts';
import type { BlockCache } from '../../kvcache/block-cache.ts';
import {
  localPrefix,
  type PoolReceiveBuffer,
  type PrefixReceiveBuffer,
  receiveInPool,
  receivePrefix,
} from '../../kvcache/prefix-transfer.ts';
import type { LoadSource, PrefixFetch } from '../../protocol/events.ts';
import type { RequestId } from '../../protocol/ids.ts';
import type { Sequence } from '../../scheduler/batching/sequence.ts';
import type { Identified, InstanceContext } from '../../scheduler/component.ts';
import type { RunningRequest } from '../../scheduler/executor/executor.ts';
import { EarlyStart } from './early-start.ts';

/** A source is said to have the chain's blocks before `to`. */
export interface PrefixOffer {
  readonly source: LoadSource;
  readonly to: number;
}

/** Blocks `from..to` of a chain, expected from one place. */
export interface LoadPart extends PrefixOffer {
  readonly from: number;
}

/** What a step has still to wait for. */
export interface AwaitedBlocks {
  /** In the step's plan. */
  readonly place: number;
  readonly id: RequestId;
  /** Where blocks come from; undefined: they do not. */
  readonly sources: readonly LoadSource[] | undefined;
  readonly withinUs: number;
}

interface Part extends LoadPart {
  /** The source has begun, and has the blocks before this one. */
  announcedTo: number | undefined;
  /** Blocks before this one are here; undefined until the source has done its part. */
  arrivedTo: number | undefined;
}

interface Load<S> {
  readonly served: S;
  /** Room for what comes. */
  readonly landing: PrefixReceiveBuffer;
  /** Blocks that are here. */
  here: number;
  /** In the order of their blocks. */
  parts: Part[];
  /** What has not come by then is computed. */
  readonly untilUs: number;
  /** When all is predicted to be here. */
  readonly comesUs: number;
  /** Its request may start before all is here. */
  readonly early: PoolReceiveBuffer | undefined;
  /** Its request has started, and it will not come, or nobody wants it any more. */
  vain: boolean;
}

/** How long what is asked for takes, and may take. */
type Patience = Pick<PrefixFetch, 'patienceUs' | 'transferUs'>;

/** Fetches blocks from where they are. */
interface PrefixSources<S> {
  /** Answered by `arrive`. */
  fetch(running: S, part: LoadPart, buffer: PrefixReceiveBuffer): void;
  cancel(running: S, part: LoadPart): void;
  /** Predicted time to read so many blocks of SSD. */
  ssdReadUs(blocks: number): number;
}

/** A request that waits, and who has more of its prompt. */
interface Wish<S> {
  readonly served: S;
  readonly offers: readonly PrefixOffer[];
  readonly patience: Patience;
}

/** Of those who wait so many may load: what came long before its turn would be evicted again. */
const ahead = 4;

/**
 * What the first of those who wait lack is asked for while others compute; a request is not let in while it loads. What has come becomes cache
 * like any other, told in the journal: when the request starts it finds it there. What is under way already for one is not asked for by another.
 * With `start` it may be let in while its blocks come to the pool: the step waits for them, and they are cache when it has run. If they do not
 * come, the request is computed without them.
 */
export class PrefixLoads<S extends RunningRequest> {
  readonly #cache: BlockCache;
  readonly #context: InstanceContext<Identified, S>;
  readonly #sources: PrefixSources<S>;
  /** Undefined: requests start only when all blocks are here. */
  readonly #start: EarlyStart | undefined;
  readonly #wishes = new Map<Sequence, Wish<S>>();
  readonly #loads = new Map<RequestId, Load<S>>();

  /** @param startsAhead requests may start before all blocks are here */
  constructor(context: InstanceContext<Identified, S>, sources: PrefixSources<S>, startsAhead: boolean) {
    this.#cache = context.kvCache;
    this.#context = context;
    this.#sources = sources;
    this.#start = startsAhead ? new EarlyStart(context) : undefined;
  }

  /** Requests whose blocks are under way. */
  get size(): number {
    return this.#loads.size;
  }

  /** When it is near its turn, the request is to have what the offers, in the order of their ends, have beyond what is here. @param patience from when it is asked for */
  want(served: S, offers: readonly PrefixOffer[], patience: Patience): void {
    this.#wishes.set(served.sequence, { served, offers, patience });
  }

  /** When patience ends for something that is under way. */
  get nextUs(): number {
    let nextUs = Number.POSITIVE_INFINITY;
    if (this.#loads.size > 0)
      for (const { untilUs, vain } of this.#loads.values()) if (!vain) nextUs = Math.min(nextUs, untilUs);
    return nextUs;
  }

  /** Gives up what takes too long, and asks for what the first of those who wait lack, as far as there is room. */
  advance(nowUs: number, waiting: readonly Sequence[]): void {
    if (this.#wishes.size + this.#loads.size === 0) return;
    for (const load of [...this.#loads.values()]) this.#look(nowUs, load);
    if (this.#wishes.size === 0) return;
    for (let i = 0; i < waiting.length && i < ahead; i++) {
      const wish = this.#wishes.get(waiting[i]);
      if (wish !== undefined) this.#begin(nowUs, wish, i === 0);
    }
  }

  #look(nowUs: number, load: Load<S>): void {
    const { served, untilUs } = load;
    const { sequence } = served;
    if (hasStarted(load)) {
      load.vain ||= untilUs <= nowUs;
      // The step that runs says what came of it.
      if (sequence.planned === 0) this.#resolve(load);
    } else if (load.vain || untilUs <= nowUs) this.#giveUp(load);
    else this.#offer(nowUs, load);
  }

  /** Its request may start now, or waits on. */
  #offer(nowUs: number, load: Load<S>): void {
    const { served, early, comesUs } = load;
    const { sequence } = served;
    const blocks = announced(load);
    const leftUs = Math.max(0, comesUs - nowUs);
    const may = early !== undefined && blocks !== undefined && this.#start?.may(sequence, blocks, leftUs) === true;
    sequence.loading = !may;
    sequence.arriving = may ? { blocks, arrivalUs: leftUs, share: (table) => early.share(blocks, table) } : undefined;
  }

  #begin(nowUs: number, { served, offers, patience }: Wish<S>, isFirst: boolean): void {
    const { sequence } = served;
    const { chain } = sequence;
    const blocksMax = Math.min(chain.blocks, sequence.reusableBlocks(this.#cache.blockTokens));
    const own = localPrefix(this.#cache, chain, blocksMax);
    const onSsd = this.#cache.lower?.inHostOrOnSsd(chain, own, blocksMax) ?? own;
    const parts = partsBeyond(own, [{ source: 'ssd', to: onSsd }, ...offers], blocksMax);
    sequence.loading = parts.length > 0 && this.#isUnderWay(chain.words, own);
    if (sequence.loading) return;
    if (parts.length === 0) {
      this.#wishes.delete(sequence);
      return;
    }
    const end = parts[parts.length - 1].to;
    const lands = this.#start !== undefined && (isFirst || this.#cache.lower === undefined);
    const early = lands
      ? receiveInPool(this.#cache, chain, { local: own, onSsd, to: end }, this.#context.scheduler)
      : undefined;
    const landing = early ?? receivePrefix(this.#cache, chain, own, end, this.#context.scheduler);
    if (landing === undefined) return;
    this.#wishes.delete(sequence);
    const { patienceUs, transferUs = 0 } = patience;
    const times = { untilUs: nowUs + patienceUs, comesUs: nowUs + Math.max(transferUs, this.#readUs(parts)) };
    const load = { served, landing, here: own, parts, ...times, early, vain: false };
    this.#loads.set(served.id, load);
    for (const part of parts) this.#sources.fetch(served, part, landing);
    // SSD has begun: nobody says so.
    this.#offer(nowUs, load);
  }

  #readUs([first]: readonly Part[]): number {
    return first.source === 'ssd' ? this.#sources.ssdReadUs(first.to - first.from) : 0;
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

  /** A source has begun: the chain's blocks before `to` come from it. False when it was not expected. */
  announce(id: RequestId, source: LoadSource, to: number): boolean {
    const part = this.#expected(this.#loads.get(id), source);
    if (part !== undefined) part.announcedTo = to;
    return part !== undefined;
  }

  /** A source has done its part: the chain's blocks before `to` are here, as far as those before its own are. False when it was not expected. */
  arrive(id: RequestId, source: LoadSource, to: number): boolean {
    const load = this.#loads.get(id);
    const part = this.#expected(load, source);
    if (load === undefined || part === undefined) return false;
    part.arrivedTo = Math.max(part.from, Math.min(to, part.to));
    if (!hasStarted(load)) this.#take(load);
    else if (part.arrivedTo < Math.min(part.to, load.served.sequence.arriving?.blocks ?? 0)) load.vain = true;
    return true;
  }

  #expected(load: Load<S> | undefined, source: LoadSource): Part | undefined {
    return load?.parts.find((part) => part.source === source && part.arrivedTo === undefined);
  }

  /** The source has gone: what it has not sent will not come. */
  lost(source: LoadSource): void {
    for (const { served } of [...this.#loads.values()]) this.arrive(served.id, source, 0);
  }

  /** Commits what is here without a gap. What lies behind a gap is of no use. */
  #take(load: Load<S>): void {
    const { parts } = load;
    while (parts.length > 0 && parts[0].arrivedTo !== undefined) {
      const { source, to, arrivedTo } = parts[0];
      parts.shift();
      this.#fill(load, source, arrivedTo);
      if (arrivedTo < to) this.#stop(load);
    }
    if (parts.length > 0) return;
    this.#close(load);
  }

  #fill(load: Load<S>, source: LoadSource, to: number): void {
    if (to <= load.here) return;
    load.landing.fill(load.here, to, source === 'ssd' ? source : 'instance');
    load.here = to;
  }

  /** What the requests of a step that begins have still to wait for. */
  awaited(nowUs: number, requests: readonly S[]): readonly AwaitedBlocks[] {
    if (this.#loads.size === 0 || this.#start === undefined) return nothing;
    return requests.flatMap(({ id, sequence: { arriving } }, place): readonly AwaitedBlocks[] => {
      const load = this.#loads.get(id);
      if (arriving === undefined) return [];
      if (load === undefined || load.vain) return [{ place, id, sources: undefined, withinUs: 0 }];
      const coming = load.parts.filter(({ from, arrivedTo }) => from < arriving.blocks && arrivedTo === undefined);
      const [comesUs, patienceUs] = [load.comesUs, load.untilUs].map((us) => Math.max(0, us - nowUs));
      const withinUs = this.#start?.withinUs(requests.length, comesUs, patienceUs) ?? patienceUs;
      return [{ place, id, sources: coming.map(({ source }) => source), withinUs }];
    });
  }

  /** A step has computed the request behind blocks that were on their way: `answered` when it has seen all of them. */
  ran(served: S, answered: boolean): void {
    const load = this.#loads.get(served.id);
    if (load === undefined) throw new Error(`Prefix loads broken: request ${served.id} runs behind blocks of nobody`);
    if (answered) this.#settle(load);
    else this.#giveUp(load);
  }

  /** Between steps. */
  #resolve(load: Load<S>): void {
    const { blocks = 0 } = load.served.sequence.arriving ?? {};
    const here = load.parts.every(({ from, to, arrivedTo = 0 }) => Math.min(to, blocks) <= Math.max(from, arrivedTo));
    if (load.vain) this.#giveUp(load);
    else if (here) this.#settle(load);
  }

  /** All that its request runs behind is here. */
  #settle(load: Load<S>): void {
    const { served, parts, here } = load;
    const blocks = served.sequence.arriving?.blocks ?? 0;
    for (const { source, to } of parts) this.#fill(load, source, Math.min(to, blocks));
    this.#context.scheduler.arrived(served.sequence, here);
    this.#stop(load);
    this.#close(load);
  }

  /** What has not come is computed. */
  #giveUp(load: Load<S>): void {
    this.#stop(load);
    const started = hasStarted(load);
    this.#close(load);
    if (started) this.#context.scheduler.recompute(load.served.sequence);
  }

  /** The request starts: with what is here, or behind what comes. */
  started(served: S): void {
    if (served.sequence.arriving === undefined) this.drop(served);
  }

  /** The request starts with what is here, or is gone. */
  drop({ id, sequence }: S): void {
    this.#wishes.delete(sequence);
    const load = this.#loads.get(id);
    if (load === undefined) return;
    this.#stop(load);
    // A step reads its blocks: they stay until it has ended.
    if (hasStarted(load) && sequence.planned > 0) load.vain = true;
    else this.#close(load);
  }

  /** What is still read or sent is not wanted any more. */
  #stop(load: Load<S>): void {
    for (const part of load.parts) if (part.arrivedTo === undefined) this.#sources.cancel(load.served, part);
    for (const part of load.parts) part.arrivedTo ??= 0;
  }

  #close({ served, landing }: Load<S>): void {
    this.#loads.delete(served.id);
    served.sequence.loading = false;
    served.sequence.arriving = undefined;
    landing.close();
  }

  /** Throws unless every load holds room for what it expects, for a request that waits or has started behind it. */
  check(): void {
    for (const load of this.#loads.values()) {
      const { served, landing, here, parts } = load;
      const to = parts.at(-1)?.to ?? 0;
      const { state, loading, arriving } = served.sequence;
      const waits = state === 'waiting' && loading !== (arriving !== undefined) && here < to;
      if (!(waits || hasStarted(load)) || landing.blocks !== to)
        throw new Error(
          `Prefix loads broken: request ${served.id} has ${here} of ${to} blocks, room for ${landing.blocks}`,
        );
    }
    for (const [{ state, arrival }] of this.#wishes)
      if (state !== 'waiting') throw new Error(`Prefix loads broken: arrival ${arrival} wants blocks and is ${state}`);
  }
}

const nothing: readonly AwaitedBlocks[] = [];

/** Its request runs behind what comes. */
function hasStarted<S extends RunningRequest>({ served: { sequence } }: Load<S>): boolean {
  return sequence.state === 'running' && sequence.arriving !== undefined;
}

/** Where what all sources have begun with ends; undefined: not all have, or there is nothing. */
function announced<S>({ here, parts }: Load<S>): number | undefined {
  let end = here;
  for (const { to, announcedTo } of parts) {
    if (announcedTo === undefined) return undefined;
    end = Math.max(end, Math.min(to, announcedTo));
    if (announcedTo < to) break;
  }
  return end > here ? end : undefined;
}

/** What each offer has beyond those before it. */
function partsBeyond(own: number, offers: readonly PrefixOffer[], blocksMax: number): Part[] {
  const parts: Part[] = [];
  let from = own;
  for (const offer of offers) {
    const to = Math.min(offer.to, blocksMax);
    if (to <= from) continue;
    parts.push({ source: offer.source, from, to, announcedTo: undefined, arrivedTo: undefined });
    from = to;
  }
  return parts;
}
