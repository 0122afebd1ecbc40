// An attention worker in another process: the link of the model worker to it, which is opened again after it broke.
import { WorkerLink } from '../kernel/native/attention-workers.ts';
import type { NativeBackend } from '../kernel/native/native.ts';
import type { WorkerLinkCounts } from '../util/counts.ts';
import { noLinkCounts, sumOfLinkCounts } from './link-counts.ts';
import type { KvShape } from './load-model.ts';

export interface RemoteAttentionWorkerOptions {
  /** The backend of the model worker. */
  readonly backend: NativeBackend;
  readonly kv: KvShape;
  /** Attention workers of the instance, which share the KV heads equally. */
  readonly workers: number;
  /** Host and port of the worker. */
  readonly address: string;
  /** The secret that both processes have. */
  readonly token: string;
}

export class RemoteAttentionWorker {
  readonly #options: RemoteAttentionWorkerOptions;
  /** Of links that are closed. */
  #earlier = noLinkCounts;
  #link: WorkerLink | undefined;
  /** Pages of the worker. */
  readonly pages: number;

  /** @throws Error if the worker does not answer, or holds other KV heads */
  constructor(options: RemoteAttentionWorkerOptions) {
    this.#options = options;
    this.#link = this.#open();
    this.pages = this.#link.pages;
  }

  /** No handle has the number 0: steps with it are unanswered. */
  get handle(): number {
    return this.#link?.handle ?? 0;
  }

  get isLost(): boolean {
    return this.#link === undefined;
  }

  get counts(): WorkerLinkCounts {
    return this.#link === undefined ? this.#earlier : sumOfLinkCounts(this.#earlier, this.#link.counts);
  }

  /** Closes a broken link. True if it was broken. */
  closeIfBroken(): boolean {
    if (this.#link?.isBroken !== true) return false;
    this.#earlier = this.counts;
    this.#link.close();
    this.#link = undefined;
    return true;
  }

  /**
   * Connects to the process that has the address now, and takes its pages as empty. @returns why that failed; undefined:
   * it did not
   */
  restart(): string | undefined {
    try {
      const link = this.#open();
      if (link.pages < this.pages) {
        link.close();
        return `it has ${link.pages} pages, and had ${this.pages}`;
      }
      this.#link = link;
      return undefined;
    } catch (error) {
      return error instanceof Error ? error.message : String(error);
    }
  }

  #open(): WorkerLink {
    const { backend, kv, workers, address, token } = this.#options;
    const shard = { type: kv.type, kvHeads: kv.kvHeads / workers, headDim: kv.headDim };
    return new WorkerLink({ backend, shard, address, token });
  }
}
