// Simulations on worker threads: as many at once as there are cores. A result does not depend on the number of threads.
import { existsSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { Worker } from 'node:worker_threads';
import { UsageError } from '../../usage-error.ts';
import type { Report, SimulationOptions } from '../simulated-run.ts';
import { sweptReport } from './rate-search.ts';

export interface SimulationCall {
  readonly call: number;
  /** Without outputs. */
  readonly options: SimulationOptions;
}

export type SimulationResult =
  | { readonly call: number; readonly report: Report }
  | { readonly call: number; readonly message: string; readonly isUsage: boolean };

interface PendingCall extends SimulationCall {
  readonly resolve: (report: Report) => void;
  readonly reject: (error: Error) => void;
}

/** Time of simulations on the calling thread after which other threads are worth their start. */
const startAfterMs = 2000;

const compiled = new URL('./simulation-worker.js', import.meta.url);

export class SimulationThreads {
  /** Simulations at once. 1: they run one after another on the calling thread, as always from sources that are not compiled. */
  readonly size: number;
  #calls = 0;
  readonly #queue: PendingCall[] = [];
  readonly #idle: Worker[] = [];
  readonly #running = new Map<Worker, PendingCall>();
  #leftMs: number;
  #isBusy = false;

  readonly #entry: URL;

  /**
   * @param startsAtOnce false: the first calls run on the calling thread, and others only if those take long
   * @param entry module of a thread
   */
  constructor({
    size = availableParallelism(),
    startsAtOnce,
    entry = compiled,
  }: {
    readonly size?: number | undefined;
    readonly startsAtOnce: boolean;
    readonly entry?: URL;
  }) {
    this.#entry = entry;
    this.size = existsSync(entry) ? size : 1;
    this.#leftMs = this.size === 1 ? Number.POSITIVE_INFINITY : startsAtOnce ? 0 : startAfterMs;
  }

  /** Runs a simulation without its outputs. Calls start in their order. */
  run(options: SimulationOptions): Promise<Report> {
    return new Promise((resolve, reject) => {
      this.#queue.push({ call: this.#calls++, options, resolve, reject });
      if (this.#leftMs > 0) void this.#runHere();
      else this.#startNext();
    });
  }

  /** Runs calls on this thread until threads are worth their start. */
  async #runHere(): Promise<void> {
    if (this.#isBusy) return;
    this.#isBusy = true;
    for (
      let next = this.#queue.shift();
      next !== undefined;
      next = this.#leftMs > 0 ? this.#queue.shift() : undefined
    ) {
      const startedMs = performance.now();
      await sweptReport(next.options).then(next.resolve, next.reject);
      this.#leftMs -= performance.now() - startedMs;
    }
    this.#isBusy = false;
    for (let i = 0; i < this.size && this.#queue.length > 0 && this.#leftMs <= 0; i++) this.#startNext();
  }

  /** Ends all threads; calls that run or wait are never answered. */
  async close(): Promise<void> {
    const workers = [...this.#idle, ...this.#running.keys()];
    this.#queue.length = 0;
    this.#running.clear();
    await Promise.all(workers.map((worker) => worker.terminate()));
  }

  #startNext(): void {
    const isFull = this.#idle.length === 0 && this.#running.size >= this.size;
    const next = isFull ? undefined : this.#queue.shift();
    if (next === undefined) return;
    const worker = this.#idle.pop() ?? this.#create();
    this.#running.set(worker, next);
    const { call, options } = next;
    try {
      worker.postMessage({ call, options } satisfies SimulationCall);
    } catch (error) {
      this.#end(worker, (running) => running.reject(error as Error));
    }
  }

  #create(): Worker {
    // Runs allocate short-lived objects: with a larger young generation they are collected less often.
    const worker = new Worker(this.#entry, { resourceLimits: { maxYoungGenerationSizeMb: 96 } });
    worker.on('message', (result: SimulationResult) => {
      this.#idle.push(worker);
      this.#end(worker, ({ resolve, reject }) => {
        if ('report' in result) resolve(result.report);
        else reject(result.isUsage ? new UsageError(result.message) : new Error(result.message));
      });
    });
    // A thread ends on its own only if its memory does not suffice or its code is broken.
    const ended = (why: string) => {
      const at = this.#idle.indexOf(worker);
      if (at !== -1) this.#idle.splice(at, 1);
      this.#end(worker, ({ reject }) => reject(new Error(`Cannot simulate: its thread has ended: ${why}`)));
    };
    worker.once('error', ({ message }) => ended(message));
    worker.once('exit', (code) => ended(`exit code ${code}`));
    return worker;
  }

  #end(worker: Worker, answer: (call: PendingCall) => void): void {
    const running = this.#running.get(worker);
    this.#running.delete(worker);
    if (running !== undefined) answer(running);
    this.#startNext();
  }
}
