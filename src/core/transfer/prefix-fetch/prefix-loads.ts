// Prefixes that waiting requests load from other instances or from SSD.

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
import { AheadOfUse } from './ahead-of-use.ts';

/** A source that has the chain's blocks before `to`, as far as known. */
export interface PrefixHolder {
  readonly source: LoadSource;
  readonly to: number;
}

/** Blocks `from..to` of a chain, loaded from one source. */
export interface LoadPart extends PrefixHolder {
  readonly from: number;
}

/** Blocks that a step waits for. */
export interface PendingBlocks {
  /** Position of the request in the step's plan. */
  readonly place: number;
  readonly id: RequestId;
  /** The sources of the blocks; undefined: the blocks will not arrive. */
  readonly sources: readonly LoadSource[] | undefined;
  /** Maximum wait. */
  readonly withinUs: number;
}

interface Part extends LoadPart {
  /** The source has begun to send, and has the blocks before this one. */
  announcedTo: number | undefined;
  /** Blocks before this one have arrived; undefined until the source has finished. */
  arrivedTo: number | undefined;
}

interface Load<S> {
  readonly running: S;
  /** Receive buffer of the blocks. */
  readonly buffer: PrefixReceiveBuffer;
  /** Number of leading blocks that are cached. */
  cachedTo: number;
  /** In the order of their blocks. */
  parts: Part[];
  /** Blocks that have not arrived by then are computed. */
  readonly untilUs: number;
  /** Predicted arrival of the last block. */
  readonly arrivesUs: number;
  /** The receive buffer, if it is in the pool: the request may start ahead of use. */
  readonly inPool: PoolReceiveBuffer | undefined;
  /** The request has started, and the blocks will not arrive or are no longer needed. */
  isAbandoned: boolean;
}

/** Maximum and predicted time of a load. */
type Patience = Pick<PrefixFetch, 'patienceUs' | 'transferUs'>;

/** Fetches blocks from their sources. */
interface PrefixSources<S> {
  /** Answered by `arrive`. */
  fetch(running: S, part: LoadPart, buffer: PrefixReceiveBuffer): void;
  cancel(running: S, part: LoadPart): void;
  /** Predicted time to read so many blocks of SSD. */
  ssdReadUs(blocks: number): number;
}

/** A waiting request, and the sources that have more of its prompt. */
interface PendingLoad<S> {
  readonly running: S;
  readonly holders: readonly PrefixHolder[];
  readonly patience: Patience;
}

/** Number of first waiting requests that may load: blocks that arrive too early would be evicted again. */
const loadingMax = 4;

/**
 * Blocks that the first waiting requests lack are loaded while others compute; a request is not admitted while it loads. Loaded blocks are
 * cached and reported like computed ones, and the request finds them in the cache when it starts. A block is loaded for one request at a time.
 * Ahead of use, a request is admitted while its blocks arrive in the pool: its step waits for them, and they are cached when it has run. If
 * they do not arrive, the request computes them.
 */
export class PrefixLoads<S extends RunningRequest> {
  readonly #cache: BlockCache;
  readonly #context: InstanceContext<Identified, S>;
  readonly #sources: PrefixSources<S>;
  /** Undefined: requests start only when all blocks have arrived. */
  readonly #aheadOfUse: AheadOfUse | undefined;
  readonly #pending = new Map<Sequence, PendingLoad<S>>();
  readonly #loads = new Map<RequestId, Load<S>>();
  /** Blocks fetched from other instances. */
  fetchedBlocks = 0;

  /** @param aheadOfUse requests may start before all blocks have arrived */
  constructor(context: InstanceContext<Identified, S>, sources: PrefixSources<S>, aheadOfUse: boolean) {
    this.#cache = context.kvCache;
    this.#context = context;
    this.#sources = sources;
    this.#aheadOfUse = aheadOfUse ? new AheadOfUse(context) : undefined;
  }

  /** Requests that load. */
  get size(): number {
    return this.#loads.size;
  }

  /** Registers a waiting request: near its turn it loads the blocks of the holders that are not cached here. @param holders in the order of their ends @param patience from the start of the load on */
  register(running: S, holders: readonly PrefixHolder[], patience: Patience): void {
    this.#pending.set(running.sequence, { running, holders, patience });
  }

  /** When the patience for a load ends. */
  get nextUs(): number {
    let nextUs = Number.POSITIVE_INFINITY;
    if (this.#loads.size > 0)
      for (const { untilUs, isAbandoned } of this.#loads.values()) if (!isAbandoned) nextUs = Math.min(nextUs, untilUs);
    return nextUs;
  }

  /** Cancels loads that take too long, and starts those of the first waiting requests, as far as memory allows. */
  advance(nowUs: number, waiting: readonly Sequence[]): void {
    if (this.#pending.size + this.#loads.size === 0) return;
    for (const load of [...this.#loads.values()]) this.#advanceLoad(nowUs, load);
    if (this.#pending.size === 0) return;
    for (let i = 0; i < waiting.length && i < loadingMax; i++) {
      const pending = this.#pending.get(waiting[i]);
      if (pending !== undefined) this.#begin(nowUs, pending, i === 0);
    }
  }

  #advanceLoad(nowUs: number, load: Load<S>): void {
    const { running, untilUs } = load;
    const { sequence } = running;
    if (hasStarted(load)) {
      load.isAbandoned ||= untilUs <= nowUs;
      // The result of a running step shows whether the blocks arrived.
      if (sequence.planned === 0) this.#resolve(load);
    } else if (load.isAbandoned || untilUs <= nowUs) this.#abandon(load);
    else this.#decideStart(nowUs, load);
  }

  /** Decides whether the request may start now. */
  #decideStart(nowUs: number, load: Load<S>): void {
    const { running, inPool, arrivesUs } = load;
    const { sequence } = running;
    const blocks = announced(load);
    const leftUs = Math.max(0, arrivesUs - nowUs);
    const may =
      inPool !== undefined && blocks !== undefined && this.#aheadOfUse?.mayStart(sequence, blocks, leftUs) === true;
    sequence.loading = !may;
    sequence.arriving = may ? { blocks, arrivalUs: leftUs, share: (table) => inPool.share(blocks, table) } : undefined;
  }

  #begin(nowUs: number, { running, holders, patience }: PendingLoad<S>, isFirst: boolean): void {
    const { sequence } = running;
    const { chain } = sequence;
    const blocksMax = this.#blocksMax(sequence);
    const own = localPrefix(this.#cache, chain, blocksMax);
    const onSsd = this.#cache.lower?.inHostOrOnSsd(chain, own, blocksMax) ?? own;
    const parts = partsBeyond(own, [{ source: 'ssd', to: onSsd }, ...holders], blocksMax);
    sequence.loading = parts.length > 0 && this.#isLoading(chain.words, own);
    if (sequence.loading) return;
    if (parts.length === 0) {
      this.#pending.delete(sequence);
      return;
    }
    const end = parts[parts.length - 1].to;
    const isAheadOfUse = this.#aheadOfUse !== undefined && (isFirst || this.#cache.lower === undefined);
    const inPool = isAheadOfUse
      ? receiveInPool(this.#cache, chain, { local: own, onSsd, to: end }, this.#context.scheduler)
      : undefined;
    const buffer = inPool ?? receivePrefix(this.#cache, chain, own, end, this.#context.scheduler);
    if (buffer === undefined) return;
    this.#pending.delete(sequence);
    const { patienceUs, transferUs = 0 } = patience;
    const times = { untilUs: nowUs + patienceUs, arrivesUs: nowUs + Math.max(transferUs, this.#readUs(parts)) };
    const load = { running, buffer, cachedTo: own, parts, ...times, inPool, isAbandoned: false };
    this.#loads.set(running.id, load);
    for (const part of parts) this.#sources.fetch(running, part, buffer);
    // SSD reads begin without an `arriving` event.
    this.#decideStart(nowUs, load);
  }

  #readUs([first]: readonly Part[]): number {
    return first.source === 'ssd' ? this.#sources.ssdReadUs(first.to - first.from) : 0;
  }

  #isLoading(words: Uint32Array, block: number): boolean {
    const at = block * digestWords;
    for (const { running, cachedTo, parts } of this.#loads.values()) {
      const other = running.sequence.chain.words;
      if (block < cachedTo || block >= parts[parts.length - 1].to) continue;
      let same = true;
      for (let i = 0; i < digestWords; i++) same &&= other[at + i] === words[at + i];
      if (same) return true;
    }
    return false;
  }

  /** A source has begun to send the chain's blocks before `to`. False when it was not expected. */
  announce(id: RequestId, source: LoadSource, to: number): boolean {
    const part = this.#expected(this.#loads.get(id), source);
    if (part !== undefined) part.announcedTo = to;
    return part !== undefined;
  }

  /** A source has finished: its part of the chain has arrived up to `to`. False when it was not expected. */
  arrive(id: RequestId, source: LoadSource, to: number): boolean {
    const load = this.#loads.get(id);
    const part = this.#expected(load, source);
    if (load === undefined || part === undefined) return false;
    part.arrivedTo = Math.max(part.from, Math.min(to, part.to));
    if (!hasStarted(load)) this.#cacheArrived(load);
    else if (part.arrivedTo < Math.min(part.to, load.running.sequence.arriving?.blocks ?? 0)) load.isAbandoned = true;
    return true;
  }

  #expected(load: Load<S> | undefined, source: LoadSource): Part | undefined {
    return load?.parts.find((part) => part.source === source && part.arrivedTo === undefined);
  }

  /** Caches arrived blocks up to the first gap. Blocks behind a gap are not used. */
  #cacheArrived(load: Load<S>): void {
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
    if (to <= load.cachedTo) return;
    load.buffer.fill(load.cachedTo, to, source === 'ssd' ? source : 'instance');
    if (source !== 'ssd') this.fetchedBlocks += to - load.cachedTo;
    load.cachedTo = to;
  }

  /** Blocks that the starting step waits for. */
  pending(nowUs: number, requests: readonly S[]): readonly PendingBlocks[] {
    if (this.#loads.size === 0 || this.#aheadOfUse === undefined) return nothing;
    return requests.flatMap(({ id, sequence: { arriving } }, place): readonly PendingBlocks[] => {
      const load = this.#loads.get(id);
      if (arriving === undefined) return [];
      if (load === undefined || load.isAbandoned) return [{ place, id, sources: undefined, withinUs: 0 }];
      const missing = load.parts.filter(({ from, arrivedTo }) => from < arriving.blocks && arrivedTo === undefined);
      const [arrivesUs, patienceUs] = [load.arrivesUs, load.untilUs].map((us) => Math.max(0, us - nowUs));
      const withinUs = this.#aheadOfUse?.waitUsMax(requests.length, arrivesUs, patienceUs) ?? patienceUs;
      return [{ place, id, sources: missing.map(({ source }) => source), withinUs }];
    });
  }

  /** A step ran the request ahead of use. @param arrived all of its blocks arrived */
  stepRan(running: S, arrived: boolean): void {
    const load = this.#loads.get(running.id);
    if (load === undefined)
      throw new Error(`Prefix loads broken: request ${running.id} has started ahead of blocks that no source sends`);
    if (arrived) this.#complete(load);
    else this.#abandon(load);
  }

  /** Between two steps: the blocks have arrived, or never will. */
  #resolve(load: Load<S>): void {
    const { blocks = 0 } = load.running.sequence.arriving ?? {};
    const isComplete = load.parts.every(
      ({ from, to, arrivedTo = 0 }) => Math.min(to, blocks) <= Math.max(from, arrivedTo),
    );
    if (load.isAbandoned) this.#abandon(load);
    else if (isComplete) this.#complete(load);
  }

  /** All blocks that the request started ahead of have arrived. */
  #complete(load: Load<S>): void {
    const { running, parts, cachedTo } = load;
    const blocks = running.sequence.arriving?.blocks ?? 0;
    for (const { source, to } of parts) this.#fill(load, source, Math.min(to, blocks));
    this.#context.scheduler.arrived(running.sequence, cachedTo);
    this.#stop(load);
    this.#close(load);
  }

  /** The missing blocks are computed instead. */
  #abandon(load: Load<S>): void {
    this.#stop(load);
    const started = hasStarted(load);
    this.#close(load);
    if (started) this.#context.scheduler.recompute(load.running.sequence);
  }

  /** The request starts: with the blocks that have arrived, or ahead of use. */
  started(running: S): void {
    if (running.sequence.arriving === undefined) this.cancel(running);
  }

  /** The load ends: the request starts with the blocks that have arrived, or has left. */
  cancel({ id, sequence }: S): void {
    this.#pending.delete(sequence);
    const load = this.#loads.get(id);
    if (load === undefined) return;
    this.#stop(load);
    // A step reads the blocks: they stay until it has ended.
    if (hasStarted(load) && sequence.planned > 0) load.isAbandoned = true;
    else this.#close(load);
  }

  /** Cancels the parts that have not arrived. */
  #stop(load: Load<S>): void {
    for (const part of load.parts) if (part.arrivedTo === undefined) this.#sources.cancel(load.running, part);
    for (const part of load.parts) part.arrivedTo ??= 0;
  }

  #close({ running, buffer }: Load<S>): void {
    this.#loads.delete(running.id);
    running.sequence.loading = false;
    running.sequence.arriving = undefined;
    buffer.close();
    this.#releaseFollowers();
  }

  /** A request that waits for another's load may no longer be among the first, which `advance` visits. */
  #releaseFollowers(): void {
    for (const [sequence] of this.#pending) {
      if (!sequence.loading) continue;
      const { chain } = sequence;
      const blocksMax = this.#blocksMax(sequence);
      const own = localPrefix(this.#cache, chain, blocksMax);
      sequence.loading = own < blocksMax && this.#isLoading(chain.words, own);
    }
  }

  /** Blocks of the prompt that may come from a cache. */
  #blocksMax(sequence: Sequence): number {
    return Math.min(sequence.chain.blocks, sequence.reusableBlocks(this.#cache.blockTokens));
  }

  /**
   * Throws unless every load has a buffer for its blocks, and a request that waits for them or has started ahead of use,
   * and no request waits for a load that has ended.
   */
  check(): void {
    for (const load of this.#loads.values()) {
      const { running, buffer, cachedTo, parts } = load;
      const to = parts.at(-1)?.to ?? 0;
      const { state, loading, arriving } = running.sequence;
      const waits = state === 'waiting' && loading !== (arriving !== undefined) && cachedTo < to;
      if (!(waits || hasStarted(load)) || buffer.blocks !== to)
        throw new Error(
          `Prefix loads broken: request ${running.id} has ${cachedTo} of ${to} blocks, and a buffer up to ${buffer.blocks}`,
        );
    }
    for (const [{ state, arrival, loading }] of this.#pending) {
      if (state !== 'waiting') throw new Error(`Prefix loads broken: arrival ${arrival} loads blocks and is ${state}`);
      if (loading && this.#loads.size === 0)
        throw new Error(
          `Prefix loads broken: arrival ${arrival} waits for the load of another request, and none loads`,
        );
    }
  }
}

const nothing: readonly PendingBlocks[] = [];

/** The request has started ahead of use. */
function hasStarted<S extends RunningRequest>({ running: { sequence } }: Load<S>): boolean {
  return sequence.state === 'running' && sequence.arriving !== undefined;
}

/** End of the blocks that all sources have begun to send; undefined: a source has not begun, or there are none. */
function announced<S>({ cachedTo, parts }: Load<S>): number | undefined {
  let end = cachedTo;
  for (const { to, announcedTo } of parts) {
    if (announcedTo === undefined) return undefined;
    end = Math.max(end, Math.min(to, announcedTo));
    if (announcedTo < to) break;
  }
  return end > cachedTo ? end : undefined;
}

/** The part of each holder beyond those before it. */
function partsBeyond(own: number, holders: readonly PrefixHolder[], blocksMax: number): Part[] {
  const parts: Part[] = [];
  let from = own;
  for (const holder of holders) {
    const to = Math.min(holder.to, blocksMax);
    if (to <= from) continue;
    parts.push({ source: holder.source, from, to, announcedTo: undefined, arrivedTo: undefined });
    from = to;
  }
  return parts;
}
