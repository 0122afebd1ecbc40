// Prefixes that waiting requests load: which blocks of their prompts arrive, and from where.

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

/** A source has the chain's blocks before `to`, as far as known. */
export interface PrefixOffer {
  readonly source: LoadSource;
  readonly to: number;
}

/** Blocks `from..to` of a chain, loaded from one source. */
export interface LoadPart extends PrefixOffer {
  readonly from: number;
}

/** Blocks that a step waits for. */
export interface AwaitedBlocks {
  /** Position of the request in the step's plan. */
  readonly place: number;
  readonly id: RequestId;
  /** Where the blocks come from; undefined: they do not arrive. */
  readonly sources: readonly LoadSource[] | undefined;
  readonly withinUs: number;
}

interface Part extends LoadPart {
  /** The source has begun to send, and has the blocks before this one. */
  announcedTo: number | undefined;
  /** Blocks before this one are here; undefined until the source has finished. */
  arrivedTo: number | undefined;
}

interface Load<S> {
  readonly running: S;
  /** Receive buffer of the blocks. */
  readonly buffer: PrefixReceiveBuffer;
  /** Blocks that are here. */
  here: number;
  /** In the order of their blocks. */
  parts: Part[];
  /** What has not arrived by then is computed. */
  readonly untilUs: number;
  /** When all blocks are predicted to be here. */
  readonly arrivesUs: number;
  /** Its request may start before all blocks are here. */
  readonly early: PoolReceiveBuffer | undefined;
  /** Its request has started, and the blocks will not arrive, or are not needed any more. */
  useless: boolean;
}

/** Predicted and maximum time of a load. */
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
  readonly offers: readonly PrefixOffer[];
  readonly patience: Patience;
}

/** Number of waiting requests that may load: blocks that arrive long before their turn would be evicted again. */
const ahead = 4;

/**
 * Blocks that the first waiting requests lack are loaded while others compute; a request is not admitted while it loads. Loaded blocks are
 * cached and reported like any others, and the request finds them when it starts. Blocks that one request loads are not loaded by another.
 * With an early start, a request is admitted while its blocks arrive in the pool: its step waits for them, and they are cached when it has
 * run. If they do not arrive, the request is computed without them.
 */
export class PrefixLoads<S extends RunningRequest> {
  readonly #cache: BlockCache;
  readonly #context: InstanceContext<Identified, S>;
  readonly #sources: PrefixSources<S>;
  /** Undefined: requests start only when all blocks are here. */
  readonly #start: EarlyStart | undefined;
  readonly #pending = new Map<Sequence, PendingLoad<S>>();
  readonly #loads = new Map<RequestId, Load<S>>();

  /** @param aheadOfUse requests may start before all blocks are here */
  constructor(context: InstanceContext<Identified, S>, sources: PrefixSources<S>, aheadOfUse: boolean) {
    this.#cache = context.kvCache;
    this.#context = context;
    this.#sources = sources;
    this.#start = aheadOfUse ? new EarlyStart(context) : undefined;
  }

  /** Requests that load. */
  get size(): number {
    return this.#loads.size;
  }

  /** Near its turn, the request loads what the offers have beyond the local prefix. @param offers in the order of their ends @param patience from the start of the load on */
  want(running: S, offers: readonly PrefixOffer[], patience: Patience): void {
    this.#pending.set(running.sequence, { running, offers, patience });
  }

  /** When the patience for a load ends. */
  get nextUs(): number {
    let nextUs = Number.POSITIVE_INFINITY;
    if (this.#loads.size > 0)
      for (const { untilUs, useless } of this.#loads.values()) if (!useless) nextUs = Math.min(nextUs, untilUs);
    return nextUs;
  }

  /** Gives up loads that take too long, and starts those of the first waiting requests, as far as there is room. */
  advance(nowUs: number, waiting: readonly Sequence[]): void {
    if (this.#pending.size + this.#loads.size === 0) return;
    for (const load of [...this.#loads.values()]) this.#look(nowUs, load);
    if (this.#pending.size === 0) return;
    for (let i = 0; i < waiting.length && i < ahead; i++) {
      const pending = this.#pending.get(waiting[i]);
      if (pending !== undefined) this.#begin(nowUs, pending, i === 0);
    }
  }

  #look(nowUs: number, load: Load<S>): void {
    const { running, untilUs } = load;
    const { sequence } = running;
    if (hasStarted(load)) {
      load.useless ||= untilUs <= nowUs;
      // The running step says whether the blocks arrived.
      if (sequence.planned === 0) this.#resolve(load);
    } else if (load.useless || untilUs <= nowUs) this.#giveUp(load);
    else this.#offer(nowUs, load);
  }

  /** Decides whether the request may start now. */
  #offer(nowUs: number, load: Load<S>): void {
    const { running, early, arrivesUs } = load;
    const { sequence } = running;
    const blocks = announced(load);
    const leftUs = Math.max(0, arrivesUs - nowUs);
    const may = early !== undefined && blocks !== undefined && this.#start?.may(sequence, blocks, leftUs) === true;
    sequence.loading = !may;
    sequence.arriving = may ? { blocks, arrivalUs: leftUs, share: (table) => early.share(blocks, table) } : undefined;
  }

  #begin(nowUs: number, { running, offers, patience }: PendingLoad<S>, isFirst: boolean): void {
    const { sequence } = running;
    const { chain } = sequence;
    const blocksMax = Math.min(chain.blocks, sequence.reusableBlocks(this.#cache.blockTokens));
    const own = localPrefix(this.#cache, chain, blocksMax);
    const onSsd = this.#cache.lower?.inHostOrOnSsd(chain, own, blocksMax) ?? own;
    const parts = partsBeyond(own, [{ source: 'ssd', to: onSsd }, ...offers], blocksMax);
    sequence.loading = parts.length > 0 && this.#isUnderWay(chain.words, own);
    if (sequence.loading) return;
    if (parts.length === 0) {
      this.#pending.delete(sequence);
      return;
    }
    const end = parts[parts.length - 1].to;
    const lands = this.#start !== undefined && (isFirst || this.#cache.lower === undefined);
    const early = lands
      ? receiveInPool(this.#cache, chain, { local: own, onSsd, to: end }, this.#context.scheduler)
      : undefined;
    const buffer = early ?? receivePrefix(this.#cache, chain, own, end, this.#context.scheduler);
    if (buffer === undefined) return;
    this.#pending.delete(sequence);
    const { patienceUs, transferUs = 0 } = patience;
    const times = { untilUs: nowUs + patienceUs, arrivesUs: nowUs + Math.max(transferUs, this.#readUs(parts)) };
    const load = { running, buffer, here: own, parts, ...times, early, useless: false };
    this.#loads.set(running.id, load);
    for (const part of parts) this.#sources.fetch(running, part, buffer);
    // Reads of SSD begin without an `arriving` event.
    this.#offer(nowUs, load);
  }

  #readUs([first]: readonly Part[]): number {
    return first.source === 'ssd' ? this.#sources.ssdReadUs(first.to - first.from) : 0;
  }

  #isUnderWay(words: Uint32Array, block: number): boolean {
    const at = block * digestWords;
    for (const { running, here, parts } of this.#loads.values()) {
      const other = running.sequence.chain.words;
      if (block < here || block >= parts[parts.length - 1].to) continue;
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

  /** A source has finished: the chain's blocks before `to` are here, if those before its part are. False when it was not expected. */
  arrive(id: RequestId, source: LoadSource, to: number): boolean {
    const load = this.#loads.get(id);
    const part = this.#expected(load, source);
    if (load === undefined || part === undefined) return false;
    part.arrivedTo = Math.max(part.from, Math.min(to, part.to));
    if (!hasStarted(load)) this.#take(load);
    else if (part.arrivedTo < Math.min(part.to, load.running.sequence.arriving?.blocks ?? 0)) load.useless = true;
    return true;
  }

  #expected(load: Load<S> | undefined, source: LoadSource): Part | undefined {
    return load?.parts.find((part) => part.source === source && part.arrivedTo === undefined);
  }

  /** The source has failed: what it has not sent will not arrive. */
  lost(source: LoadSource): void {
    for (const { running } of [...this.#loads.values()]) this.arrive(running.id, source, 0);
  }

  /** Commits blocks up to the first gap. Blocks behind a gap are useless. */
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
    load.buffer.fill(load.here, to, source === 'ssd' ? source : 'instance');
    load.here = to;
  }

  /** Blocks that the requests of a starting step wait for. */
  awaited(nowUs: number, requests: readonly S[]): readonly AwaitedBlocks[] {
    if (this.#loads.size === 0 || this.#start === undefined) return nothing;
    return requests.flatMap(({ id, sequence: { arriving } }, place): readonly AwaitedBlocks[] => {
      const load = this.#loads.get(id);
      if (arriving === undefined) return [];
      if (load === undefined || load.useless) return [{ place, id, sources: undefined, withinUs: 0 }];
      const coming = load.parts.filter(({ from, arrivedTo }) => from < arriving.blocks && arrivedTo === undefined);
      const [arrivesUs, patienceUs] = [load.arrivesUs, load.untilUs].map((us) => Math.max(0, us - nowUs));
      const withinUs = this.#start?.withinUs(requests.length, arrivesUs, patienceUs) ?? patienceUs;
      return [{ place, id, sources: coming.map(({ source }) => source), withinUs }];
    });
  }

  /** A step ran the request behind blocks on their way. @param answered all of them arrived */
  ran(running: S, answered: boolean): void {
    const load = this.#loads.get(running.id);
    if (load === undefined)
      throw new Error(`Prefix loads broken: request ${running.id} runs behind blocks that no source sends`);
    if (answered) this.#settle(load);
    else this.#giveUp(load);
  }

  /** Between two steps: the blocks have arrived, or never will. */
  #resolve(load: Load<S>): void {
    const { blocks = 0 } = load.running.sequence.arriving ?? {};
    const here = load.parts.every(({ from, to, arrivedTo = 0 }) => Math.min(to, blocks) <= Math.max(from, arrivedTo));
    if (load.useless) this.#giveUp(load);
    else if (here) this.#settle(load);
  }

  /** All blocks that the request runs behind are here. */
  #settle(load: Load<S>): void {
    const { running, parts, here } = load;
    const blocks = running.sequence.arriving?.blocks ?? 0;
    for (const { source, to } of parts) this.#fill(load, source, Math.min(to, blocks));
    this.#context.scheduler.arrived(running.sequence, here);
    this.#stop(load);
    this.#close(load);
  }

  /** The missing blocks are computed. */
  #giveUp(load: Load<S>): void {
    this.#stop(load);
    const started = hasStarted(load);
    this.#close(load);
    if (started) this.#context.scheduler.recompute(load.running.sequence);
  }

  /** The request starts: with the blocks that are here, or behind those on their way. */
  started(running: S): void {
    if (running.sequence.arriving === undefined) this.drop(running);
  }

  /** The load ends: the request starts with the blocks that are here, or has left. */
  drop({ id, sequence }: S): void {
    this.#pending.delete(sequence);
    const load = this.#loads.get(id);
    if (load === undefined) return;
    this.#stop(load);
    // A step reads the blocks: they stay until it has ended.
    if (hasStarted(load) && sequence.planned > 0) load.useless = true;
    else this.#close(load);
  }

  /** Cancels what is still read or sent. */
  #stop(load: Load<S>): void {
    for (const part of load.parts) if (part.arrivedTo === undefined) this.#sources.cancel(load.running, part);
    for (const part of load.parts) part.arrivedTo ??= 0;
  }

  #close({ running, buffer }: Load<S>): void {
    this.#loads.delete(running.id);
    running.sequence.loading = false;
    running.sequence.arriving = undefined;
    buffer.close();
  }

  /** Throws unless every load has a buffer for its blocks, and a request that waits or runs behind them. */
  check(): void {
    for (const load of this.#loads.values()) {
      const { running, buffer, here, parts } = load;
      const to = parts.at(-1)?.to ?? 0;
      const { state, loading, arriving } = running.sequence;
      const waits = state === 'waiting' && loading !== (arriving !== undefined) && here < to;
      if (!(waits || hasStarted(load)) || buffer.blocks !== to)
        throw new Error(
          `Prefix loads broken: request ${running.id} has ${here} of ${to} blocks, room for ${buffer.blocks}`,
        );
    }
    for (const [{ state, arrival }] of this.#pending)
      if (state !== 'waiting') throw new Error(`Prefix loads broken: arrival ${arrival} loads blocks and is ${state}`);
  }
}

const nothing: readonly AwaitedBlocks[] = [];

/** The request runs behind blocks on their way. */
function hasStarted<S extends RunningRequest>({ running: { sequence } }: Load<S>): boolean {
  return sequence.state === 'running' && sequence.arriving !== undefined;
}

/** End of the blocks that all sources have begun to send; undefined: a source has not begun, or there are none. */
function announced<S>({ here, parts }: Load<S>): number | undefined {
  let end = here;
  for (const { to, announcedTo } of parts) {
    if (announcedTo === undefined) return undefined;
    end = Math.max(end, Math.min(to, announcedTo));
    if (announcedTo < to) break;
  }
  return end > here ? end : undefined;
}

/** The part of each offer beyond those before it. */
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
