// The attention workers of an instance: links for its steps, and the replacement of lost workers.
import { firstPage, newHome, pagesPerShard } from '../../core/attention-workers/shard-homes.ts';
import type { InstanceEvent } from '../../core/protocol/events.ts';
import type { AttentionWorkerSnapshot } from '../../core/protocol/ports.ts';
import type { PulledCounts } from '../../engine/linked-attention-worker.ts';
import type { WorkerLinkCounts } from '../../util/counts.ts';

/** An attention worker and the links to it. */
export interface LinkedWorker {
  /** (links): handles, one for each batch of a step; 0 while the worker is lost. */
  readonly handles: readonly number[];
  readonly isLost: boolean;
  readonly counts: WorkerLinkCounts;
  /** Undefined: it pulls nothing. */
  readonly pulled?: PulledCounts | undefined;
  /** Closes broken links, and the worker with them. True if one was broken. */
  closeIfBroken(): boolean;
  /** Closes all links. */
  close(): void;
  /**
   * Replaces the lost worker by one with empty pages: begins an attempt, or asks for the outcome of the one in progress.
   * @param home the other worker that takes the shard; undefined: the worker's own place
   */
  reopen(home?: ShardHome): 'open' | 'opening' | { readonly why: string };
}

/** Pages of another worker. */
export interface ShardHome {
  readonly worker: number;
  readonly firstPage: number;
  readonly pages: number;
}

/** When other workers take the shard of a lost one, and the pages that each worker has. */
export interface ShardMoves {
  readonly afterUs: number;
  readonly pages: number;
}

/** Time between two attempts to replace a lost worker, and between two polls of an attempt in progress. */
const [retryUs, pollUs] = [1_000_000, 10_000];

export class LiveAttentionWorkers {
  readonly #workers: readonly LinkedWorker[];
  readonly #log: (message: string) => void;
  readonly #replicas: number;
  /** (links): those of each batch. */
  #handles: readonly Int32Array[];
  /** (workers): when to begin an attempt, or to poll the one in progress. */
  readonly #dueUs: number[];
  /** (workers): why the first attempt after the loss failed is in the log. */
  readonly #hasLogged: boolean[];
  /** Undefined: a lost worker is waited for. */
  readonly #moves: ShardMoves | undefined;
  /** (shards of the KV heads): the worker that holds each. */
  readonly #homes: number[];
  /** (workers): when the worker was lost. */
  readonly #lostUs: number[];
  /** (workers): the attempt in progress or the last one since the loss, and the other worker where it opens the shard. */
  readonly #attempts: ({ readonly home: ShardHome | undefined; readonly isOver: boolean } | undefined)[];

  /** (workers): a new worker that receives pages: whether it has all that steps need. */
  readonly #filling: ((() => boolean) | undefined)[];

  /** Called when a new worker has the place of a lost one. Steps run over it once the returned function is true. */
  onReplaced: (worker: number) => () => boolean = () => () => true;

  /** @param workers in the order of their KV heads, with equally many links @param replicas that wait at the same time */
  constructor(workers: readonly LinkedWorker[], log: (message: string) => void, moves?: ShardMoves, replicas = 1) {
    this.#workers = workers;
    this.#replicas = replicas;
    this.#log = log;
    this.#moves = moves;
    this.#homes = [...workers.keys()];
    this.#lostUs = workers.map(() => 0);
    this.#attempts = workers.map(() => undefined);
    this.#filling = workers.map(() => undefined);
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
    const broken = this.#closeBroken();
    for (const index of this.#workers.keys()) {
      const hasBroken = broken.includes(index);
      if (hasBroken) {
        // A worker without its pages was not reported as ready.
        if (this.#filling[index] === undefined) events.push({ kind: 'attentionWorkerLost', worker: index });
        this.#filling[index] = undefined;
        this.#hasLogged[index] = false;
        this.#lostUs[index] = nowUs;
        this.#attempts[index] = undefined;
      }
      if (hasBroken || nowUs >= this.#dueUs[index]) events.push(...this.#reopen(index, nowUs));
    }
    if (events.length > 0) this.#handles = this.#linkHandles();
    return events;
  }

  /** Closes links that are broken, and all others to the same worker: their last frames may still be on their way. */
  #closeBroken(): readonly number[] {
    const broken = [...this.#workers.keys()].filter((index) => this.#workers[index].closeIfBroken());
    const homes = new Set(broken.map((index) => this.#homes[index]));
    if (homes.size === 0) return broken;
    const beside = [...this.#workers.keys()].filter(
      (index) => homes.has(this.#homes[index]) && !this.#workers[index].isLost,
    );
    for (const index of beside) this.#workers[index].close();
    return [...broken, ...beside];
  }

  #reopen(index: number, nowUs: number): readonly InstanceEvent[] {
    if (this.#filling[index] !== undefined) return this.#filled(index, nowUs);
    const last = this.#attempts[index];
    const home = last?.isOver === false ? last.home : this.#nextHome(index, nowUs);
    const outcome = this.#workers[index].reopen(home);
    this.#attempts[index] = { home, isOver: outcome !== 'opening' };
    if (outcome === 'open') {
      this.#homes[index] = home?.worker ?? index;
      this.#filling[index] = this.onReplaced(index);
      return this.#filled(index, nowUs);
    }
    this.#dueUs[index] = nowUs + (outcome === 'opening' ? pollUs : retryUs);
    if (outcome !== 'opening' && !this.#hasLogged[index]) {
      this.#hasLogged[index] = true;
      this.#log(`Attention worker ${index + 1} is lost and not replaced yet: ${outcome.why}`);
    }
    return [];
  }

  /** The open worker is reported once it has its pages. */
  #filled(index: number, nowUs: number): readonly InstanceEvent[] {
    const isFilled = this.#filling[index]?.() !== false;
    this.#dueUs[index] = isFilled ? Number.POSITIVE_INFINITY : nowUs + pollUs;
    if (!isFilled) return [];
    this.#filling[index] = undefined;
    const home = this.#attempts[index]?.home;
    const by = home === undefined ? 'is replaced' : `its shard moves to worker ${home.worker + 1}`;
    this.#log(`Attention worker ${index + 1} was lost and ${by}: its sequences are computed again`);
    const pages = this.#moves && pagesPerShard(this.#homes, this.#moves.pages);
    return [{ kind: 'attentionWorkerReady', worker: index, ...(pages !== undefined && { pages }) }];
  }

  /** Where the next attempt opens the shard: after the time, at another worker and at its own place in turn. */
  #nextHome(index: number, nowUs: number): ShardHome | undefined {
    if (this.#moves === undefined || nowUs < this.#lostUs[index] + this.#moves.afterUs) return undefined;
    if (this.#attempts[index]?.home !== undefined) return undefined;
    const ready = this.#workers.map(({ isLost }) => !isLost);
    const worker = newHome(index, this.#homes, ready);
    if (worker === undefined) return undefined;
    const { pages } = this.#moves;
    const homes = this.#homes.map((home, shard) => (shard === index ? worker : home));
    const first = firstPage(index, worker, homes.length, pages);
    return { worker, firstPage: first, pages: pagesPerShard(homes, pages) };
  }

  /** Adds the traffic with each worker to what the machine reports. */
  withCounts(snapshots: readonly AttentionWorkerSnapshot[]): readonly AttentionWorkerSnapshot[] {
    return snapshots.map((snapshot, worker) => {
      const { counts, pulled } = this.#workers[worker] ?? {};
      // The mean over the replicas: they wait at the same time.
      return { ...snapshot, ...counts, ...(counts && { waitSeconds: counts.waitSeconds / this.#replicas }), ...pulled };
    });
  }

  #linkHandles(): readonly Int32Array[] {
    const of = this.#workers.map(({ handles }) => handles);
    return of[0].map((_, batch) => Int32Array.from(of, (handles) => handles[batch]));
  }
}
