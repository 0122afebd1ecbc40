// An attention worker and the model worker's link to it: in this process with threads and pages of its own, or in
// another process. A lost one is opened again.
import { randomBytes } from 'node:crypto';
import { AttentionWorker, WorkerLink } from '../kernel/native/attention-workers.ts';
import { createNativeBackend, type NativeBackend } from '../kernel/native/native.ts';
import type { WorkerLinkCounts } from '../util/counts.ts';
import type { KvShape } from './load-model.ts';

interface SharedOptions {
  /** The backend of the model worker. */
  readonly backend: NativeBackend;
  readonly kv: KvShape;
  /** Attention workers of the instance, which share the KV heads equally. */
  readonly workers: number;
}

export interface LocalAttentionWorkerOptions extends SharedOptions {
  /** Compute threads of the worker. */
  readonly threads: number;
  /** Pages of the worker. */
  readonly pages: number;
}

export interface RemoteAttentionWorkerOptions extends SharedOptions {
  /** Host and port of the worker. */
  readonly address: string;
  /** The secret that both processes have. */
  readonly token: string;
}

/** What is open while a worker serves. */
interface OpenWorker {
  readonly link: WorkerLink;
  close(): void;
}

export class LinkedAttentionWorker {
  /** Pages of the worker. */
  readonly pages: number;
  readonly #open: () => OpenWorker;
  #worker: OpenWorker | undefined;
  /** Of links that are closed. */
  #earlier = noCounts;

  /** @param open creates or finds a worker with empty pages @throws Error if the worker cannot be opened */
  private constructor(open: () => OpenWorker) {
    this.#open = open;
    this.#worker = open();
    this.pages = this.#worker.link.pages;
  }

  /** A worker in this process. @throws Error if the memory is not available */
  static local(options: LocalAttentionWorkerOptions): LinkedAttentionWorker {
    const token = randomBytes(16).toString('hex');
    const backend = createNativeBackend({ threads: options.threads, isa: options.backend.isa });
    return new LinkedAttentionWorker(() => openLocal(options, backend, token));
  }

  /** A worker in another process. @throws Error if it does not answer, or holds other KV heads */
  static remote(options: RemoteAttentionWorkerOptions): LinkedAttentionWorker {
    const { backend, address, token } = options;
    return new LinkedAttentionWorker(() => {
      const link = new WorkerLink({ backend, shard: shardOf(options), address, token });
      return { link, close: () => link.close() };
    });
  }

  /** No handle has the number 0: steps with it are unanswered. */
  get handle(): number {
    return this.#worker?.link.handle ?? 0;
  }

  get isLost(): boolean {
    return this.#worker === undefined;
  }

  get counts(): WorkerLinkCounts {
    return this.#worker === undefined ? this.#earlier : sumOf(this.#earlier, this.#worker.link.counts);
  }

  /** Closes a broken link, and a worker of this process with it. True if the link was broken. */
  closeIfBroken(): boolean {
    if (this.#worker?.link.isBroken !== true) return false;
    this.#earlier = this.counts;
    this.#worker.close();
    this.#worker = undefined;
    return true;
  }

  /** Replaces the lost worker by one with empty pages. @returns why that failed; undefined: it did not */
  restart(): string | undefined {
    try {
      const worker = this.#open();
      const { pages } = worker.link;
      if (pages < this.pages) {
        worker.close();
        return `it has ${pages} pages, and had ${this.pages}`;
      }
      this.#worker = worker;
      return undefined;
    } catch (error) {
      return error instanceof Error ? error.message : String(error);
    }
  }
}

function shardOf({ kv, workers }: SharedOptions) {
  return { type: kv.type, kvHeads: kv.kvHeads / workers, headDim: kv.headDim };
}

/** @param workerBackend the threads of the worker */
function openLocal(options: LocalAttentionWorkerOptions, workerBackend: NativeBackend, token: string): OpenWorker {
  const { backend, pages } = options;
  const shard = shardOf(options);
  const local = { token, transport: 'auto' } as const;
  const pool = workerBackend.createKvPool({ ...shard, pages });
  let worker: AttentionWorker | undefined;
  const closeWorker = (): void => {
    worker?.close();
    workerBackend.freeKvPool(pool);
  };
  try {
    worker = new AttentionWorker({ ...local, backend: workerBackend, pool, host: '127.0.0.1' });
    const link = new WorkerLink({ ...local, backend, shard, address: worker.address });
    const close = (): void => {
      link.close();
      closeWorker();
    };
    return { link, close };
  } catch (error) {
    closeWorker();
    throw error;
  }
}

const noCounts: WorkerLinkCounts = {
  calls: 0,
  bytesOut: 0,
  bytesIn: 0,
  waitSeconds: 0,
  earlySeconds: 0,
  lateSeconds: 0,
};

function sumOf(a: WorkerLinkCounts, b: WorkerLinkCounts): WorkerLinkCounts {
  return {
    calls: a.calls + b.calls,
    bytesOut: a.bytesOut + b.bytesOut,
    bytesIn: a.bytesIn + b.bytesIn,
    waitSeconds: a.waitSeconds + b.waitSeconds,
    earlySeconds: a.earlySeconds + b.earlySeconds,
    lateSeconds: a.lateSeconds + b.lateSeconds,
  };
}
