// The requests at an instance, and the sequences that the scheduler holds for them.

import type { RequestId } from '../protocol/ids.ts';
import type { Batcher } from './batching/batcher.ts';
import type { Sequence } from './batching/sequence.ts';
import type { RunningRequest } from './executor/executor.ts';
import { RecentIds } from './recent-ids.ts';
import type { InFlight } from './step-in-flight.ts';

export class RequestTable<S extends RunningRequest> {
  readonly #scheduler: Batcher;
  /** Accepted, not ended, not cancelled. */
  readonly #live = new Map<RequestId, S>();
  /** Every sequence that the scheduler holds: those of live requests, and of cancelled ones whose rows are in flight. */
  readonly #bySequence = new Map<Sequence, S>();
  /** Requests computed for the instance itself: no client receives their events. */
  readonly #internal = new Set<RequestId>();
  readonly #left = new RecentIds();
  /** (sequencesMax): running requests, by the slots of their sequences. */
  readonly #bySlot: S[] = [];

  constructor(scheduler: Batcher) {
    this.#scheduler = scheduler;
  }

  /** Requests accepted and not ended. */
  get size(): number {
    return this.#live.size;
  }

  /** The prompt of the highest rank that the scheduler computes or could start; no batch job. */
  get firstPrefill(): Sequence | undefined {
    return this.#scheduler.firstPrefill;
  }

  /** The request of a sequence. */
  ofSequence(sequence: Sequence): S | undefined {
    return this.#bySequence.get(sequence);
  }

  get live(): Iterable<S> {
    return this.#live.values();
  }

  /** The live requests of clients. */
  get reported(): Iterable<S> {
    return this.#internal.size === 0 ? this.live : [...this.live].filter(({ id }) => !this.#internal.has(id));
  }

  /** Requests that wait to start or to resume, and may become longer than so many tokens. */
  waitingBeyond(tokens: number): readonly S[] {
    return [...this.live].filter(({ sequence }) => sequence.state === 'waiting' && sequence.lengthMax > tokens);
  }

  /** For checkers: every request that has a sequence here. */
  *sequences(): Iterable<{ readonly id: RequestId; readonly sequence: Sequence }> {
    for (const { id, sequence } of this.#bySequence.values()) yield { id, sequence };
  }

  /** True for a request that has left, or was marked so. */
  hasLeft(id: RequestId): boolean {
    return this.#left.has(id);
  }

  /** Classifies an ignored message by its request. */
  anomalyOf(id: RequestId): 'duplicate' | 'late' | 'orphan' {
    return this.#live.has(id) ? 'duplicate' : this.#left.has(id) ? 'late' : 'orphan';
  }

  /** Marks a request as left: its submission is ignored if it arrives later. */
  markLeft(id: RequestId): void {
    this.#left.add(id);
  }

  has(id: RequestId): boolean {
    return this.#live.has(id);
  }

  get(id: RequestId): S | undefined {
    return this.#live.get(id);
  }

  /** True for a request that is computed for the instance itself. */
  isInternal(id: RequestId): boolean {
    return this.#internal.size > 0 && this.#internal.has(id);
  }

  add(running: S): void {
    this.#live.set(running.id, running);
    this.#bySequence.set(running.sequence, running);
    this.#scheduler.add(running.sequence);
  }

  /** Adds a request whose events no client receives. */
  addInternal(running: S): void {
    this.#internal.add(running.id);
    this.add(running);
  }

  /** Adds a request whose rows a component plans. */
  addParked(running: S): void {
    this.#live.set(running.id, running);
    this.#bySequence.set(running.sequence, running);
    this.allocate(running, 0);
  }

  /** Allocates blocks for `tokens` tokens of a parked request; false, with none allocated, if pages are short. */
  allocate({ sequence }: S, tokens: number): boolean {
    return this.#scheduler.allocateParked(sequence, tokens);
  }

  /** The request has no further events; its sequence stays until it is removed. */
  close(id: RequestId): void {
    this.#live.delete(id);
    this.#left.add(id);
  }

  /** Frees the blocks of the request. A second call does nothing. @param forget they leave the cache */
  remove(running: S, forget: boolean): void {
    if (!this.#bySequence.delete(running.sequence)) return;
    this.#internal.delete(running.id);
    this.#scheduler.remove(running.sequence, forget);
  }

  /** A step has ended: clears the planned rows, and removes cancelled requests. */
  stepEnded(requests: readonly S[]): void {
    for (const running of requests) {
      running.sequence.planned = 0;
      if (running.cancelled) this.remove(running, false);
    }
  }

  /** Records the request of a sequence that got a slot. */
  admit(sequence: Sequence): S {
    const running = this.#bySequence.get(sequence);
    if (running === undefined) throw new Error(`Instance broken: arrival ${sequence.arrival} belongs to no request`);
    this.#bySlot[sequence.slot] = running;
    return running;
  }

  /** The strictest TBT objective of the live requests of at least this priority, at most `most`. */
  tbtUsMax(most: number, priority = Number.NEGATIVE_INFINITY): number {
    let least = most;
    for (const { tbtUsMax, sequence } of this.#live.values())
      if (tbtUsMax < least && sequence.priority >= priority) least = tbtUsMax;
    return least;
  }

  /** The requests of running sequences, in their order. */
  requestsOf(sequences: readonly Sequence[]): readonly S[] {
    const requests = new Array<S>(sequences.length);
    for (let i = 0; i < sequences.length; i++) requests[i] = this.#bySlot[sequences[i].slot];
    return requests;
  }

  /**
   * Throws unless every request is in exactly one state, and a step runs while any request waits.
   * @param isMoving blocks or memory are in transit: requests may wait for them
   * @param parkedCount prompts that keep blocks and wait for no step of the scheduler
   */
  check(flight: InFlight<S> | undefined, isMoving: boolean, parkedCount: number): void {
    const { waiting, running, parked } = this.#scheduler;
    if (parked.size !== parkedCount)
      throw new Error(`Instance broken: ${parked.size} prompts are parked, ${parkedCount} are handed off or pipelined`);
    const all = [...waiting, ...running, ...parked];
    if (all.length !== this.#bySequence.size || !all.every((sequence) => this.#bySequence.has(sequence)))
      throw new Error(`Instance broken: ${this.#bySequence.size} requests, ${all.length} sequences`);
    const inFlight = new Set(flight?.requests);
    let cancelled = 0;
    for (const each of this.#bySequence.values()) {
      const { id } = each;
      cancelled += Number(each.cancelled);
      if (each.cancelled ? !inFlight.has(each) : this.#live.get(id) !== each)
        throw new Error(`Instance broken: request ${id} is in no state`);
      if (each.sequence.planned > 0 !== inFlight.has(each))
        throw new Error(`Instance broken: request ${id} has rows in no step`);
    }
    if (this.#live.size + cancelled !== this.#bySequence.size)
      throw new Error(`Instance broken: ${this.#live.size} requests are live, ${this.#bySequence.size} have sequences`);
    if (flight === undefined && all.length > 0 && parked.size === 0 && !isMoving)
      throw new Error(`Instance broken: ${all.length} requests wait and nothing runs`);
  }
}
