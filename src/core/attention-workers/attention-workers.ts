// The attention workers of an instance: its steps wait while one is lost, and what the lost one held is computed again.

import type { InstanceEvent } from '../protocol/events.ts';
import type { AttentionWorkerSnapshot, InstanceSnapshot } from '../protocol/ports.ts';
import type { SequencePlacement } from '../scheduler/batching/sequence-placement.ts';
import { type Handled, type Identified, InstanceComponent, type InstanceContext } from '../scheduler/component.ts';
import type { RunningRequest } from '../scheduler/executor/executor.ts';
import { chooseWorker, type KvPartition } from './choose-worker.ts';

export interface AttentionWorkersConfig {
  readonly workers: number;
  /** `heads` by default. */
  readonly partition?: KvPartition | undefined;
}

type AttentionWorkerEvent = Extract<
  InstanceEvent<unknown, unknown>,
  { kind: 'attentionWorkerLost' | 'attentionWorkerReady' }
>;

/**
 * If a worker is lost, the sequences with blocks there return to the waiting list and are computed again from their
 * prompts and output tokens, and the prefix cache forgets its blocks (Lamina, section 5, fault tolerance). Partitioned by
 * heads these are all sequences, and steps wait until the worker is replaced. Partitioned by requests, the sequences of
 * the lost worker go to the others.
 */
export class AttentionWorkers<Request extends Identified, S extends RunningRequest> extends InstanceComponent<
  Request,
  S
> {
  readonly #context: InstanceContext<Request, S>;
  readonly #ready: boolean[];
  readonly #losses: number[];
  readonly #byRequests: boolean;
  /** Workers that have lost their blocks since the last step. */
  readonly #lost = new Set<number>();
  /** Pages that the instance may use; undefined: all. Fewer while some workers hold the shards of others. */
  #pages: number | undefined;

  constructor(context: InstanceContext<Request, S>, { workers, partition }: AttentionWorkersConfig) {
    super();
    this.#context = context;
    this.#byRequests = partition === 'requests';
    this.#ready = Array.from({ length: workers }, () => true);
    this.#losses = Array.from({ length: workers }, () => 0);
  }

  override handle(event: InstanceEvent<Request, unknown>): Handled {
    switch (event.kind) {
      case 'attentionWorkerLost':
        if (this.#ready[event.worker] === true) this.#lose(event.worker);
        else this.#ignore(event, 'the attention worker is lost already');
        return 'replan';
      case 'attentionWorkerReady':
        if (this.#ready[event.worker] === false) this.#return(event);
        else this.#ignore(event, 'the attention worker is not lost');
        return 'replan';
      default:
        return undefined;
    }
  }

  #ignore(event: AttentionWorkerEvent, whyDuplicate: string): void {
    const isKnown = event.worker in this.#ready;
    this.#context.config.messageCounts?.count(isKnown ? 'duplicate' : 'orphan', event.kind);
    this.#context.ignore(event, isKnown ? whyDuplicate : 'there is no such attention worker');
  }

  #lose(worker: number): void {
    this.#ready[worker] = false;
    this.#losses[worker]++;
    this.#lost.add(worker);
    const { flight } = this.#context;
    if (flight === undefined) return;
    flight.workerLost = true;
    // Partitioned by requests, sequences of other workers are answered.
    if (!this.#byRequests) this.#context.abortStep();
  }

  #return({ worker, pages }: Extract<AttentionWorkerEvent, { kind: 'attentionWorkerReady' }>): void {
    this.#ready[worker] = true;
    this.#pages = pages ?? this.#pages;
  }

  override get placement(): SequencePlacement | undefined {
    if (!this.#byRequests) return undefined;
    return (options) => chooseWorker(options.filter(({ worker }) => this.#ready[worker]));
  }

  override beforeStep(): void {
    if (this.#lost.size > 0) this.#recompute();
    if (this.#byRequests && this.#ready.includes(false)) this.#loseReceived();
    const { kvCache } = this.#context;
    if (this.#pages === undefined || this.#pages === kvCache.pages.total) return;
    kvCache.limitPages(this.#pages);
    this.#context.failTooLong();
  }

  #recompute(): void {
    const { scheduler, kvCaches } = this.#context;
    for (const sequence of [...scheduler.running])
      if (!this.#byRequests || this.#lost.has(sequence.worker)) scheduler.recompute(sequence);
    for (const [worker, cache] of kvCaches.all.entries())
      if (!this.#byRequests || this.#lost.has(worker)) cache.forget();
    this.#lost.clear();
  }

  /** Received prompts that wait for a lost worker are computed at the others. */
  #loseReceived(): void {
    const { scheduler } = this.#context;
    for (const sequence of scheduler.waiting)
      if (sequence.receivedPages !== undefined && !this.#ready[sequence.worker]) scheduler.loseReceived(sequence);
  }

  override get holdsSteps(): boolean {
    return this.#byRequests ? !this.#ready.includes(true) : this.#ready.includes(false);
  }

  override get pending(): number {
    return this.holdsSteps ? this.#ready.filter((ready) => !ready).length : 0;
  }

  override snapshot(): Partial<InstanceSnapshot> {
    const attentionWorkers = this.#ready.map(
      (ready, worker): AttentionWorkerSnapshot => ({ ready, losses: this.#losses[worker], ...this.#held(worker) }),
    );
    return { attentionWorkers };
  }

  /** Partitioned by requests: the running sequences of a worker, and their tokens with keys and values. */
  #held(worker: number): Partial<AttentionWorkerSnapshot> {
    if (!this.#byRequests) return {};
    const own = this.#context.scheduler.running.filter((sequence) => sequence.worker === worker);
    return { sequences: own.length, heldTokens: own.reduce((sum, { computed }) => sum + computed, 0) };
  }

  override check(): void {
    const { kvCaches, flight } = this.#context;
    if (this.#lost.size > 0 || flight !== undefined) return;
    for (const [worker, { usedPages, cachedPages }] of kvCaches.all.entries()) {
      const isLost = this.#byRequests ? !this.#ready[worker] : this.#ready.includes(false);
      if (isLost && usedPages + cachedPages > 0)
        throw new Error(
          `Attention workers broken: ${usedPages} pages are used and ${cachedPages} cached while a worker is lost`,
        );
    }
  }
}
