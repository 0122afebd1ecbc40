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
  /** Closes a broken link, and the worker with it. True if the link was broken. */
  closeIfBroken(): boolean;
  /** Replaces the lost worker by one with empty pages. @returns why that failed; undefined: it did not */
  restart(): string | undefined;
}

/** Time between two attempts to replace a lost worker. */
const retryUs = 1_000_000;

export class LiveAttentionWorkers {
  readonly #workers: readonly LinkedWorker[];
  readonly #log: (message: string) => void;
  #handles: Int32Array;
  #retryAtUs = Number.POSITIVE_INFINITY;

  /** @param workers in the order of their KV heads */
  constructor(workers: readonly LinkedWorker[], log: (message: string) => void) {
    this.#workers = workers;
    this.#log = log;
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
    // One that fails again does not delay the others.
    const isDue = nowUs >= this.#retryAtUs;
    for (const [index, worker] of this.#workers.entries()) {
      const hasBroken = worker.closeIfBroken();
      if (hasBroken) events.push({ kind: 'attentionWorkerLost', worker: index });
      if (!worker.isLost || (!hasBroken && !isDue)) continue;
      const why = worker.restart();
      if (why === undefined) {
        events.push({ kind: 'attentionWorkerReady', worker: index });
        this.#log(`Attention worker ${index + 1} was lost and is replaced: its sequences are computed again`);
      } else {
        if (hasBroken) this.#log(`Attention worker ${index + 1} is lost, steps wait until it is replaced: ${why}`);
      }
    }
    if (!this.#workers.some(({ isLost }) => isLost)) this.#retryAtUs = Number.POSITIVE_INFINITY;
    else if (isDue || this.#retryAtUs === Number.POSITIVE_INFINITY) this.#retryAtUs = nowUs + retryUs;
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
