// Leader election by lease and compare-and-set: one record names the leader, and each process judges the lease by its
// own clock.

import { assertNever } from '../../util/assert-never.ts';

/** The stored record. Epochs only grow: one for each elected leader. */
export interface LeaseRecord {
  /** Undefined: the leader has resigned. */
  readonly holder: string | undefined;
  readonly epoch: number;
}

export interface ElectionTimes {
  /** Interval of reads of the record, and of renewals of the lease. */
  readonly pollUs: number;
  /** A leader that does not renew its lease for so long is replaced. */
  readonly leaseUs: number;
  /** The leader gives up its lease so much earlier: clocks may drift apart by this within one lease. */
  readonly clockDriftUs: number;
}

/** What a process has before it reads the record. */
export interface ElectionStart {
  /** The record may have been lost: there may be a leader that no record names. */
  readonly recordLost: boolean;
  /**
   * Time of a clock that all processes share when `nowUs` is 0, in milliseconds: without a known epoch, one after this
   * time is unused.
   */
  readonly originMs: number;
}

export const defaultElectionTimes: ElectionTimes = { pollUs: 500_000, leaseUs: 3_000_000, clockDriftUs: 300_000 };

interface StoredRecord {
  readonly record: LeaseRecord;
  readonly revision: number;
}

/** Responses arrive in the order of the requests, or never. */
export type ElectionEvent =
  | { readonly kind: 'wake' }
  /** Undefined: there is no record. */
  | { readonly kind: 'read'; readonly stored: StoredRecord | undefined }
  /** Undefined: the compare-and-set failed, since the record has changed. */
  | { readonly kind: 'written'; readonly revision: number | undefined }
  /** The last request failed or timed out; a write may have succeeded. */
  | { readonly kind: 'unanswered' }
  /**
   * This process ends and resigns, so that the others need not wait for the lease. It is done once no request is
   * pending.
   */
  | { readonly kind: 'resign' };

export type ElectionEffect =
  | { readonly kind: 'read' }
  /** @see Records.write */
  | { readonly kind: 'write'; readonly record: LeaseRecord; readonly revision: number | undefined }
  | { readonly kind: 'elected'; readonly epoch: number }
  | { readonly kind: 'deposed'; readonly epoch: number };

interface Observed extends StoredRecord {
  /** When this revision was first observed: the leader wrote it before. */
  readonly sinceUs: number;
}

/**
 * The leader counts its lease from when it *sent* the renewal, the others from when they first *read* it: a leader has
 * stopped before the next one starts, and no clocks are compared. One request is pending at a time. The record may be
 * lost with its store: the leader writes it again, and the others wait for the duration of a lease, which an unrecorded
 * leader may hold.
 */
export class Election {
  readonly #name: string;
  readonly #times: ElectionTimes;
  readonly #originMs: number;
  /** Undefined: there is no record, or none was read. */
  #observed: Observed | undefined;
  /** When the request was sent by which the record was last read or written. */
  #confirmedUs = 0;
  /** Highest epoch that was read or written. */
  #epoch = 0;
  /** A record may have existed before. */
  #recordLost: boolean;
  /** The record is missing: since when, and the last read that found none. */
  #missing: { readonly sinceUs: number; readonly readUs: number } | undefined;
  /** No other process was elected before this time, unless its record was read. */
  #leaseEndUs = 0;
  /** `record` of a pending write; undefined: a read. */
  #pending: { readonly atUs: number; readonly record: LeaseRecord | undefined } | undefined;
  /** The lease of this process. */
  #lease: { readonly epoch: number; readonly untilUs: number } | undefined;
  /** Last epoch in which this process was the leader. */
  #latestEpoch = 0;
  #nextPollUs = 0;
  /** A write was not answered: the record has to be read. */
  #inDoubt = false;
  #resigned = false;
  #effects: ElectionEffect[] = [];

  /** @param name unique to this start of the process */
  constructor(name: string, { recordLost, originMs }: ElectionStart, times: ElectionTimes = defaultElectionTimes) {
    this.#name = name;
    this.#recordLost = recordLost;
    this.#originMs = originMs;
    this.#times = times;
  }

  /**
   * The epoch of this process while it is the leader. Check before every action of the leader: the process may have
   * been suspended.
   */
  epochAt(nowUs: number): number | undefined {
    return this.#lease !== undefined && nowUs < this.#lease.untilUs ? this.#lease.epoch : undefined;
  }

  /** The leader, by the last read of the record. */
  get holder(): string | undefined {
    return this.#observed?.record.holder;
  }

  /** Time of the next `wake`. */
  get nextUs(): number {
    const pollUs = this.#resigned ? Number.POSITIVE_INFINITY : this.#nextPollUs;
    return Math.min(pollUs, this.#lease?.untilUs ?? Number.POSITIVE_INFINITY);
  }

  /** Handles one event; `nowUs` never decreases. The caller performs the effects in order. */
  step(nowUs: number, event: ElectionEvent): readonly ElectionEffect[] {
    this.#effects = [];
    if (this.#lease !== undefined && nowUs >= this.#lease.untilUs) this.#depose();
    this.#handle(nowUs, event);
    if (!this.#resigned) this.#poll(nowUs);
    // A process that resigns retries nothing.
    else if (event.kind !== 'unanswered') this.#releaseRecord(nowUs);
    return this.#effects;
  }

  #handle(nowUs: number, event: ElectionEvent): void {
    const pending = this.#pending;
    if (event.kind !== 'wake' && event.kind !== 'resign') this.#pending = undefined;
    switch (event.kind) {
      case 'wake':
        break;
      case 'read':
        if (pending !== undefined) this.#read(nowUs, pending.atUs, event.stored);
        break;
      case 'written':
        if (pending?.record !== undefined) this.#written(nowUs, pending.atUs, pending.record, event.revision);
        break;
      case 'unanswered':
        // The record may have been lost meanwhile, again if it was missing: a leader may have been elected in between.
        this.#recordLost = true;
        this.#missing = undefined;
        if (pending?.record !== undefined) this.#inDoubt = true;
        break;
      case 'resign':
        this.#resigned = true;
        this.#depose();
        break;
      default:
        assertNever(event);
    }
  }

  #read(nowUs: number, sentUs: number, stored: StoredRecord | undefined): void {
    this.#inDoubt = false;
    if (stored === undefined) {
      this.#readNothing(nowUs, sentUs);
      return;
    }
    this.#observe(nowUs, sentUs, stored.record, stored.revision);
    if (!this.#isOwn(stored.record)) this.#depose();
    if (stored.record.holder === undefined) this.#claim(nowUs, stored.revision, this.#epoch + 1);
  }

  #observe(nowUs: number, sentUs: number, record: LeaseRecord, revision: number): void {
    const known = this.#observed;
    // A store that was lost may reach the same revision again.
    const isKnown = known?.revision === revision && known.record.epoch === record.epoch;
    if (!isKnown || known.record.holder !== record.holder) this.#observed = { record, revision, sinceUs: nowUs };
    this.#confirmedUs = sentUs;
    this.#epoch = Math.max(this.#epoch, record.epoch);
    this.#missing = undefined;
    this.#recordLost = true;
  }

  #readNothing(nowUs: number, sentUs: number): void {
    this.#depose();
    this.#observed = undefined;
    const { pollUs, leaseUs } = this.#times;
    // The process was suspended before it received the response: meanwhile a record may have been written and lost.
    if (nowUs - sentUs > 2 * pollUs) {
      this.#recordLost = true;
      this.#missing = undefined;
    }
    const before = this.#missing;
    // After a long pause the record may have existed in between.
    const sinceUs = before !== undefined && nowUs - before.readUs <= 3 * pollUs ? before.sinceUs : nowUs;
    this.#missing = { sinceUs, readUs: nowUs };
    if (this.#recordLost && nowUs >= this.#leaseEndUs && nowUs - sinceUs < leaseUs) return;
    const unusedEpoch = this.#recordLost ? this.#originMs + Math.floor(nowUs / 1000) : 1;
    this.#claim(nowUs, undefined, Math.max(this.#epoch + 1, unusedEpoch));
  }

  #isOwn({ holder, epoch }: LeaseRecord): boolean {
    return holder === this.#name && epoch === this.#lease?.epoch;
  }

  #written(nowUs: number, sentUs: number, record: LeaseRecord, revision: number | undefined): void {
    if (revision === undefined) {
      this.#depose();
      this.#inDoubt = true;
      // Another process has written a record, which may be lost before it is read.
      this.#recordLost = true;
      this.#missing = undefined;
      return;
    }
    this.#observe(nowUs, sentUs, record, revision);
    const untilUs = sentUs + this.#times.leaseUs - this.#times.clockDriftUs;
    if (nowUs >= untilUs) return;
    const isFirst = this.#lease === undefined;
    // After a resignation or an expired lease, only a new claim gives a new epoch.
    if (this.#resigned || (isFirst && record.epoch <= this.#latestEpoch)) return;
    this.#lease = { epoch: record.epoch, untilUs };
    this.#leaseEndUs = untilUs;
    this.#latestEpoch = record.epoch;
    if (isFirst) this.#effects.push({ kind: 'elected', epoch: record.epoch });
  }

  /** Reads the record, renews the lease, or claims an expired one. */
  #poll(nowUs: number): void {
    if (nowUs < this.#nextPollUs) return;
    this.#nextPollUs = nowUs + this.#times.pollUs;
    if (this.#pending !== undefined) return;
    const observed = this.#observed;
    // After a long pause the store may have been lost and have reached the same revision again, with another record.
    const isStale = nowUs - this.#confirmedUs > 2 * this.#times.pollUs;
    if (observed === undefined || this.#inDoubt || isStale) this.#requestRead(nowUs);
    else if (this.#isOwn(observed.record)) this.#write(nowUs, observed.record, observed.revision);
    else if (observed.record.holder === this.#name || nowUs - observed.sinceUs >= this.#times.leaseUs)
      this.#claim(nowUs, observed.revision, this.#epoch + 1);
    else this.#requestRead(nowUs);
  }

  #requestRead(nowUs: number): void {
    this.#pending = { atUs: nowUs, record: undefined };
    this.#effects.push({ kind: 'read' });
  }

  #claim(nowUs: number, revision: number | undefined, epoch: number): void {
    if (!this.#resigned) this.#write(nowUs, { holder: this.#name, epoch }, revision);
  }

  #write(nowUs: number, record: LeaseRecord, revision: number | undefined): void {
    this.#pending = { atUs: nowUs, record };
    this.#effects.push({ kind: 'write', record, revision });
  }

  #depose(): void {
    if (this.#lease === undefined) return;
    this.#effects.push({ kind: 'deposed', epoch: this.#lease.epoch });
    this.#lease = undefined;
  }

  /** Removes this process from the record. A pending write may still store it: its response is awaited first. */
  #releaseRecord(nowUs: number): void {
    if (this.#pending !== undefined) return;
    const observed = this.#observed;
    if (this.#inDoubt) this.#requestRead(nowUs);
    else if (observed?.record.holder === this.#name)
      this.#write(nowUs, { holder: undefined, epoch: observed.record.epoch }, observed.revision);
  }
}
