// Prompts of other instances on their way to attention workers: they are received in a staging pool, and each worker
// pulls its shard while no step needs it.

import type { Messenger, ReceiveBufferHandle } from '../transfer/messenger.ts';

/** Pages that a worker copies in its idle time. */
interface PagePull {
  /** All pages, or all received ones, are there. */
  readonly isDone: boolean;
  readonly isLost: boolean;
  /** The pages cannot reach the worker, and its loss was not noticed before. */
  readonly isBroken: boolean;
  /** Returns at once. The worker writes nothing of it during later steps, and nothing after later pulls. */
  cancel(): void;
}

export interface PullingWorker {
  /** @param pages (n, 2): page of the staging pool, page of the worker @returns undefined if the worker is lost */
  pull(pool: number, pages: Int32Array): PagePull | undefined;
  /** Pulls each page that the buffer receives, until the pull is cancelled. @param pages (slots): of the worker */
  pullReceived(receiveBuffer: number, pages: Int32Array): PagePull | undefined;
}

/** The staging pool: its handle, and its pages. */
export interface StagingPool {
  readonly handle: number;
  readonly pages: number;
}

/** A receive buffer. */
interface Staged {
  /** (n, 2): page of the staging pool, page of the workers. */
  readonly pages: Int32Array;
  /** Indices of the workers that pull it. */
  readonly workers: readonly number[];
  /** All pages are in the staging pool. */
  isComplete: boolean;
  /** (workers that pull it); undefined: none. */
  pulls: readonly (PagePull | undefined)[];
  /** It is reported to the instance. */
  isReported: boolean;
}

/** Poll interval of pulls while the instance sleeps. */
const pollMs = 1;

/**
 * A messenger whose receive buffers end at attention workers. Their pages are numbers of pages that every worker has, or,
 * partitioned by requests, of pages of one worker. Sends are not possible: the pages lie at the workers.
 */
export class PulledPages implements Messenger {
  readonly #inner: Messenger;
  readonly #staging: StagingPool;
  readonly #workers: readonly PullingWorker[];
  readonly #wake: () => void;
  readonly #free: number[];
  readonly #buffers = new Map<ReceiveBufferHandle, Staged>();
  #timer: NodeJS.Timeout | undefined;

  /** Undefined: each page is one of every worker. */
  readonly #pagesPerWorker: number | undefined;

  /**
   * @param inner over the staging pool @param wake called when pulls have ended while the instance sleeps
   * @param pagesPerWorker partitioned by requests: each worker has so many consecutive page numbers
   */
  constructor(
    inner: Messenger,
    staging: StagingPool,
    workers: readonly PullingWorker[],
    wake: () => void,
    pagesPerWorker?: number,
  ) {
    this.#pagesPerWorker = pagesPerWorker;
    this.#inner = inner;
    this.#staging = staging;
    this.#workers = workers;
    this.#wake = wake;
    this.#free = Array.from({ length: staging.pages }, (_, page) => staging.pages - 1 - page);
  }

  get counts() {
    return this.#inner.counts;
  }

  get nextPoolStep(): number {
    return this.#inner.nextPoolStep;
  }

  /** Staging pages that no receive buffer has. */
  get freePages(): number {
    return this.#free.length;
  }

  open(pages: Int32Array): ReceiveBufferHandle {
    if (pages.length > this.#free.length)
      throw new Error(`Cannot receive ${pages.length} pages: ${this.#free.length} staging pages are free`);
    const staged = Int32Array.from(pages, () => this.#free.pop() ?? 0);
    const handle = this.#inner.open(staged);
    const { workers, received } = this.#placed(pages);
    const pairs = Int32Array.from({ length: 2 * pages.length }, (_, i) => (i % 2 === 0 ? staged : received)[i >> 1]);
    const buffer = this.#inner.localBuffer?.(handle);
    const pulls = workers.map((worker) =>
      buffer === undefined ? undefined : this.#workers[worker].pullReceived(buffer, received),
    );
    this.#buffers.set(handle, { pages: pairs, workers, isComplete: false, pulls, isReported: false });
    return handle;
  }

  /** The workers that pull these pages, and the numbers that the pages have there. */
  #placed(pages: Int32Array): { readonly workers: readonly number[]; readonly received: Int32Array } {
    const each = this.#pagesPerWorker;
    if (each === undefined) return { workers: [...this.#workers.keys()], received: Int32Array.from(pages) };
    const worker = Math.floor((pages[0] ?? 0) / each);
    return { workers: [worker], received: pages.map((page) => page - worker * each) };
  }

  arrivals(): undefined {}

  close(handle: ReceiveBufferHandle): void {
    const staged = this.#buffers.get(handle);
    if (staged === undefined) return;
    this.#buffers.delete(handle);
    for (const pull of staged.pulls) pull?.cancel();
    this.#inner.close(handle);
    for (let i = 0; i < staged.pages.length; i += 2) this.#free.push(staged.pages[i]);
  }

  /** Receive buffers with all pages at the workers, since the last call. */
  received(): readonly ReceiveBufferHandle[] {
    for (const handle of this.#inner.received()) {
      const staged = this.#buffers.get(handle);
      if (staged === undefined) continue;
      staged.isComplete = true;
      staged.pulls = this.#pull(staged);
    }
    const received: ReceiveBufferHandle[] = [];
    for (const [handle, staged] of this.#buffers) {
      if (staged.isReported || !this.#isPulled(staged)) continue;
      staged.isReported = true;
      received.push(handle);
    }
    this.#look();
    return received;
  }

  /**
   * A new worker has the place of a lost one, with empty pages: it pulls the prompts that the others have.
   * @returns true once it has those that the instance may use: steps wait for it
   */
  onReplaced(worker: number): () => boolean {
    const pulls: (PagePull | undefined)[] = [];
    for (const staged of this.#buffers.values()) {
      // A prompt that is still received is pulled whole once it is complete.
      const index = staged.workers.indexOf(worker);
      if (!staged.isComplete || index === -1) continue;
      const pull = this.#workers[worker].pull(this.#staging.handle, staged.pages);
      staged.pulls = staged.pulls.map((earlier, at) => (at === index ? pull : earlier));
      if (staged.isReported) pulls.push(pull);
    }
    return () => pulls.every((pull) => pull === undefined || pull.isDone || pull.isLost);
  }

  /** Workers that have pulled nothing yet, or were lost since, pull the whole prompt. */
  #pull({ pages, workers, pulls }: Staged): Staged['pulls'] {
    return workers.map((worker, i) =>
      pulls[i]?.isLost === false ? pulls[i] : this.#workers[worker].pull(this.#staging.handle, pages),
    );
  }

  /** Partitioned by requests, a prompt does not wait for a lost worker: it is computed at another one. */
  #isPulled({ isComplete, pulls }: Staged): boolean {
    const byRequests = this.#pagesPerWorker !== undefined;
    return isComplete && pulls.every((pull) => pull?.isDone === true || (byRequests && pull?.isLost !== false));
  }

  /** Looks again while pulls are in progress. */
  #look(): void {
    if (this.#timer !== undefined) return;
    const waits = [...this.#buffers.values()].some(({ isComplete, isReported }) => isComplete && !isReported);
    if (!waits) return;
    this.#timer = setTimeout(() => {
      this.#timer = undefined;
      if (
        [...this.#buffers.values()].some((staged) => !staged.isReported && (this.#isPulled(staged) || isBroken(staged)))
      )
        this.#wake();
      else this.#look();
    }, pollMs);
  }

  unreachable(): readonly ReceiveBufferHandle[] {
    return this.#inner.unreachable();
  }

  send(): void {
    throw new Error('Cannot send pages: they lie at attention workers');
  }

  stop(handle: ReceiveBufferHandle): void {
    this.#inner.stop(handle);
  }

  pending(handle: ReceiveBufferHandle): number {
    return this.#inner.pending(handle);
  }

  transportTo(handle: ReceiveBufferHandle) {
    return this.#inner.transportTo(handle);
  }
}

/** The instance notices the loss of the worker when it is woken. */
function isBroken({ pulls }: Staged): boolean {
  return pulls.some((pull) => pull?.isBroken === true);
}
