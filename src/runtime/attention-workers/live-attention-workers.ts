// The attention workers of an instance: links for its steps, and the replacement of lost workers.
import type { InstanceEvent } from '../../core/protocol/events.ts';
import type { AttentionWorkerSnapshot } from '../../core/protocol/ports.ts';
import type { WorkerLinkCounts } from '../../util/counts.ts';

/** An attention worker and the links to it. */
export interface LinkedWorker {
  /** (links): handles, one for each batch of a step; 0 while the worker is lost. */
  readonly handles: readonly number[];
  readonly isLost: boolean;
  readonly counts: WorkerLinkCounts;
  /** Closes broken links, and the worker with them. True if one was broken. */
  closeIfBroken(): boolean;
  /** Replaces the lost worker by one with empty pages: begins an attempt, or asks for the outcome of the one in progress. */
  reopen(): 'open' | 'opening' | { readonly why: string };
}

/** Time between two attempts to replace a lost worker, and between two looks at an attempt in progress. */
const [retryUs, lookUs] = [1_000_000, 10_000];

export class LiveAttentionWorkers {
  readonly #workers: readonly LinkedWorker[];
  readonly #log: (message: string) => void;
  /** (links): those of each batch. */
  #handles: readonly Int32Array[];
  /** (workers): when to begin an attempt, or to look at the one in progress. */
  readonly #dueUs: number[];
  /** (workers): why the first attempt after the loss failed is in the log. */
  readonly #hasLogged: boolean[];

  /** Called when a new worker has the place of a lost one, before steps run over it. */
  onReplaced: (worker: number) => void = () => {};

  /** @param workers in the order of their KV heads, with equally many links */
  constructor(workers: readonly LinkedWorker[], log: (message: string) => void) {
    this.#workers = workers;
    this.#log = log;
    this.#dueUs = workers.map(() => Number.POSITIVE_INFINITY);
    this.#hasLogged = workers.map(() => false);
    this.#handles = this.#linkHandles();
  }

  /** (batches): links for `Step.attentionWorkers`. */
  get handles(): readonly Int32Array[] {
    return this.#handles;
  }

  get nextUs(): number {
    return Math.min(...this.#dueUs);
  }

  /** Workers that were lost, and those that have been replaced. */
  poll(nowUs: number): readonly InstanceEvent[] {
    const events: InstanceEvent[] = [];
    for (const [index, worker] of this.#workers.entries()) {
      const hasBroken = worker.closeIfBroken();
      if (hasBroken) events.push({ kind: 'attentionWorkerLost', worker: index });
      if (hasBroken) this.#hasLogged[index] = false;
      if (hasBroken || nowUs >= this.#dueUs[index]) events.push(...this.#reopen(index, nowUs));
    }
    if (events.length > 0) this.#handles = this.#linkHandles();
    return events;
  }

  #reopen(index: number, nowUs: number): readonly InstanceEvent[] {
    const outcome = this.#workers[index].reopen();
    if (outcome === 'open') {
      this.#dueUs[index] = Number.POSITIVE_INFINITY;
      this.onReplaced(index);
      this.#log(`Attention worker ${index + 1} was lost and is replaced: its sequences are computed again`);
      return [{ kind: 'attentionWorkerReady', worker: index }];
    }
    this.#dueUs[index] = nowUs + (outcome === 'opening' ? lookUs : retryUs);
    if (outcome !== 'opening' && !this.#hasLogged[index]) {
      this.#hasLogged[index] = true;
      this.#log(`Attention worker ${index + 1} is lost, steps wait until it is replaced: ${outcome.why}`);
    }
    return [];
  }

  /** Adds the traffic with each worker to what the machine reports. */
  withCounts(snapshots: readonly AttentionWorkerSnapshot[]): readonly AttentionWorkerSnapshot[] {
    return snapshots.map((snapshot, worker) => ({ ...snapshot, ...this.#workers[worker]?.counts }));
  }

  #linkHandles(): readonly Int32Array[] {
    const of = this.#workers.map(({ handles }) => handles);
    return of[0].map((_, batch) => Int32Array.from(of, (handles) => handles[batch]));
  }
}
