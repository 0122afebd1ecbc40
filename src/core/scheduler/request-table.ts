// Who is at an instance: the requests that hear events, and every sequence that its batcher holds for them.

import type { RequestId } from '../protocol/ids.ts';
import type { Batcher } from './batching/batcher.ts';
import type { Sequence } from './batching/sequence.ts';
import type { RunningRequest } from './executor/executor.ts';
import { RecentIds } from './recent-ids.ts';
import type { InFlight } from './step-in-flight.ts';

export class RequestTable<S extends RunningRequest> {
  readonly #batcher: Batcher;
  /** Those that hear events: accepted, not ended, not cancelled. */
  readonly #live = new Map<RequestId, S>();
  /** Every sequence that the batcher holds: the live ones, and cancelled ones whose rows are in flight. */
  readonly #served = new Map<Sequence, S>();
  readonly #left = new RecentIds();
  /** (sequencesMax): those that run, by the slots of their sequences. */
  readonly #bySlot: S[] = [];

  constructor(batcher: Batcher) {
    this.#batcher = batcher;
  }

  /** Requests accepted and not ended. */
  get size(): number {
    return this.#live.size;
  }

  /** The first in rank of the prompts that the batcher computes or could begin with; batch jobs are not meant. */
  get firstPrefill(): Sequence | undefined {
    return this.#batcher.firstPrefill;
  }

  /** Whose sequence it is. */
  holder(sequence: Sequence): S | undefined {
    return this.#served.get(sequence);
  }

  /** Those that hear events. */
  get live(): Iterable<S> {
    return this.#live.values();
  }

  /** Those that wait to start, or to start again, and may become longer than so many tokens. */
  waitingBeyond(tokens: number): readonly S[] {
    return [...this.#live.values()].filter(
      ({ sequence }) => sequence.state === 'waiting' && sequence.lengthMax > tokens,
    );
  }

  /** Every request that has a sequence here, and how that stands: for those who look on. */
  *sequences(): Iterable<{ readonly id: RequestId; readonly sequence: Sequence }> {
    for (const { id, sequence } of this.#served.values()) yield { id, sequence };
  }

  /** Was it here, or heard of, before? */
  hasLeft(id: RequestId): boolean {
    return this.#left.has(id);
  }

  /** What comes now of a request that it is of no use for. */
  fateOf(id: RequestId): 'doubled' | 'late' | 'orphan' {
    return this.#live.has(id) ? 'doubled' : this.#left.has(id) ? 'late' : 'orphan';
  }

  /** It does not come any more. */
  bar(id: RequestId): void {
    this.#left.add(id);
  }

  has(id: RequestId): boolean {
    return this.#live.has(id);
  }

  get(id: RequestId): S | undefined {
    return this.#live.get(id);
  }

  take(served: S): void {
    this.#live.set(served.id, served);
    this.#served.set(served.sequence, served);
    this.#batcher.add(served.sequence);
  }

  /** Somebody else plans its rows. */
  hold(served: S): void {
    this.#live.set(served.id, served);
    this.#served.set(served.sequence, served);
    this.keep(served, 0);
  }

  /** Blocks for `tokens` tokens of one whose rows somebody else plans; false, and none, when there is no room. */
  keep({ sequence }: S, tokens: number): boolean {
    return this.#batcher.allocateParked(sequence, tokens);
  }

  /** Nobody hears of it any more; its sequence stays until it is removed. */
  silence(id: RequestId): void {
    this.#live.delete(id);
    this.#left.add(id);
  }

  /** Frees all that it holds; with `forget` its blocks leave the cache. A second call does nothing. */
  remove(served: S, forget: boolean): void {
    if (!this.#served.delete(served.sequence)) return;
    this.#batcher.remove(served.sequence, forget);
  }

  /** Those of a step that is over: rows of an aborted one are to be planned anew, and who was cancelled leaves. */
  stepEnded(requests: readonly S[]): void {
    for (const served of requests) {
      served.sequence.planned = 0;
      if (served.cancelled) this.remove(served, false);
    }
  }

  /** Its sequence has got a slot. */
  admit(sequence: Sequence): S {
    const served = this.#served.get(sequence);
    if (served === undefined) throw new Error(`Instance broken: arrival ${sequence.arrival} belongs to no request`);
    this.#bySlot[sequence.slot] = served;
    return served;
  }

  /** What those who run or wait may wait for each token, and one more of `most`: the least of them. */
  tbtUsMax(most: number): number {
    let least = most;
    for (const { tbtUsMax } of this.#live.values()) if (tbtUsMax < least) least = tbtUsMax;
    return least;
  }

  /** Of running sequences, in their order. */
  of(sequences: readonly Sequence[]): readonly S[] {
    const requests = new Array<S>(sequences.length);
    for (let i = 0; i < sequences.length; i++) requests[i] = this.#bySlot[sequences[i].slot];
    return requests;
  }

  /** Throws unless every request is in exactly one state, and something runs while anyone waits. @param moving blocks or memory are under way: somebody may wait for them @param keeping prompts that keep blocks and wait for no step of the batcher */
  check(flight: InFlight<S> | undefined, moving: boolean, keeping: number): void {
    const { waiting, running, parked } = this.#batcher;
    if (parked.size !== keeping)
      throw new Error(`Instance broken: ${parked.size} prompts are parked, ${keeping} leave or are a group's`);
    const held = [...waiting, ...running, ...parked];
    if (held.length !== this.#served.size || !held.every((sequence) => this.#served.has(sequence)))
      throw new Error(`Instance broken: ${this.#served.size} requests, ${held.length} sequences`);
    const flying = new Set(flight?.requests);
    let cancelled = 0;
    for (const served of this.#served.values()) {
      const { id } = served;
      cancelled += Number(served.cancelled);
      if (served.cancelled ? !flying.has(served) : this.#live.get(id) !== served)
        throw new Error(`Instance broken: request ${id} is in no state`);
      if (served.sequence.planned > 0 !== flying.has(served))
        throw new Error(`Instance broken: request ${id} has rows in no step`);
    }
    if (this.#live.size + cancelled !== this.#served.size)
      throw new Error(`Instance broken: ${this.#live.size} requests live, ${this.#served.size} held`);
    if (flight === undefined && held.length > 0 && parked.size === 0 && !moving)
      throw new Error(`Instance broken: ${held.length} requests wait and nothing runs`);
  }
}
