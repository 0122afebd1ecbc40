// The attention workers of an instance: links for its steps, and the replacement of lost workers.
import type { InstanceEvent } from '../../core/protocol/events.ts';
import type { AttentionWorkerSnapshot } from '../../core/protocol/ports.ts';
import type { WorkerLinkCounts } from '../../util/counts.ts';

/** An attention worker and the link to it. */
export interface LinkedWorker {
  /** Handle of the link; 0 while the worker is lost. */
  readonly handle: number;
  readonly isLost: boolean;
  readonly counts: WorkerLinkCounts;
  /** True once for each broken link, which it closes. */
  breaks(): boolean;
  /** True if a worker with empty pages has the place of the lost one. */
  restart(): boolean;
}

/** Time between two attempts to replace a lost worker. */
const retryUs = 1_000_000;

export class LiveAttentionWorkers {
  readonly #workers: readonly LinkedWorker[];
  #handles: Int32Array;
  #retryAtUs = Number.POSITIVE_INFINITY;

  /** @param workers in the order of their KV heads */
  constructor(workers: readonly LinkedWorker[]) {
    this.#workers = workers;
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

  #linkHandles(): Int32Array {
    return Int32Array.from(this.#workers, ({ handle }) => handle);
  }
}
