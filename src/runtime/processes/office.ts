// A candidate for an elected role of the cluster: carries out the effects of an Election on its stored record.
import { Election, type ElectionEffect, type ElectionEvent, type LeaseRecord } from '../../core/membership/election.ts';
import { assertNever } from '../../util/assert-never.ts';
import type { Records, Subject } from '../bus/bus.ts';
import { Alarm, nowUs } from '../threads/alarm.ts';
import { encode } from '../wire/codec.ts';
import { readOffice } from '../wire/lending-messages.ts';

export interface OfficeOptions {
  readonly records: Records;
  readonly key: Subject;
  /** Unique to this incarnation of the process. */
  readonly name: string;
  /** The record may have been lost. */
  readonly lost: boolean;
  onElected(epoch: number): void;
  onDeposed(): void;
}

export class Office {
  readonly #options: OfficeOptions;
  readonly #election: Election;
  readonly #alarm = new Alarm(() => this.#feed({ kind: 'wake' }));
  /** The current access to the record; there is at most one. */
  #access: Promise<void> | undefined;

  constructor(options: OfficeOptions) {
    this.#options = options;
    this.#election = new Election(options.name, {
      recordLost: options.lost,
      originMs: Math.floor(performance.timeOrigin),
    });
  }

  start(): void {
    this.#feed({ kind: 'wake' });
  }

  /** Whether this process holds the lease now; to be checked before each use, since the process may have been suspended. */
  get isHeld(): boolean {
    return this.#election.epochAt(nowUs()) !== undefined;
  }

  /** Name of the last known holder; undefined if there is none. */
  get holder(): string | undefined {
    return this.#election.holder;
  }

  /** Gives the lease up before it expires. Resolves when that is written, or cannot be. */
  async resign(): Promise<void> {
    this.#feed({ kind: 'resign' });
    while (this.#access !== undefined) await this.#access;
  }

  #feed(event: ElectionEvent): void {
    for (const effect of this.#election.step(nowUs(), event)) this.#carryOut(effect);
    this.#alarm.set(this.#election.nextUs);
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

  /** An unreachable or malformed record counts as unanswered. */
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
      stored: stored && { record: readOffice(stored.value), revision: stored.revision },
    };
  }

  async #write(record: LeaseRecord, revision: number | undefined): Promise<ElectionEvent> {
    const { records, key } = this.#options;
    return { kind: 'written', revision: await records.write(key, encode(record), revision) };
  }
}
