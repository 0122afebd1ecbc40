// The attention workers of an instance: its steps wait while one is lost, and what the lost one held is computed again.

import type { InstanceEvent } from '../protocol/events.ts';
import type { AttentionWorkerSnapshot, InstanceSnapshot } from '../protocol/ports.ts';
import { type Handled, type Identified, InstanceComponent, type InstanceContext } from '../scheduler/component.ts';
import type { RunningRequest } from '../scheduler/executor/executor.ts';

export interface AttentionWorkersConfig {
  /** Attention workers; each has an equal shard of the KV heads of every block. */
  readonly workers: number;
}

type AttentionWorkerEvent = Extract<
  InstanceEvent<unknown, unknown>,
  { kind: 'attentionWorkerLost' | 'attentionWorkerReady' }
>;

/**
 * Every block has a shard at every attention worker. If one is lost, no block is whole: all sequences return to the
 * waiting list and are computed again from their prompts and output tokens, and the prefix cache is emptied (Lamina,
 * section 5, fault tolerance).
 */
export class AttentionWorkers<Request extends Identified, S extends RunningRequest> extends InstanceComponent<
  Request,
  S
> {
  readonly #context: InstanceContext<Request, S>;
  readonly #ready: boolean[];
  readonly #losses: number[];
  /** Blocks have lost a shard since the last step. */
  #isIncomplete = false;

  constructor(context: InstanceContext<Request, S>, { workers }: AttentionWorkersConfig) {
    super();
    this.#context = context;
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
        if (this.#ready[event.worker] === false) this.#ready[event.worker] = true;
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
    this.#isIncomplete = true;
    const { flight } = this.#context;
    if (flight === undefined) return;
    flight.workerLost = true;
    this.#context.abortStep();
  }

  override beforeStep(): void {
    if (!this.#isIncomplete) return;
    this.#isIncomplete = false;
    const { scheduler, kvCache } = this.#context;
    for (const sequence of [...scheduler.running]) scheduler.recompute(sequence);
    kvCache.forget();
  }

  override get holdsSteps(): boolean {
    return this.#ready.includes(false);
  }

  override get pending(): number {
    return this.#ready.filter((ready) => !ready).length;
  }

  override snapshot(): Partial<InstanceSnapshot> {
    const attentionWorkers = this.#ready.map(
      (ready, worker): AttentionWorkerSnapshot => ({ ready, losses: this.#losses[worker] }),
    );
    return { attentionWorkers };
  }

  override check(): void {
    const { kvCache, flight } = this.#context;
    if (this.#isIncomplete || flight !== undefined || !this.holdsSteps) return;
    if (kvCache.usedPages + kvCache.cachedPages > 0)
      throw new Error(
        `Attention workers broken: ${kvCache.usedPages} pages are used and ${kvCache.cachedPages} cached while a worker is lost`,
      );
  }
}
