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
  /** All pages are in the staging pool. */
  isComplete: boolean;
  /** (workers); undefined: none. */
  pulls: readonly (PagePull | undefined)[];
  /** It is reported to the instance. */
  isReported: boolean;
}

/** Poll interval of pulls while the instance sleeps. */
const pollMs = 1;

/**
 * A messenger whose receive buffers end at attention workers. Their pages are numbers of pages that every worker has.
 * Sends are not possible: the pages lie at the workers.
 */
export class PulledPages implements Messenger {
  readonly #inner: Messenger;
  readonly #staging: StagingPool;
  readonly #workers: readonly PullingWorker[];
  readonly #wake: () => void;
  readonly #free: number[];
  readonly #buffers = new Map<ReceiveBufferHandle, Staged>();
  #timer: NodeJS.Timeout | undefined;

  /** @param inner over the staging pool @param wake called when pulls have ended while the instance sleeps */
  constructor(inner: Messenger, staging: StagingPool, workers: readonly PullingWorker[], wake: () => void) {
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
    const pairs = Int32Array.from({ length: 2 * pages.length }, (_, i) => (i % 2 === 0 ? staged : pages)[i >> 1]);
    const buffer = this.#inner.localBuffer?.(handle);
    const received = Int32Array.from(pages);
    const pulls = this.#workers.map((worker) =>
      buffer === undefined ? undefined : worker.pullReceived(buffer, received),
    );
    this.#buffers.set(handle, { pages: pairs, isComplete: false, pulls, isReported: false });
    return handle;
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
      if (staged.isReported || !isPulled(staged)) continue;
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
      if (!staged.isComplete) continue;
      const pull = this.#workers[worker].pull(this.#staging.handle, staged.pages);
      staged.pulls = staged.pulls.map((earlier, at) => (at === worker ? pull : earlier));
      if (staged.isReported) pulls.push(pull);
    }
    return () => pulls.every((pull) => pull === undefined || pull.isDone || pull.isLost);
  }

  /** Workers that have pulled nothing yet, or were lost since, pull the whole prompt. */
  #pull({ pages, pulls }: Staged): Staged['pulls'] {
    return this.#workers.map((worker, i) =>
      pulls[i]?.isLost === false ? pulls[i] : worker.pull(this.#staging.handle, pages),
    );
  }

  /** Looks again while pulls are in progress. */
  #look(): void {
    if (this.#timer !== undefined) return;
    const waits = [...this.#buffers.values()].some(({ isComplete, isReported }) => isComplete && !isReported);
    if (!waits) return;
    this.#timer = setTimeout(() => {
      this.#timer = undefined;
      if ([...this.#buffers.values()].some((staged) => !staged.isReported && (isPulled(staged) || isBroken(staged))))
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

function isPulled({ isComplete, pulls }: Staged): boolean {
  return isComplete && pulls.every((pull) => pull?.isDone === true);
}
