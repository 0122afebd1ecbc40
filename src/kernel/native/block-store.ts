// The native block store of a pool on SSD: a thread moves blocks between slots of a file and pages of the pool.
import type { StoreCounts } from '../../util/counts.ts';
import type { KvPoolHandle } from '../backend.ts';
import { loadNative, type NativeModule } from './addon.ts';
import { NativeArrivals } from './page-arrivals.ts';

const resultsAtOnce = 64;
const kinds = { read: 0, write: 1, erase: 2 } as const;

/** A block and its slot; equal to `StoredBlock` of `runtime`, which `kernel` does not import. */
interface StoredBlock {
  readonly slot: number;
  readonly page: number;
  readonly depth: number;
  readonly digest: Uint32Array;
}

export interface BlockStoreOptions {
  readonly pool: KvPoolHandle;
  /** Pages of a block; they are consecutive. */
  readonly pagesOfBlock: number;
  /** The files are `path`.index and `path`.blocks. */
  readonly path: string;
  readonly slots: number;
  /** 32 bytes that identify model, form and block hash key. Blocks of another identity are not used. */
  readonly identity: Uint8Array;
}

/** Implements `TierStore` of `runtime`. */
export class NativeBlockStore {
  readonly #native: NativeModule;
  readonly #store: number;
  readonly #results = new Int32Array(2 * resultsAtOnce);
  /** By job. */
  readonly #arrivals = new Map<number, NativeArrivals>();

  /** @param wake called in this thread after results are ready @throws Error in one line if the files cannot be used */
  constructor({ pool, pagesOfBlock, path, slots, identity }: BlockStoreOptions, wake: () => void) {
    const native = loadNative();
    if (native === undefined) throw new Error('Cannot keep blocks on SSD: the native kernels are not compiled');
    this.#native = native;
    this.#store = native.createStore(pool, pagesOfBlock, path, slots, identity, wake);
  }

  /** One line about the files that were found; empty: nothing to report. */
  get note(): string {
    return this.#native.storeNote(this.#store);
  }

  /** (blocks, 6): slot, depth and digest of the blocks found, oldest first. Valid before the first job. */
  get found(): Uint32Array {
    return this.#native.storeBlocks(this.#store);
  }

  get counts(): StoreCounts {
    return this.#native.storeCounts(this.#store);
  }

  read(job: number, blocks: readonly StoredBlock[]): void {
    this.#native.beginStoreJob(this.#store, job, kinds.read, wordsOf(blocks));
  }

  readByLayer(job: number, blocks: readonly StoredBlock[], pages: Int32Array): number {
    const arrivals = new NativeArrivals(pages.length / blocks.length, blocks.length);
    this.#arrivals.set(job, arrivals);
    this.#native.beginStoreLayers(this.#store, job, wordsOf(blocks), pages, arrivals.handle);
    return arrivals.handle;
  }

  write(job: number, blocks: readonly StoredBlock[]): void {
    this.#native.beginStoreJob(this.#store, job, kinds.write, wordsOf(blocks));
  }

  erase(job: number, slot: number): void {
    const block = { slot, page: 0, depth: 0, digest: new Uint32Array(4) };
    this.#native.beginStoreJob(this.#store, job, kinds.erase, wordsOf([block]));
  }

  stop(job: number): void {
    this.#native.stopStoreJob(this.#store, job);
    this.#free(job);
  }

  results(): readonly { readonly job: number; readonly done: number }[] {
    const all: { job: number; done: number }[] = [];
    let count: number;
    do {
      count = this.#native.takeStoreResults(this.#store, this.#results);
      for (let i = 0; i < count; i++) all.push({ job: this.#results[2 * i], done: this.#results[2 * i + 1] });
    } while (count === resultsAtOnce);
    for (const { job } of all) this.#free(job);
    return all;
  }

  #free(job: number): void {
    this.#arrivals.get(job)?.free();
    this.#arrivals.delete(job);
  }

  /** Ends its thread and unlocks its files. */
  free(): void {
    this.#native.freeStore(this.#store);
  }
}

function wordsOf(blocks: readonly StoredBlock[]): Uint32Array {
  return Uint32Array.from(blocks.flatMap(({ slot, page, depth, digest }) => [slot, page, depth, ...digest]));
}
