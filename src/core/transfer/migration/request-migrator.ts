// Live migration: requests that outgrow the memory of this instance continue at a bigger one (Llumnix, OSDI 2024).

import type { InstanceEvent } from '../../protocol/events.ts';
import type { RequestId } from '../../protocol/ids.ts';
import type { OffloadState, OverflowMemory } from '../../scheduler/batching/overflow-memory.ts';
import type { Sequence } from '../../scheduler/batching/sequence.ts';
import {
  type Handled,
  type Identified,
  InstanceComponent,
  type InstanceContext,
  type StepDraft,
} from '../../scheduler/component.ts';
import type { RunningRequest } from '../../scheduler/executor/executor.ts';
import type { DecodeTarget, KvSender } from '../hand-off/kv-sender.ts';
import { type MigrationPolicy, mayOutgrow, outgrowing } from './outgrowing.ts';

export interface MigrationConfig extends MigrationPolicy {
  /** Tokens of the longest sequence that a bigger instance could hold. */
  readonly capacityTokens: number;
}

export interface MigrationTotals {
  readonly moved: number;
  readonly movedTokens: number;
  /** Sequences that could not grow or were being moved, and the time of that in all. */
  readonly stalls: number;
  readonly stallUs: number;
}

/**
 * A sequence that cannot grow and may outgrow the memory here waits for a bigger instance, and preempts no other sequence. When that instance
 * is known, the sequence stops between two steps, and all of its keys and values are copied.
 */
export class RequestMigrator<Request extends Identified, S extends RunningRequest>
  extends InstanceComponent<Request, S>
  implements OverflowMemory
{
  readonly reservesWhole = false;
  readonly freePages = 0;
  readonly slackPages = 0;
  readonly #context: InstanceContext<Request, S>;
  readonly #sender: KvSender<Request, S>;
  readonly #config: MigrationConfig;
  /** Sequences for which a bigger instance is requested. */
  readonly #requested = new Set<Sequence>();
  /** The bigger instances of requests, until the next step is planned. */
  readonly #granted = new Map<RequestId, DecodeTarget>();
  /** When each stalled sequence was stalled. */
  readonly #stalledUs = new Map<Sequence, number>();
  readonly #totals = { moved: 0, movedTokens: 0, stalls: 0, stallUs: 0 };

  constructor(context: InstanceContext<Request, S>, sender: KvSender<Request, S>, config: MigrationConfig) {
    super();
    this.#context = context;
    this.#sender = sender;
    this.#config = config;
  }

  get totals(): MigrationTotals {
    return this.#totals;
  }

  override get overflow(): OverflowMemory {
    return this;
  }

  override get continuedTokens(): number {
    return this.#config.capacityTokens;
  }

  override get pending(): number {
    return this.#stalledUs.size;
  }

  admitsParked(): boolean {
    return true;
  }

  admits(): boolean {
    return true;
  }

  /** Only decoding sequences move: a prompt that does not fit is refused. */
  offload(sequence: Sequence): OffloadState {
    if (sequence.remaining > 1 || !mayOutgrow(sequence, this.#context.kvCache)) return 'none';
    this.#stall(sequence);
    this.#request(sequence);
    return 'pending';
  }

  remotePrefix(): undefined {
    return undefined;
  }

  takeRemotePrefix(): number {
    return 0;
  }

  /** The sequence has ended, or is preempted and requests an instance again when it has grown. */
  release(sequence: Sequence): void {
    this.#requested.delete(sequence);
    this.#resume(sequence);
  }

  /** The bigger instance is known. For a sequence that has ended or was preempted, nothing follows. */
  override handle(event: InstanceEvent<Request, unknown>): Handled {
    if (event.kind !== 'migrate') return undefined;
    this.#granted.set(event.id, { to: event.to, incarnation: event.incarnation });
    return 'replan';
  }

  override beforeStep(): void {
    if (this.#granted.size === 0) return;
    const { requests, scheduler, executor } = this.#context;
    for (const sequence of [...this.#requested]) {
      const running = requests.ofSequence(sequence);
      const target = running === undefined ? undefined : this.#granted.get(running.id);
      if (running === undefined || target === undefined || sequence.state !== 'running') continue;
      this.#stall(sequence);
      scheduler.park(sequence);
      this.#requested.delete(sequence);
      this.#totals.moved++;
      this.#totals.movedTokens += sequence.computed;
      this.#sender.migrate(executor.requestOf(running), running, target);
    }
    this.#granted.clear();
  }

  /** Sequences with a row can grow again; those that fill more than the mark request a bigger instance. */
  override contribute({ range }: StepDraft<S>): void {
    if (range !== undefined) return;
    const { scheduler, kvCache } = this.#context;
    for (const sequence of [...this.#stalledUs.keys()]) if (sequence.planned > 0) this.#resume(sequence);
    for (const sequence of outgrowing(scheduler.running, kvCache, this.#config)) this.#request(sequence);
  }

  override resend(): void {
    for (const sequence of this.#requested) this.#send(sequence);
  }

  #request(sequence: Sequence): void {
    if (this.#requested.has(sequence)) return;
    this.#requested.add(sequence);
    this.#send(sequence);
  }

  #send(sequence: Sequence): void {
    const id = this.#context.requests.ofSequence(sequence)?.id;
    if (id !== undefined) this.#context.emit({ kind: 'outgrows', id, tokens: sequence.lengthMax });
  }

  #stall(sequence: Sequence): void {
    if (this.#stalledUs.has(sequence)) return;
    this.#stalledUs.set(sequence, this.#context.nowUs);
    this.#totals.stalls++;
  }

  #resume(sequence: Sequence): void {
    const sinceUs = this.#stalledUs.get(sequence);
    if (sinceUs === undefined) return;
    this.#totals.stallUs += this.#context.nowUs - sinceUs;
    this.#stalledUs.delete(sequence);
  }
}
