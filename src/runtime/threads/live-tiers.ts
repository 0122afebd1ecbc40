// Carries out the effects of an instance's cache tiers: copies blocks between the pool and host memory, and reads and writes SSD.
import type { InstanceEffect } from '../../core/protocol/effects.ts';
import type { InstanceEvent } from '../../core/protocol/events.ts';
import type { RequestId } from '../../core/protocol/ids.ts';
import type { StoreSnapshot, TiersSnapshot } from '../../core/protocol/ports.ts';
import { assertNever } from '../../util/assert-never.ts';
import type { StoreCounts } from '../../util/counts.ts';
import { nowUs } from './alarm.ts';

/** A block on SSD, and its consecutive pages of the pool, from `page` on. */
export interface StoredBlock {
  readonly slot: number;
  readonly page: number;
  /** Position in its chain, from 1. */
  readonly depth: number;
  /** (4 words) */
  readonly digest: Uint32Array;
}

/** Result of a job: its first `done` blocks have been transferred. */
export interface StoreResult {
  readonly job: number;
  readonly done: number;
}

/** Block storage on SSD. Reads precede writes; each kind runs in the order of submission. */
export interface TierStore {
  readonly counts: StoreCounts;
  /** Stops at the first corrupt block. @param job a unique number, from 1 */
  read(job: number, blocks: readonly StoredBlock[]): void;
  /**
   * Reads into `pages` (blocks, pages of a block): the first page of every block, then the second, and so on; the pages in `blocks` are ignored.
   * Returns the arrivals handle (`Step.arriving`), valid until the job ends. A block's last page arrives only if the block is intact.
   */
  readByLayer(job: number, blocks: readonly StoredBlock[], pages: Int32Array): number;
  write(job: number, blocks: readonly StoredBlock[]): void;
  /** Clears the slot; has no result. */
  erase(job: number, slot: number): void;
  /** When it returns, the job uses none of its pages, and has no result. */
  stop(job: number): void;
  results(): readonly StoreResult[];
}

export type TierEffect = Extract<
  InstanceEffect,
  { kind: 'copyPages' | 'loadPages' | 'storePages' | 'readSsd' | 'stopRead' | 'writeSsd' | 'eraseSsd' }
>;

interface Read {
  readonly id: RequestId;
  readonly blocks: readonly StoredBlock[];
  /** When the read completes, all blocks of the prompt before this one are present. */
  readonly to: number;
  /** (blocks, layers) pages of the pool for a read layer by layer; undefined: into host memory. */
  readonly pages: Int32Array | undefined;
  /** When it counts as a miss, and the bytes that the store had read when it began. */
  readonly deadlineUs: number;
  readonly bytesBefore: number;
}

/** Copies blocks while a step runs, layer by layer. Pages are (blocks, layers). */
export interface PageLoader {
  /** The step waits for each layer. */
  begin(from: Int32Array, to: Int32Array): void;
  /** When it returns, all blocks have been loaded. */
  finish(): void;
  /** Copies what the next step computes, each layer once it is computed. After the `begin` of that step. */
  beginStoring(from: Int32Array, to: Int32Array): void;
  /** Called after the step: when it returns, what the step computed has been copied. */
  finishStoring(): void;
  /** Pages stored while the step that computed them ran. */
  readonly storedEarly: number;
}

interface Copies {
  readonly from: Int32Array;
  readonly to: Int32Array;
}

export interface LiveTiersOptions {
  /** Copies pages of the pool one by one; done when it returns. */
  copy(from: Int32Array, to: Int32Array): void;
  readonly loader: PageLoader;
  readonly pageBytes: number;
  readonly blockBytes: number;
  /** Undefined without SSD. */
  readonly store: TierStore | undefined;
  log(message: string): void;
}

/** Assumed read bandwidth until the first read. */
const initialBytesPerSecond = 1e9;
/** A read that takes longer than this, and a multiple of its prediction, is a miss. */
const readUsMin = 5_000_000;
const readMultiple = 4;
/** After a read without a single byte the disk counts as absent for this time. */
const absentUs = 60_000_000;

export class LiveTiers {
  readonly #options: LiveTiersOptions;
  #jobs = 0;
  /** By job. */
  readonly #reads = new Map<number, Read>();
  readonly #byId = new Map<RequestId, number>();
  /** By job, arrivals handles of reads layer by layer. */
  readonly #arrivals = new Map<number, number>();
  /** Completions of empty reads. */
  #completed: InstanceEvent[] = [];
  #copiedPages = 0;
  /** Blocks that the next step loads. */
  #loads: Copies | undefined;
  /** Blocks that the next step computes. */
  #stores: Copies | undefined;
  #faulted = false;
  #absentUntilUs = Number.NEGATIVE_INFINITY;

  constructor(options: LiveTiersOptions) {
    this.#options = options;
  }

  get counts(): TiersSnapshot['moved'] {
    const { store, loader, pageBytes } = this.#options;
    const copied = {
      copiedBytes: this.#copiedPages * pageBytes,
      storedEarlyBytes: loader.storedEarly * pageBytes,
    };
    if (store === undefined) return { ...copied, ssdReadBytes: 0, ssdReadSeconds: 0, ssdWrittenBytes: 0, badBlocks: 0 };
    const {
      readBytes: ssdReadBytes,
      readSeconds: ssdReadSeconds,
      writtenBytes: ssdWrittenBytes,
      badBlocks,
    } = store.counts;
    return { ...copied, ssdReadBytes, ssdReadSeconds, ssdWrittenBytes, badBlocks };
  }

  /** Predicted time of a read from SSD, at the average bandwidth so far. */
  readonly readUs = (blocks: number): number => {
    const { ssdReadBytes = 0, ssdReadSeconds = 0 } = this.counts ?? {};
    const bytes = blocks * this.#options.blockBytes;
    return (1e6 * bytes) / (ssdReadBytes > 0 ? ssdReadBytes / ssdReadSeconds : initialBytesPerSecond);
  };

  withBytes(store: StoreSnapshot): StoreSnapshot {
    return { ...store, takenBytes: store.takenBlocks * this.#options.blockBytes };
  }

  carryOut(effect: TierEffect): void {
    switch (effect.kind) {
      case 'copyPages':
        this.#copiedPages += effect.from.length;
        this.#options.copy(effect.from, effect.to);
        break;
      case 'loadPages':
        this.finishLoads();
        this.#copiedPages += effect.from.length;
        this.#loads = effect;
        break;
      case 'storePages':
        this.#copiedPages += effect.from.length;
        this.#stores = effect;
        break;
      case 'readSsd':
        this.#read(effect.id, effect.to, effect.what ?? [], effect.pages);
        break;
      case 'stopRead':
        this.#stop(effect.id);
        break;
      case 'writeSsd':
        for (const block of effect.what ?? []) this.#options.store?.write(++this.#jobs, [block]);
        break;
      case 'eraseSsd':
        this.#options.store?.erase(++this.#jobs, effect.slot);
        break;
      default:
        assertNever(effect);
    }
  }

  /** Starts the loads of the next step, and the stores of what it computes. */
  stepBegins(): void {
    const { loader } = this.#options;
    if (this.#loads !== undefined) loader.begin(this.#loads.from, this.#loads.to);
    if (this.#stores !== undefined) loader.beginStoring(this.#stores.from, this.#stores.to);
  }

  /** The step has completed or was aborted. */
  stepEnded(): void {
    const { loader } = this.#options;
    if (this.#loads !== undefined) loader.finish();
    if (this.#stores !== undefined) loader.finishStoring();
    this.#loads = undefined;
    this.#stores = undefined;
  }

  /** Completes pending loads for another reader than a step. */
  finishLoads(): void {
    const { loader } = this.#options;
    if (this.#loads === undefined) return;
    loader.begin(this.#loads.from, this.#loads.to);
    loader.finish();
    this.#loads = undefined;
  }

  /** When the next read becomes a miss. */
  get nextUs(): number {
    let nextUs = Number.POSITIVE_INFINITY;
    for (const { deadlineUs } of this.#reads.values()) nextUs = Math.min(nextUs, deadlineUs);
    return nextUs;
  }

  #read(id: RequestId, to: number, blocks: readonly StoredBlock[], pages: Int32Array | undefined): void {
    const { store } = this.#options;
    const atUs = nowUs();
    const [first] = blocks;
    if (store === undefined || first === undefined || atUs < this.#absentUntilUs) {
      this.#completed.push({ kind: 'loaded', id, source: 'ssd', to: first === undefined ? to : first.depth - 1 });
      return;
    }
    const deadlineUs = atUs + Math.max(readUsMin, readMultiple * this.readUs(blocks.length));
    const read = { id, to, blocks, pages, deadlineUs, bytesBefore: store.counts.readBytes };
    const job = ++this.#jobs;
    this.#reads.set(job, read);
    this.#byId.set(read.id, job);
    if (read.pages === undefined) store.read(job, read.blocks);
    else this.#arrivals.set(job, store.readByLayer(job, read.blocks, read.pages));
  }

  /** The arrivals of a read that a step waits for (`Step.arriving`); undefined if there is none. */
  arrivalsOf(id: RequestId): number | undefined {
    const job = this.#byId.get(id);
    return job === undefined ? undefined : this.#arrivals.get(job);
  }

  #stop(id: RequestId): void {
    this.#completed = this.#completed.filter((event) => event.kind !== 'loaded' || event.id !== id);
    const job = this.#byId.get(id);
    if (job === undefined) return;
    this.#options.store?.stop(job);
    this.#byId.delete(id);
    this.#reads.delete(job);
    this.#arrivals.delete(job);
  }

  /** Completions since the last call. */
  poll(): readonly InstanceEvent[] {
    this.#expire();
    const events = this.#completed;
    this.#completed = [];
    const written: StoreResult[] = [];
    for (const result of this.#options.store?.results() ?? []) {
      const read = this.#reads.get(result.job);
      if (read === undefined) written.push(result);
      else events.push(this.#loaded(result, read));
    }
    if (written.length > 0) events.push(this.#written(written));
    return events;
  }

  /** Cancels reads past their deadlines. If the store has read no byte since such a read began, the disk counts as absent. */
  #expire(): void {
    const atUs = nowUs();
    if (atUs < this.nextUs) return;
    for (const { id, blocks, deadlineUs, bytesBefore } of [...this.#reads.values()]) {
      if (atUs < deadlineUs) continue;
      this.#stop(id);
      this.#completed.push({ kind: 'loaded', id, source: 'ssd', to: blocks[0].depth - 1 });
      if (this.#options.store?.counts.readBytes !== bytesBefore || atUs < this.#absentUntilUs) continue;
      this.#absentUntilUs = atUs + absentUs;
      this.#options.log(`The SSD does not answer: for ${absentUs / 1e6} s its blocks are computed instead of read`);
    }
  }

  #loaded({ job, done }: StoreResult, { id, blocks, to }: Read): InstanceEvent {
    this.#reads.delete(job);
    this.#byId.delete(id);
    this.#arrivals.delete(job);
    const bad = blocks[done];
    if (bad === undefined) return { kind: 'loaded', id, source: 'ssd', to };
    return { kind: 'loaded', id, source: 'ssd', to: bad.depth - 1, bad: bad.slot };
  }

  /** Writes complete in the order of submission. */
  #written(results: readonly StoreResult[]): InstanceEvent {
    const failed = results.flatMap(({ done }, i) => (done === 0 ? [i] : []));
    if (failed.length > 0 && !this.#faulted) {
      this.#faulted = true;
      this.#options.log(`Cannot write blocks to SSD: ${this.#options.store?.counts.error}`);
    }
    return { kind: 'ssdWritten', blocks: results.length, failed };
  }
}
