// Stands for an office of the cluster: carries out what an election wants of the record, and tells who holds it.
import { Election, type ElectionEffect, type ElectionEvent, type LeaseRecord } from '../../core/membership/election.ts';
import type { Records, Subject } from '../bus/bus.ts';
import { Alarm, nowUs } from '../threads/alarm.ts';
import { encode } from '../wire/codec.ts';
import { readOffice } from '../wire/lending-messages.ts';

export interface OfficeOptions {
  readonly records: Records;
  readonly key: Subject;
  /** Of this start of a process: nobody else ever has it. */
  readonly name: string;
  /** The record may have been lost. */
  readonly lost: boolean;
  readonly elected: (epoch: number) => void;
  readonly deposed: () => void;
}

export class Office {
  readonly #options: OfficeOptions;
  readonly #election: Election;
  readonly #alarm = new Alarm(() => this.#feed({ kind: 'wake' }));
  /** Until what was asked of the record is answered: one question at a time. */
  #asked: Promise<void> | undefined;

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

  /** May anything be done in it here? Asked each time: this process may have slept. */
  get isHeld(): boolean {
    return this.#election.epochAt(nowUs()) !== undefined;
  }

  /** By the name of its start; undefined: nobody, as far as is known. */
  get holder(): string | undefined {
    return this.#election.holder;
  }

  /** Others need not wait until the lease is over. Resolves when they can know, or will have to wait. */
  async resign(): Promise<void> {
    this.#feed({ kind: 'resign' });
    while (this.#asked !== undefined) await this.#asked;
  }

  #feed(event: ElectionEvent): void {
    for (const effect of this.#election.step(nowUs(), event)) this.#carryOut(effect);
    this.#alarm.set(this.#election.nextUs);
  }

  #carryOut(effect: ElectionEffect): void {
    switch (effect.kind) {
      case 'read':
        this.#asked = this.#ask(this.#read());
        break;
      case 'write':
        this.#asked = this.#ask(this.#write(effect.record, effect.revision));
        break;
      case 'elected':
        this.#options.elected(effect.epoch);
        break;
      case 'deposed':
        this.#options.deposed();
    }
  }

  /** A record that cannot be reached, or read, is one that did not answer. */
  async #ask(answer: Promise<ElectionEvent>): Promise<void> {
    const event = await answer.catch((): ElectionEvent => ({ kind: 'unanswered' }));
    this.#asked = undefined;
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
