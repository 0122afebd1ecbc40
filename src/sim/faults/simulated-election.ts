// The election of simulated processes: candidates over a store that loses requests, responses and its records.
import { Election, type ElectionEffect, type ElectionEvent, type LeaseRecord } from '../../core/membership/election.ts';
import type { Prng } from '../../util/prng.ts';
import type { EventQueue } from '../engine/event-queue.ts';

/** A request without a response counts as unanswered after this time. */
const timeoutUs = 1_000_000;
/** Time of the shared clock when the simulation begins. */
const originMs = 1_000_000;

/** The store of the lease, with compare-and-set. */
export class LeaseStore {
  /** Leaders elected. */
  elected = 0;
  /** No process has used it. */
  isNew = true;
  #record: LeaseRecord | undefined;
  /** When the first record of its epoch was written. */
  #epochSinceUs = 0;
  #revision = 0;
  /** Grows with each loss, which also breaks all connections. */
  #generation = 0;
  #downUntilUs = 0;
  #isFaulty = true;
  readonly #queue: EventQueue;
  readonly #prng: Prng;

  constructor(queue: EventQueue, prng: Prng) {
    this.#queue = queue;
    this.#prng = prng;
  }

  /** For how long the store has had a record of the present epoch; 0: it has none. */
  get epochUs(): number {
    return this.#record === undefined ? 0 : this.#queue.nowUs - this.#epochSinceUs;
  }

  fail(forUs: number): void {
    this.#downUntilUs = Math.max(this.#downUntilUs, this.#queue.nowUs + forUs);
  }

  /** Loses all records. */
  lose(): void {
    this.#record = undefined;
    this.#revision = 0;
    this.#generation++;
  }

  heal(): void {
    this.#isFaulty = false;
    this.#downUntilUs = 0;
  }

  /** Calls `respond` with the response, unless the request or the response is lost. */
  request(effect: Extract<ElectionEffect, { kind: 'read' | 'write' }>, respond: (event: ElectionEvent) => void): void {
    const generation = this.#generation;
    const isLost = (): boolean =>
      generation !== this.#generation ||
      this.#queue.nowUs < this.#downUntilUs ||
      (this.#isFaulty && this.#prng.chance(0.04));
    this.#queue.after(this.#delayUs(), () => {
      if (isLost()) return;
      const response = this.#handle(effect);
      this.#queue.after(this.#delayUs(), () => {
        if (!isLost()) respond(response);
      });
    });
  }

  #delayUs(): number {
    return this.#prng.integer(200, this.#isFaulty ? 300_000 : 2_000);
  }

  #handle(effect: Extract<ElectionEffect, { kind: 'read' | 'write' }>): ElectionEvent {
    const current = this.#record === undefined ? undefined : this.#revision;
    if (effect.kind === 'read')
      return { kind: 'read', stored: this.#record && { record: this.#record, revision: this.#revision } };
    if (current !== effect.revision) return { kind: 'written', revision: undefined };
    if (this.#record?.epoch !== effect.record.epoch) this.#epochSinceUs = this.#queue.nowUs;
    this.#record = effect.record;
    return { kind: 'written', revision: ++this.#revision };
  }
}

/** One candidate. Its clock began at another time than those of the others. */
export class SimulatedCandidate {
  readonly #election: Election;
  readonly #store: LeaseStore;
  readonly #queue: EventQueue;
  readonly #startUs: number;
  #request = 0;
  #isRunning = true;
  #isSuspended = false;
  #backlog: ElectionEvent[] = [];

  constructor(name: string, store: LeaseStore, queue: EventQueue) {
    this.#store = store;
    this.#queue = queue;
    this.#startUs = queue.nowUs;
    const origin = { recordLost: !store.isNew, originMs: originMs + Math.floor(queue.nowUs / 1000) };
    this.#election = new Election(name, origin);
    store.isNew = false;
    this.#feed({ kind: 'wake' });
  }

  /** Undefined: this process is not the leader. */
  get epoch(): number | undefined {
    return this.#election.epochAt(this.#nowUs);
  }

  stop(): void {
    this.#isRunning = false;
  }

  suspend(): void {
    this.#isSuspended = true;
  }

  resume(): void {
    this.#isSuspended = false;
    for (const event of this.#backlog.splice(0)) this.#feed(event);
    this.#feed({ kind: 'wake' });
  }

  get #nowUs(): number {
    return this.#queue.nowUs - this.#startUs;
  }

  #feed(event: ElectionEvent): void {
    if (!this.#isRunning) return;
    if (this.#isSuspended) {
      if (event.kind !== 'wake') this.#backlog.push(event);
      return;
    }
    for (const effect of this.#election.step(this.#nowUs, event)) {
      if (effect.kind === 'elected') this.#store.elected++;
      else if (effect.kind !== 'deposed') this.#send(effect);
    }
    const delayUs = Math.max(1, this.#election.nextUs - this.#nowUs);
    this.#wakeAfter(delayUs);
  }

  #wakeAfter(delayUs: number): void {
    this.#queue.after(delayUs, () => {
      if (this.#election.nextUs <= this.#nowUs) this.#feed({ kind: 'wake' });
    });
  }

  /** The response, or that there was none. */
  #send(effect: Extract<ElectionEffect, { kind: 'read' | 'write' }>): void {
    const request = ++this.#request;
    let isAnswered = false;
    const answer = (event: ElectionEvent): void => {
      if (isAnswered || request !== this.#request) return;
      isAnswered = true;
      this.#feed(event);
    };
    this.#store.request(effect, answer);
    this.#queue.after(timeoutUs, () => answer({ kind: 'unanswered' }));
  }
}
