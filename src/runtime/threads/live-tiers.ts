// Carries out what an instance's cache decides about its lower tiers: blocks copied inside the pool's memory, read from SSD and written there.
import type { InstanceEffect } from '../../core/protocol/effects.ts';
import type { InstanceEvent } from '../../core/protocol/events.ts';
import type { RequestId } from '../../core/protocol/ids.ts';
import type { StoreSnapshot, TiersSnapshot } from '../../core/protocol/ports.ts';
import type { StoredBlock, StoreResult, TierStore } from './tier-store.ts';

export type TierEffect = Extract<
  InstanceEffect,
  { kind: 'copyPages' | 'loadPages' | 'readSsd' | 'stopRead' | 'writeSsd' | 'eraseSsd' }
>;

interface Read {
  readonly id: RequestId;
  readonly blocks: readonly StoredBlock[];
  /** All of the prompt before this block is there when all blocks are. */
  readonly to: number;
  /** Of the pool, (blocks, layers): read there, layer by layer. */
  readonly pages: Int32Array | undefined;
}

/** Copies blocks while a step runs, which waits for them layer by layer. */
export interface PageLoader {
  /** (blocks, layers) pages both. */
  begin(from: Int32Array, to: Int32Array): void;
  /** All is there when it returns. */
  finish(): void;
}

export interface LiveTiersOptions {
  /** Pages of the pool, one by one; done when it returns. */
  readonly copy: (from: Int32Array, to: Int32Array) => void;
  readonly loader: PageLoader;
  readonly pageBytes: number;
  readonly blockBytes: number;
  /** Undefined: there is no SSD. */
  readonly store: TierStore | undefined;
  readonly log: (message: string) => void;
}

/** Until blocks have been read. */
const bytesPerSecondGuess = 1e9;

export class LiveTiers {
  readonly #options: LiveTiersOptions;
  #jobs = 0;
  /** By job. */
  readonly #reads = new Map<number, Read>();
  readonly #byId = new Map<RequestId, number>();
  /** Of those that steps may run behind, by job. */
  readonly #arrivals = new Map<number, number>();
  /** Reads of nothing: they have ended. */
  #ended: InstanceEvent[] = [];
  #copiedPages = 0;
  /** What the step that comes next reads. */
  #loads: { readonly from: Int32Array; readonly to: Int32Array } | undefined;
  #faulted = false;

  constructor(options: LiveTiersOptions) {
    this.#options = options;
  }

  get counts(): TiersSnapshot['moved'] {
    const { store, pageBytes } = this.#options;
    const copiedBytes = this.#copiedPages * pageBytes;
    if (store === undefined)
      return { copiedBytes, ssdReadBytes: 0, ssdReadSeconds: 0, ssdWrittenBytes: 0, badBlocks: 0 };
    const {
      readBytes: ssdReadBytes,
      readSeconds: ssdReadSeconds,
      writtenBytes: ssdWrittenBytes,
      badBlocks,
    } = store.counts;
    return { copiedBytes, ssdReadBytes, ssdReadSeconds, ssdWrittenBytes, badBlocks };
  }

  /** How long so many blocks of SSD would take to read, as fast as it has read. */
  readonly readUs = (blocks: number): number => {
    const { ssdReadBytes = 0, ssdReadSeconds = 0 } = this.counts ?? {};
    const bytes = blocks * this.#options.blockBytes;
    return (1e6 * bytes) / (ssdReadBytes > 0 ? ssdReadBytes / ssdReadSeconds : bytesPerSecondGuess);
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
      case 'readSsd':
        this.#read({ id: effect.id, to: effect.to, blocks: effect.what ?? [], pages: effect.pages });
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
    }
  }

  /** The step that is about to run reads what is to be loaded. */
  stepBegins(): void {
    if (this.#loads !== undefined) this.#options.loader.begin(this.#loads.from, this.#loads.to);
  }

  /** It has run, or was aborted. */
  stepEnded(): void {
    if (this.#loads !== undefined) this.#options.loader.finish();
    this.#loads = undefined;
  }

  /** What is to be loaded is there when it returns: somebody else than a step reads it. */
  finishLoads(): void {
    this.stepBegins();
    this.stepEnded();
  }

  #read(read: Read): void {
    const { store } = this.#options;
    if (store === undefined || read.blocks.length === 0) {
      this.#ended.push({ kind: 'loaded', id: read.id, source: 'ssd', to: read.to });
      return;
    }
    const job = ++this.#jobs;
    this.#reads.set(job, read);
    this.#byId.set(read.id, job);
    if (read.pages === undefined) store.read(job, read.blocks);
    else this.#arrivals.set(job, store.readByLayer(job, read.blocks, read.pages));
  }

  /** What a step waits for that runs behind what is read (`Step.arriving`); undefined: it does not come. */
  arrivalsOf(id: RequestId): number | undefined {
    const job = this.#byId.get(id);
    return job === undefined ? undefined : this.#arrivals.get(job);
  }

  #stop(id: RequestId): void {
    this.#ended = this.#ended.filter((event) => event.kind !== 'loaded' || event.id !== id);
    const job = this.#byId.get(id);
    if (job === undefined) return;
    this.#options.store?.stop(job);
    this.#byId.delete(id);
    this.#reads.delete(job);
    this.#arrivals.delete(job);
  }

  /** What has ended since the last call. */
  poll(): readonly InstanceEvent[] {
    const events = this.#ended;
    this.#ended = [];
    const written: StoreResult[] = [];
    for (const result of this.#options.store?.results() ?? []) {
      const read = this.#reads.get(result.job);
      if (read === undefined) written.push(result);
      else events.push(this.#loaded(result, read));
    }
    if (written.length > 0) events.push(this.#written(written));
    return events;
  }

  #loaded({ job, done }: StoreResult, { id, blocks, to }: Read): InstanceEvent {
    this.#reads.delete(job);
    this.#byId.delete(id);
    this.#arrivals.delete(job);
    const bad = blocks[done];
    if (bad === undefined) return { kind: 'loaded', id, source: 'ssd', to };
    return { kind: 'loaded', id, source: 'ssd', to: bad.depth - 1, bad: bad.slot };
  }

  /** In the order in which they began, as they end. */
  #written(results: readonly StoreResult[]): InstanceEvent {
    const failed = results.flatMap(({ done }, i) => (done === 0 ? [i] : []));
    if (failed.length > 0 && !this.#faulted) {
      this.#faulted = true;
      this.#options.log(`Cannot write blocks to SSD: ${this.#options.store?.counts.error}`);
    }
    return { kind: 'ssdWritten', blocks: results.length, failed };
  }
}
