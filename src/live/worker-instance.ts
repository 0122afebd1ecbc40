// An inference port over an instance on a worker thread: the conductor decides at once on this thread, the instance computes on its own.
import { Worker } from 'node:worker_threads';
import { sizeOf } from '../cluster/admission.ts';
import { Conductor } from '../cluster/conductor.ts';
import type { ConductorEffect } from '../cluster/effects.ts';
import type { ConductorEvent } from '../cluster/messages.ts';
import type {
  GenerationEvent,
  GenerationRequest,
  InferencePort,
  InstanceSnapshot,
  RequestId,
} from '../cluster/ports.ts';
import type { FromInstance, InstanceDescription, InstanceThreadData, ToInstance } from './protocol.ts';

const onlyInstance = 0;

const notReady: InstanceSnapshot = {
  ready: false,
  waiting: 0,
  running: 0,
  pages: { total: 0, used: 0, cached: 0, free: 0 },
  promptTokens: 0,
  cachedTokens: 0,
  computedPromptTokens: 0,
  generatedTokens: 0,
  preemptions: 0,
  steps: 0,
  stepMsTotal: 0,
  evictedBlocks: 0,
};

const stillLoading: GenerationEvent = {
  kind: 'failed',
  code: 'NOT_READY',
  message: 'Cannot admit request: the model is still loading: /ready tells when it is there',
  retryAfterMs: 1000,
};

export interface WorkerInstanceOptions<Settings> {
  /** Module that the thread runs: it loads the model and starts an InstanceLoop. */
  readonly entry: URL;
  readonly settings: Settings;
  /** Requests accepted at once. */
  readonly queueMax: number;
  readonly log: (message: string) => void;
}

export class WorkerInstance implements InferencePort {
  readonly #worker: Worker;
  readonly #queueMax: number;
  readonly #abort: Int32Array;
  readonly #log: (message: string) => void;
  readonly #sinks = new Map<RequestId, (event: GenerationEvent) => void>();
  readonly #ready: Promise<InstanceDescription>;
  readonly #exited: Promise<void>;
  /** undefined until the instance is ready. */
  #conductor: Conductor<GenerationRequest> | undefined;
  #snapshot = notReady;
  #draining = false;
  #drained: (() => void) | undefined;

  constructor(options: WorkerInstanceOptions<unknown>) {
    const abort = new SharedArrayBuffer(4);
    this.#abort = new Int32Array(abort);
    this.#log = options.log;
    this.#queueMax = options.queueMax;
    const workerData: InstanceThreadData<unknown> = { settings: options.settings, abort };
    this.#worker = new Worker(options.entry, { workerData });
    this.#ready = this.#awaitReady();
    // Whoever calls `ready` sees the failure; nobody else has to.
    this.#ready.catch(() => {});
    this.#exited = new Promise((resolve) => {
      this.#worker.once('exit', () => {
        this.#lost();
        resolve();
      });
    });
  }

  /** Resolves once the model is loaded. @throws Error saying in one line why it cannot be */
  ready(): Promise<InstanceDescription> {
    return this.#ready;
  }

  /** Resolves when the thread has ended, asked to or not. */
  get ended(): Promise<void> {
    return this.#exited;
  }

  submit(request: GenerationRequest, sink: (event: GenerationEvent) => void): void {
    if (this.#conductor === undefined) {
      sink(stillLoading);
      return;
    }
    this.#sinks.set(request.id, sink);
    this.#feed({ kind: 'submit', request });
  }

  overload(ahead: number): Extract<GenerationEvent, { kind: 'failed' }> | undefined {
    return this.#conductor?.overload(nowUs(), ahead);
  }

  cancel(id: RequestId): void {
    if (this.#sinks.delete(id)) this.#feed({ kind: 'cancel', id });
  }

  snapshot(): InstanceSnapshot {
    return this.#draining ? { ...this.#snapshot, ready: false } : this.#snapshot;
  }

  drain(): Promise<void> {
    this.#draining = true;
    if (this.#conductor === undefined) return Promise.resolve();
    return new Promise((resolve) => {
      this.#drained = resolve;
      this.#feed({ kind: 'drain' });
    });
  }

  /** Ends the thread; requests under way fail. */
  async close(): Promise<void> {
    this.#send({ kind: 'close' });
    Atomics.store(this.#abort, 0, 1);
    await this.#exited;
  }

  #awaitReady(): Promise<InstanceDescription> {
    return new Promise((resolve, reject) => {
      this.#worker.on('message', (message: FromInstance) => {
        if (message.kind === 'events') {
          this.#hear(message);
          return;
        }
        if (message.kind === 'unable') {
          reject(new Error(message.message));
          return;
        }
        this.#snapshot = message.snapshot;
        const { capacityTokens } = message.description;
        this.#conductor = new Conductor({ instances: [{ capacityTokens }], queueMax: this.#queueMax, size: sizeOf });
        resolve(message.description);
      });
      this.#worker.once('error', (error) => {
        this.#log(`Instance thread failed: ${error.stack ?? error.message}`);
        reject(error);
      });
      this.#worker.once('exit', (code) =>
        reject(new Error(`Cannot start the instance: its thread ended with code ${code}`)),
      );
    });
  }

  #hear({ events, snapshot }: Extract<FromInstance, { kind: 'events' }>): void {
    this.#snapshot = snapshot;
    for (const [id, event] of events) this.#feed({ kind: 'heard', instance: onlyInstance, id, event });
  }

  #lost(): void {
    this.#snapshot = { ...this.#snapshot, ready: false };
    this.#feed({ kind: 'instanceLost', instance: onlyInstance });
  }

  #feed(event: ConductorEvent): void {
    for (const effect of this.#conductor?.step(nowUs(), event) ?? []) this.#carryOut(effect);
  }

  #carryOut(effect: ConductorEffect): void {
    switch (effect.kind) {
      case 'emit':
        this.#emit(effect.id, effect.event);
        break;
      case 'forward':
        this.#send({ kind: 'submit', request: effect.request });
        break;
      case 'cancel':
        this.#send({ kind: 'cancel', id: effect.id });
        if (effect.interrupt) Atomics.store(this.#abort, 0, 1);
        break;
      case 'askBlocks':
        // The only instance keeps no journal.
        break;
      case 'drained':
        this.#drained?.();
        break;
      case 'ignored':
        this.#log(effect.message);
    }
  }

  #emit(id: RequestId, event: GenerationEvent): void {
    const sink = this.#sinks.get(id);
    if (event.kind === 'finished' || event.kind === 'failed') this.#sinks.delete(id);
    try {
      sink?.(event);
    } catch (error) {
      // One request's trouble must not end those that are heard after it.
      this.#log(`Request ${id}: its events cannot be taken: ${error instanceof Error ? error.stack : String(error)}`);
      this.cancel(id);
    }
  }

  #send(message: ToInstance): void {
    this.#worker.postMessage(message);
  }
}

function nowUs(): number {
  return Math.round(performance.now() * 1000);
}
