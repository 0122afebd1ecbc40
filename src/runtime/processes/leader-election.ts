// A candidate for the leadership of the cluster: carries out the effects of an Election on the stored lease.
import { Election, type ElectionEffect, type ElectionEvent, type LeaseRecord } from '../../core/membership/election.ts';
import { assertNever } from '../../util/assert-never.ts';
import type { Records, Subject } from '../bus/bus.ts';
import { Alarm, carryOutStep, nowUs } from '../threads/alarm.ts';
import { encode } from '../wire/codec.ts';
import { readLease } from '../wire/lending-messages.ts';

export interface LeaderElectionOptions {
  readonly records: Records;
  readonly key: Subject;
  /** Unique to this incarnation of the process. */
  readonly name: string;
  /** The record may have been lost. */
  readonly recordLost: boolean;
  onElected(epoch: number): void;
  onDeposed(): void;
}

export class LeaderElection {
  readonly #options: LeaderElectionOptions;
  readonly #election: Election;
  readonly #alarm = new Alarm(() => this.#feed({ kind: 'wake' }));
  /** The current read or write of the lease; there is at most one. */
  #access: Promise<void> | undefined;

  constructor(options: LeaderElectionOptions) {
    this.#options = options;
    this.#election = new Election(options.name, {
      recordLost: options.recordLost,
      originMs: Math.floor(performance.timeOrigin),
    });
  }

  start(): void {
    this.#feed({ kind: 'wake' });
  }

  /** True while this process holds the lease. To be checked before each use: the process may have been suspended. */
  get isLeader(): boolean {
    return this.#election.epochAt(nowUs()) !== undefined;
  }

  /** Name of the last known leader; undefined if there is none. */
  get leader(): string | undefined {
    return this.#election.holder;
  }

  /** Gives the lease up before it expires. Resolves when the write has succeeded or failed. */
  async resign(): Promise<void> {
    this.#feed({ kind: 'resign' });
    while (this.#access !== undefined) await this.#access;
  }

  #feed(event: ElectionEvent): void {
    carryOutStep(
      () => this.#election.step(nowUs(), event),
      (effect) => this.#carryOut(effect),
      () => this.#alarm.set(this.#election.nextUs),
    );
  }

  #carryOut(effect: ElectionEffect): void {
    switch (effect.kind) {
      case 'read':
        this.#access = this.#run(this.#read());
        break;
      case 'write':
        this.#access = this.#run(this.#write(effect.record, effect.revision));
        break;
      case 'elected':
        this.#options.onElected(effect.epoch);
        break;
      case 'deposed':
        this.#options.onDeposed();
        break;
      default:
        assertNever(effect);
    }
  }

  /** An access to an unreachable or malformed record counts as unanswered. */
  async #run(access: Promise<ElectionEvent>): Promise<void> {
    const event = await access.catch((): ElectionEvent => ({ kind: 'unanswered' }));
    this.#access = undefined;
    this.#feed(event);
  }

  async #read(): Promise<ElectionEvent> {
    const { records, key } = this.#options;
    const stored = await records.read(key);
    return {
      kind: 'read',
      stored: stored && { record: readLease(stored.value), revision: stored.revision },
    };
  }

  async #write(record: LeaseRecord, revision: number | undefined): Promise<ElectionEvent> {
    const { records, key } = this.#options;
    return { kind: 'written', revision: await records.write(key, encode(record), revision) };
  }
}
