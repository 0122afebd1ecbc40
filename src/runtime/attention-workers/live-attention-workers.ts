// The attention workers of an instance as threads of its process: starts them, connects to them, and replaces lost ones.
import { randomBytes } from 'node:crypto';
import type { InstanceEvent } from '../../core/protocol/events.ts';
import type { AttentionWorkerSnapshot } from '../../core/protocol/ports.ts';
import type { KvShape } from '../../engine/load-model.ts';
import type { KvPoolHandle } from '../../kernel/backend.ts';
import { AttentionWorker, WorkerLink } from '../../kernel/native/attention-workers.ts';
import { createNativeBackend, type NativeBackend } from '../../kernel/native/native.ts';
import type { WorkerLinkCounts } from '../../util/counts.ts';

export interface LiveAttentionWorkersOptions {
  readonly backend: NativeBackend;
  readonly kv: KvShape;
  /** Divides the KV heads. */
  readonly workers: number;
  /** Compute threads of each worker. */
  readonly threads: number;
  /** Pages of each worker. */
  readonly pages: number;
}

/** Time between two attempts to replace a lost worker. */
const retryUs = 1_000_000;

export class LiveAttentionWorkers {
  readonly #workers: readonly LocalWorker[];
  #handles: Int32Array;
  #retryAtUs = Number.POSITIVE_INFINITY;

  /** @throws Error if a worker cannot be created */
  constructor(options: LiveAttentionWorkersOptions) {
    const token = randomBytes(16).toString('hex');
    this.#workers = Array.from({ length: options.workers }, () => new LocalWorker(options, token));
    this.#handles = this.#linkHandles();
  }

  /** Links for `Step.attentionWorkers`. */
  get handles(): Int32Array {
    return this.#handles;
  }

  get nextUs(): number {
    return this.#retryAtUs;
  }

  /** Workers that were lost, and those that have been replaced. */
  poll(nowUs: number): readonly InstanceEvent[] {
    const events: InstanceEvent[] = [];
    for (const [worker, own] of this.#workers.entries()) {
      if (own.breaks()) events.push({ kind: 'attentionWorkerLost', worker });
      if (!own.isLost || (nowUs < this.#retryAtUs && events.length === 0)) continue;
      if (own.restart()) events.push({ kind: 'attentionWorkerReady', worker });
    }
    this.#retryAtUs = this.#workers.some(({ isLost }) => isLost) ? nowUs + retryUs : Number.POSITIVE_INFINITY;
    if (events.length > 0) this.#handles = this.#linkHandles();
    return events;
  }

  /** Adds the traffic with each worker to what the machine reports. */
  withCounts(snapshots: readonly AttentionWorkerSnapshot[]): readonly AttentionWorkerSnapshot[] {
    return snapshots.map((snapshot, worker) => ({ ...snapshot, ...this.#workers[worker]?.counts }));
  }

  close(): void {
    for (const worker of this.#workers) worker.close();
  }

  #linkHandles(): Int32Array {
    return Int32Array.from(this.#workers, ({ handle }) => handle);
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

/** A worker of this process with its threads and pages, and the link to it. */
class LocalWorker {
  readonly #options: LiveAttentionWorkersOptions;
  readonly #token: string;
  readonly #backend: NativeBackend;
  /** Of links that are closed. */
  #earlier = noCounts;
  #parts: { readonly pool: KvPoolHandle; readonly worker: AttentionWorker; readonly link: WorkerLink } | undefined;

  constructor(options: LiveAttentionWorkersOptions, token: string) {
    this.#options = options;
    this.#token = token;
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
    return this.#parts === undefined ? this.#earlier : sumOf(this.#earlier, this.#parts.link.counts);
  }

  /** True once for each broken link, which it closes. */
  breaks(): boolean {
    if (this.#parts?.link.isBroken !== true) return false;
    this.#closeParts();
    return true;
  }

  /** True if a new worker with empty pages has the place of the lost one. */
  restart(): boolean {
    try {
      this.#parts = this.#open();
      return true;
    } catch {
      return false;
    }
  }

  close(): void {
    this.#closeParts();
    this.#backend.close();
  }

  #open() {
    const { backend, kv, workers, pages } = this.#options;
    const shard = { type: kv.type, kvHeads: kv.kvHeads / workers, headDim: kv.headDim };
    const pool = this.#backend.createKvPool({ ...shard, pages });
    const local = { token: this.#token, transport: 'auto' } as const;
    const worker = new AttentionWorker({ ...local, backend: this.#backend, pool, host: '127.0.0.1' });
    return { pool, worker, link: new WorkerLink({ ...local, backend, shard, address: worker.address }) };
  }

  #closeParts(): void {
    if (this.#parts === undefined) return;
    const { pool, worker, link } = this.#parts;
    this.#earlier = this.counts;
    this.#parts = undefined;
    link.close();
    worker.close();
    this.#backend.freeKvPool(pool);
  }
}

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
