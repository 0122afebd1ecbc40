// Attention workers, which hold keys and values and no weights, and a model worker's links to them (Lamina, section 4).
import { createHash } from 'node:crypto';
import type { AttentionWorkerCounts, WorkerLinkCounts } from '../../util/counts.ts';
import type { KvPoolHandle, KvPoolSpec } from '../backend.ts';
import { kvTypeCodes } from '../codes.ts';
import type { NativeModule, Transport, WorkerLinkArguments } from './addon.ts';
import { transportCodes } from './addon.ts';
import type { NativeBackend } from './native.ts';

export interface AttentionWorkerOptions {
  /** Its threads compute the attention; nothing else may run on them. */
  readonly backend: NativeBackend;
  /** Pages of the shard: `kvHeads` are those of the shard alone. */
  readonly pool: KvPoolHandle;
  /** The address to listen at. */
  readonly host: string;
  /** 0 or undefined: a free port. */
  readonly port?: number | undefined;
  /** The secret of the cluster; model workers without it are refused. */
  readonly token: string;
  readonly transport?: Transport | undefined;
  /** False: computes everything after the keys of a step have arrived, a baseline for comparisons; true by default. */
  readonly overlaps?: boolean | undefined;
}

/** Serves the steps of model workers over one shard of the KV heads. */
export class AttentionWorker {
  /** Host and port for `WorkerLink`. */
  readonly address: string;
  readonly #native: NativeModule;
  readonly #handle: number;

  /** @throws if it cannot listen at the address */
  constructor(options: AttentionWorkerOptions) {
    const { backend, pool, host, port = 0, token, transport = 'auto', overlaps = true } = options;
    this.#native = backend.native;
    const address = [host, port, transportCodes[transport], keyOf(token)] as const;
    this.#handle = this.#native.createAttentionWorker(backend.handle, pool, ...address, Number(overlaps));
    this.address = `${host}:${this.#native.attentionWorkerPort(this.#handle)}`;
  }

  get counts(): AttentionWorkerCounts {
    return this.#native.attentionWorkerCounts(this.#handle);
  }

  /**
   * Copies its shard of pages of a pool of this process, in order, while no attention call needs its threads.
   * @param pages (n, 2): page of the pool, page of the worker @returns number of the pull
   */
  pull(pool: KvPoolHandle, shard: number, pages: Int32Array): number {
    return this.#native.pullPages(this.#handle, pool, shard, pages);
  }

  /**
   * The same for each slot of a receive buffer when it is received, until the pull is cancelled.
   * @param pages (slots): of the worker
   */
  pullReceived(receiveBuffer: number, shard: number, pages: Int32Array): number {
    return this.#native.pullReceived(this.#handle, receiveBuffer, shard, pages);
  }

  /** True once all its pages are there, or all that were received. */
  isPulled(pull: number): boolean {
    return this.#native.isPulled(this.#handle, pull);
  }

  /** When it returns, nothing more of the pull is written. */
  cancelPull(pull: number): void {
    this.#native.cancelPull(this.#handle, pull);
  }

  /** Pulls within a process do not break. */
  readonly isBroken = false;

  /** Closes its connections, after running calls have ended. */
  close(): void {
    this.#native.freeAttentionWorker(this.#handle);
  }
}

/**
 * `ranges` has the bits of one instance. `prev-new` is the sum of the paper (Lamina, section 4.2): one partial of all
 * earlier keys and one of the row's own key, for sequences of one row.
 */
export const attentionForms = ['ranges', 'prev-new'] as const;
export type AttentionForm = (typeof attentionForms)[number];

export interface WorkerLinkOptions {
  readonly backend: NativeBackend;
  /** Form of the attention worker's pages. */
  readonly shard: Pick<KvPoolSpec, 'type' | 'kvHeads' | 'headDim'>;
  /** Host and port of the attention worker. */
  readonly address: string;
  readonly token: string;
  readonly transport?: Transport | undefined;
  /** How attention over earlier keys and over keys of the step combine; `ranges` by default. */
  readonly form?: AttentionForm | undefined;
  /** The link breaks if neither a result nor a heartbeat arrives for this long; 20,000 by default. */
  readonly deadlineMs?: number | undefined;
  /** The first page of the attention worker that the link uses: links for several shards have pages of their own. 0 by default. */
  readonly firstPage?: number | undefined;
}

/** A model worker's connection to one attention worker, for `Step.attentionWorkers`. */
export class WorkerLink {
  /** Valid in every thread of the process until `close`. */
  readonly handle: number;
  /** Pages of the attention worker. */
  readonly pages: number;
  readonly #native: NativeModule;

  /**
   * @param handle of an open link
   * @throws if the attention worker does not answer, has another token, other pages or another instruction set, or
   * serves another process
   */
  constructor(options: WorkerLinkOptions, handle = options.backend.native.openWorkerLink(...argumentsOf(options))) {
    this.#native = options.backend.native;
    this.handle = handle;
    this.pages = this.#native.workerLinkPages(this.handle);
  }

  /** Opens a link in a thread of its own. @returns the link, undefined while the attempt lasts; it throws as the constructor does */
  static begin(options: WorkerLinkOptions): () => WorkerLink | undefined {
    const { native } = options.backend;
    const attempt = native.beginWorkerLink(...argumentsOf(options));
    return () => {
      const handle = native.pollWorkerLink(attempt);
      return handle === 0 ? undefined : new WorkerLink(options, handle);
    };
  }

  /** A broken link stays broken: open another. */
  get isBroken(): boolean {
    return this.#native.workerLinkBroken(this.handle);
  }

  get counts(): WorkerLinkCounts {
    return this.#native.workerLinkCounts(this.handle);
  }

  close(): void {
    this.#native.closeWorkerLink(this.handle);
  }
}

/**
 * Sends pages of this process to an attention worker of another process, which stores them while no attention call needs
 * its threads. It has the pulls of `AttentionWorker`.
 */
export class ShardSender {
  readonly #native: NativeModule;
  readonly #link: WorkerLink;
  readonly #handle: number;

  /** @param link without steps, which closes with the sender @param steps links to the same worker that run steps */
  constructor({ native }: NativeBackend, link: WorkerLink, steps: readonly WorkerLink[] = []) {
    this.#native = native;
    this.#link = link;
    this.#handle = native.createShardSender(link.handle);
    for (const { handle } of steps) native.precedeSteps(this.#handle, handle);
  }

  /** Pages that the worker has stored. */
  get counts(): { readonly pulledPages: number } {
    return { pulledPages: this.#native.shardPagesSent(this.#handle) };
  }

  /** True once pages cannot reach the worker: it is lost. */
  get isBroken(): boolean {
    return this.#link.isBroken;
  }

  pull(pool: KvPoolHandle, shard: number, pages: Int32Array): number {
    return this.#native.sendShard(this.#handle, pool, shard, pages);
  }

  pullReceived(receiveBuffer: number, shard: number, pages: Int32Array): number {
    return this.#native.sendReceivedShard(this.#handle, receiveBuffer, shard, pages);
  }

  isPulled(pull: number): boolean {
    return this.#native.isShardSent(this.#handle, pull);
  }

  /** Returns at once. Pages on their way arrive before the next step of the links, and before pages that are sent later. */
  cancelPull(pull: number): void {
    this.#native.cancelShard(this.#handle, pull);
  }

  close(): void {
    this.#native.freeShardSender(this.#handle);
    this.#link.close();
  }
}

function argumentsOf(options: WorkerLinkOptions): WorkerLinkArguments {
  const { backend, shard, address, token, transport = 'auto', form = 'ranges' } = options;
  const { deadlineMs = 20_000, firstPage = 0 } = options;
  const cut = address.lastIndexOf(':');
  return [
    ...([backend.handle, kvTypeCodes[shard.type], shard.kvHeads, shard.headDim] as const),
    ...([address.slice(0, cut), Number(address.slice(cut + 1)), transportCodes[transport]] as const),
    ...([keyOf(token), deadlineMs, attentionForms.indexOf(form), firstPage] as const),
  ];
}

function keyOf(token: string): Uint8Array {
  return Uint8Array.from(createHash('sha256').update('kvasir attention workers 1\0').update(token).digest());
}
