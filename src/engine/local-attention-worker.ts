// An attention worker in this process: its threads, its pages, and the link of the model worker to it.
import { randomBytes } from 'node:crypto';
import type { KvPoolHandle } from '../kernel/backend.ts';
import { AttentionWorker, WorkerLink } from '../kernel/native/attention-workers.ts';
import { createNativeBackend, type NativeBackend } from '../kernel/native/native.ts';
import type { WorkerLinkCounts } from '../util/counts.ts';
import { noLinkCounts, sumOfLinkCounts } from './link-counts.ts';
import type { KvShape } from './load-model.ts';

export interface LocalAttentionWorkerOptions {
  /** The backend of the model worker. */
  readonly backend: NativeBackend;
  readonly kv: KvShape;
  /** Attention workers of the instance, which share the KV heads equally. */
  readonly workers: number;
  /** Compute threads of the worker. */
  readonly threads: number;
  /** Pages of the worker. */
  readonly pages: number;
}

/** A worker with its threads and pages, and the link to it. */
export class LocalAttentionWorker {
  readonly #options: LocalAttentionWorkerOptions;
  readonly #token = randomBytes(16).toString('hex');
  readonly #backend: NativeBackend;
  /** Of links that are closed. */
  #earlier = noLinkCounts;
  #parts: { readonly pool: KvPoolHandle; readonly worker: AttentionWorker; readonly link: WorkerLink } | undefined;

  /** @throws Error if the memory is not available */
  constructor(options: LocalAttentionWorkerOptions) {
    this.#options = options;
    this.#backend = createNativeBackend({ threads: options.threads, isa: options.backend.isa });
    this.#parts = this.#open();
  }

  /** No handle has the number 0: steps with it are unanswered. */
  get handle(): number {
    return this.#parts?.link.handle ?? 0;
  }

  get isLost(): boolean {
    return this.#parts === undefined;
  }

  get counts(): WorkerLinkCounts {
    return this.#parts === undefined ? this.#earlier : sumOfLinkCounts(this.#earlier, this.#parts.link.counts);
  }

  /** Closes a broken link, and the worker with it. True if the link was broken. */
  closeIfBroken(): boolean {
    if (this.#parts?.link.isBroken !== true) return false;
    const { pool, worker, link } = this.#parts;
    this.#earlier = this.counts;
    this.#parts = undefined;
    link.close();
    worker.close();
    this.#backend.freeKvPool(pool);
    return true;
  }

  /** Replaces the lost worker by one with empty pages. @returns why that failed; undefined: it did not */
  restart(): string | undefined {
    try {
      this.#parts = this.#open();
      return undefined;
    } catch (error) {
      return error instanceof Error ? error.message : String(error);
    }
  }

  #open() {
    const { backend, kv, workers, pages } = this.#options;
    const shard = { type: kv.type, kvHeads: kv.kvHeads / workers, headDim: kv.headDim };
    const local = { token: this.#token, transport: 'auto' } as const;
    const pool = this.#backend.createKvPool({ ...shard, pages });
    let worker: AttentionWorker | undefined;
    try {
      worker = new AttentionWorker({ ...local, backend: this.#backend, pool, host: '127.0.0.1' });
      return { pool, worker, link: new WorkerLink({ ...local, backend, shard, address: worker.address }) };
    } catch (error) {
      worker?.close();
      this.#backend.freeKvPool(pool);
      throw error;
    }
  }
}
