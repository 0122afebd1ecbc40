// An attention worker and the model worker's link to it: in this process with threads and pages of its own, or in
// another process. A lost one is opened again.
import { randomBytes } from 'node:crypto';
import type { KvPoolHandle } from '../kernel/backend.ts';
import type { Transport } from '../kernel/native/addon.ts';
import { type AttentionForm, AttentionWorker, ShardSender, WorkerLink } from '../kernel/native/attention-workers.ts';
import { createNativeBackend, type NativeBackend } from '../kernel/native/native.ts';
import type { WorkerLinkCounts } from '../util/counts.ts';
import type { KvShape } from './load-model.ts';

interface SharedOptions {
  /** The backend of the model worker. */
  readonly backend: NativeBackend;
  readonly kv: KvShape;
  /** Attention workers that share the KV heads equally; 1: each has all of some sequences. */
  readonly shards: number;
  readonly form: AttentionForm;
  /** Links to the worker: one for each batch of a step. */
  readonly links: number;
}

export interface LocalAttentionWorkerOptions extends SharedOptions {
  /** Compute threads of the worker. */
  readonly threads: number;
  /** Pages of the worker. */
  readonly pages: number;
  /** Index of the worker's shard of the KV heads. */
  readonly shard: number;
}

export interface RemoteAttentionWorkerOptions extends SharedOptions {
  /** Host and port of each worker of the instance; `index` is this one. */
  readonly addresses: readonly string[];
  readonly index: number;
  /** The secret that both processes have. */
  readonly token: string;
  readonly transport?: Transport | undefined;
  /** The worker pulls prompts of prefill instances. */
  readonly pulls: boolean;
}

/** Pages of another worker of the instance. */
interface ShardHome {
  readonly worker: number;
  readonly firstPage: number;
  readonly pages: number;
}

/** What is open while a worker serves. */
interface OpenWorker {
  readonly links: readonly WorkerLink[];
  /** Pulls pages to the worker; undefined: it pulls none. */
  readonly puller: AttentionWorker | ShardSender | undefined;
  close(): void;
}

/** An attempt to open a worker: undefined while it lasts. @throws Error if it has failed */
type Attempt = () => OpenWorker | undefined;

/** Pages that a worker has pulled. */
export interface PulledCounts {
  readonly pulledPages: number;
  /** Of the worker's shards. */
  readonly pulledBytes: number;
}

/** Pages that a worker copies while no attention call needs its threads. */
export interface PagePull {
  /** All pages, or all received ones, are there. False if the worker was lost meanwhile. */
  readonly isDone: boolean;
  readonly isLost: boolean;
  /** The pages cannot reach the worker, and the loss was not noticed before. */
  readonly isBroken: boolean;
  /** Returns at once. The worker writes nothing of it during later steps, and nothing after later pulls. */
  cancel(): void;
}

export class LinkedAttentionWorker {
  readonly #shard: number;
  readonly #begin: (home: ShardHome | undefined) => Attempt;
  readonly #links: number;
  /** Of a page of its shard; undefined: the worker pulls nothing. */
  readonly #pageBytes: number | undefined;
  #attempt: Attempt | undefined;
  #worker: OpenWorker | undefined;
  #pages: number | undefined;
  /** Of links and workers that are closed. */
  #earlier = noCounts;
  #earlierPages = 0;

  /** @param begin creates or finds a worker with empty pages */
  private constructor(
    links: number,
    begin: (home: ShardHome | undefined) => Attempt,
    { shard, pageBytes }: { readonly shard: number; readonly pageBytes: number | undefined },
  ) {
    this.#shard = shard;
    this.#links = links;
    this.#begin = begin;
    this.#pageBytes = pageBytes;
  }

  /** A worker in this process. */
  static local(options: LocalAttentionWorkerOptions): LinkedAttentionWorker {
    const token = randomBytes(16).toString('hex');
    const backend = createNativeBackend({ threads: options.threads, isa: options.backend.isa });
    const { links, kv, shards } = options;
    const begin = () => () => openLocal(options, backend, token);
    const shard = shards === 1 ? 0 : options.shard;
    return new LinkedAttentionWorker(links, begin, { shard, pageBytes: kv.pageBytes / shards });
  }

  /** A worker in another process. */
  static remote(options: RemoteAttentionWorkerOptions): LinkedAttentionWorker {
    const { links, kv, shards, index, pulls } = options;
    const pageBytes = pulls ? kv.pageBytes / shards : undefined;
    const begin = (home: ShardHome | undefined) => beginRemote(options, home);
    return new LinkedAttentionWorker(links, begin, { shard: shards === 1 ? 0 : index, pageBytes });
  }

  /** Pages of the worker. */
  get pages(): number {
    if (this.#pages === undefined) throw new Error('Cannot count pages: the attention worker was never open');
    return this.#pages;
  }

  /** (links) No handle has the number 0: sequences of steps with it fail. */
  get handles(): readonly number[] {
    return this.#worker?.links.map(({ handle }) => handle) ?? Array.from({ length: this.#links }, () => 0);
  }

  get isLost(): boolean {
    return this.#worker === undefined;
  }

  get counts(): WorkerLinkCounts {
    return (this.#worker?.links ?? []).reduce((sum, { counts }) => sumOf(sum, counts), this.#earlier);
  }

  /** Undefined: it is in another process, and no prompts are sent to it. */
  get pulled(): PulledCounts | undefined {
    if (this.#pageBytes === undefined) return undefined;
    const pulledPages = this.#earlierPages + this.#openPages;
    return { pulledPages, pulledBytes: pulledPages * this.#pageBytes };
  }

  /** Pages that the open worker has pulled. */
  get #openPages(): number {
    return this.#worker?.puller?.counts.pulledPages ?? 0;
  }

  /** Closes the links if one is broken, and a worker of this process with them. True if one was. */
  closeIfBroken(): boolean {
    const { links, puller } = this.#worker ?? { links: [], puller: undefined };
    if (puller?.isBroken !== true && !links.some(({ isBroken }) => isBroken)) return false;
    this.close();
    return true;
  }

  /** Closes the links, and a worker of this process with them. */
  close(): void {
    this.#earlier = this.counts;
    this.#earlierPages += this.#openPages;
    this.#worker?.close();
    this.#worker = undefined;
  }

  /**
   * Replaces the lost worker by one with empty pages: begins an attempt, or asks for the outcome of the attempt in
   * progress. Never waits for another process.
   * @param home pages of another worker for the shard; undefined: the worker's own place
   */
  reopen(home?: ShardHome): 'open' | 'opening' | { readonly why: string } {
    try {
      this.#attempt ??= this.#begin(home);
      const worker = this.#attempt();
      if (worker === undefined) return 'opening';
      this.#attempt = undefined;
      return this.#take(worker, home);
    } catch (error) {
      this.#attempt = undefined;
      return { why: error instanceof Error ? error.message : String(error) };
    }
  }

  /**
   * Copies the worker's shard of pages of a pool of this process. @param pages (n, 2): page of the pool, page of the
   * worker @returns undefined if the worker is lost
   */
  pull(pool: KvPoolHandle, pages: Int32Array): PagePull | undefined {
    return this.#beginPull((worker) => worker.pull(pool, this.#shard, pages));
  }

  /** The same for each page that a buffer receives, until it is cancelled. @param pages (slots): of the worker */
  pullReceived(receiveBuffer: number, pages: Int32Array): PagePull | undefined {
    return this.#beginPull((worker) => worker.pullReceived(receiveBuffer, this.#shard, pages));
  }

  #beginPull(begin: (puller: AttentionWorker | ShardSender) => number): PagePull | undefined {
    const open = this.#worker;
    if (open === undefined) return undefined;
    const { puller } = open;
    if (puller === undefined) throw new Error('Cannot pull pages: the attention worker is open for steps alone');
    const number = begin(puller);
    const isOpen = (): boolean => this.#worker === open;
    return {
      get isDone() {
        return isOpen() && puller.isPulled(number);
      },
      get isLost() {
        return !isOpen();
      },
      get isBroken() {
        return isOpen() && puller.isBroken;
      },
      cancel: () => {
        if (isOpen()) puller.cancelPull(number);
      },
    };
  }

  #take(worker: OpenWorker, home: ShardHome | undefined): 'open' | { readonly why: string } {
    const [{ pages }] = worker.links;
    const required = home === undefined ? (this.#pages ?? 0) : home.firstPage + home.pages;
    if (pages < required) {
      worker.close();
      return { why: `it has ${pages} pages, and ${required} are required` };
    }
    if (home === undefined) this.#pages ??= pages;
    this.#worker = worker;
    return 'open';
  }
}

function beginRemote(options: RemoteAttentionWorkerOptions, home: ShardHome | undefined): Attempt {
  const { backend, addresses, token, transport, form, pulls } = options;
  const address = addresses[home?.worker ?? options.index];
  const begin = () =>
    WorkerLink.begin({ backend, shard: shardOf(options), address, token, transport, form, firstPage: home?.firstPage });
  const links: WorkerLink[] = [];
  let puller: ShardSender | undefined;
  const close = (): void => {
    puller?.close();
    for (const link of links) link.close();
  };
  let next = begin();
  return () => {
    try {
      for (let link = next(); link !== undefined; link = next()) {
        if (links.length < options.links) links.push(link);
        else puller = new ShardSender(backend, link, links);
        if (links.length === options.links && (!pulls || puller !== undefined)) return { links, puller, close };
        next = begin();
      }
      return undefined;
    } catch (error) {
      close();
      throw error;
    }
  };
}

function shardOf({ kv, shards }: SharedOptions) {
  return { type: kv.type, kvHeads: kv.kvHeads / shards, headDim: kv.headDim };
}

/** @param workerBackend the threads of the worker */
function openLocal(options: LocalAttentionWorkerOptions, workerBackend: NativeBackend, token: string): OpenWorker {
  const { backend, pages, form } = options;
  const shard = shardOf(options);
  const local = { token, transport: 'auto' } as const;
  const pool = workerBackend.createKvPool({ ...shard, pages });
  let worker: AttentionWorker | undefined;
  const links: WorkerLink[] = [];
  const close = (): void => {
    for (const link of links) link.close();
    worker?.close();
    workerBackend.freeKvPool(pool);
  };
  try {
    worker = new AttentionWorker({ ...local, backend: workerBackend, pool, host: '127.0.0.1' });
    const { address } = worker;
    while (links.length < options.links) links.push(new WorkerLink({ ...local, backend, shard, form, address }));
    return { links, puller: worker, close };
  } catch (error) {
    close();
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
