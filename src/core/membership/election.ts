// Who holds an office of the cluster: one record that is written by compare-and-set, and leases that each judges by its own clock.

/** What the record says. Epochs only grow: one for each time that somebody was elected. */
export interface OfficeRecord {
  /** Undefined: it was laid down. */
  readonly holder: string | undefined;
  readonly epoch: number;
}

export interface ElectionTimes {
  /** Between two looks at the record, and between two renewals of it. */
  readonly lookUs: number;
  /** A holder that has not renewed for so long is replaced. */
  readonly leaseUs: number;
  /** A holder lays its office down so much earlier: clocks may run apart by this in one lease. */
  readonly guardUs: number;
}

/** What is known of the office before the record is read. */
export interface ElectionPast {
  /** The record may have been lost, so that somebody may hold the office who is not in it. */
  readonly lost: boolean;
  /** What a clock that all have says when `nowUs` is 0, in milliseconds: where no epoch is known, one of those after it was never used. */
  readonly originMs: number;
}

export const defaultElectionTimes: ElectionTimes = { lookUs: 500_000, leaseUs: 3_000_000, guardUs: 300_000 };

/** Answers come in the order of the questions, or never. */
export type ElectionEvent =
  | { readonly kind: 'wake' }
  /** The record as it is; undefined: there is none. */
  | { readonly kind: 'read'; readonly stored: { readonly record: OfficeRecord; readonly revision: number } | undefined }
  /** Undefined: somebody else was faster. */
  | { readonly kind: 'written'; readonly revision: number | undefined }
  /** What was asked last came to nothing; a write may have been made all the same. */
  | { readonly kind: 'unanswered' }
  /** This process ends: lay down the office so that others need not wait. It is done when nothing that was asked is under way. */
  | { readonly kind: 'resign' };

export type ElectionEffect =
  | { readonly kind: 'read' }
  /** @see Records.write */
  | { readonly kind: 'write'; readonly record: OfficeRecord; readonly revision: number | undefined }
  | { readonly kind: 'elected'; readonly epoch: number }
  | { readonly kind: 'deposed'; readonly epoch: number };

interface Seen {
  readonly record: OfficeRecord;
  readonly revision: number;
  /** When this revision was asked for first: the holder wrote it before its answer came. */
  readonly sinceUs: number;
}

/**
 * The record may be lost with the store that it is in: its holder writes it anew, and others wait for as long as a lease lasts, since one may be held of which nothing is
 * written any more.
 * A holder counts its lease from when it *sent* the renewal, others from when they first *heard* of it, so that one has always stopped before
 * another starts, without comparing clocks. One question is under way at a time.
 */
export class Election {
  readonly #name: string;
  readonly #times: ElectionTimes;
  readonly #originMs: number;
  /** Undefined where there is none, or none has been read. */
  #seen: Seen | undefined;
  /** The highest that was read or written. */
  #epoch = 0;
  /** There may have been a record before. */
  #lost: boolean;
  /** Since when there has been none, each time that it was read. */
  #missing: { readonly sinceUs: number; readonly lookedUs: number } | undefined;
  /** Nobody else has been elected before that, unless this process has heard of it. */
  #leaseEndUs = 0;
  #asked: { readonly atUs: number; readonly record: OfficeRecord | undefined } | undefined;
  /** Held until then, unless renewed. */
  #held: { readonly epoch: number; readonly untilUs: number } | undefined;
  /** That was held here. */
  #latestEpoch = 0;
  #nextLookUs = 0;
  /** A write went unanswered: only the record can say what it is now. */
  #inDoubt = false;
  #resigned = false;
  #effects: ElectionEffect[] = [];

  /** @param name of this start of a process: nobody else ever has it */
  constructor(name: string, { lost, originMs }: ElectionPast, times: ElectionTimes = defaultElectionTimes) {
    this.#name = name;
    this.#lost = lost;
    this.#originMs = originMs;
    this.#times = times;
  }

  /** Of the office, while it is held here: ask before anything is done in it, for a process may have slept. */
  epochAt(nowUs: number): number | undefined {
    return this.#held !== undefined && nowUs < this.#held.untilUs ? this.#held.epoch : undefined;
  }

  /** As the record said when it was looked at last. */
  get holder(): string | undefined {
    return this.#seen?.record.holder;
  }

  /** When a `wake` is due. */
  get nextUs(): number {
    const lookUs = this.#resigned ? Number.POSITIVE_INFINITY : this.#nextLookUs;
    return Math.min(lookUs, this.#held?.untilUs ?? Number.POSITIVE_INFINITY);
  }

  /** `nowUs` never goes back. The effects are to be carried out in order. */
  step(nowUs: number, event: ElectionEvent): readonly ElectionEffect[] {
    this.#effects = [];
    if (this.#held !== undefined && nowUs >= this.#held.untilUs) this.#depose();
    const asked = this.#asked;
    if (event.kind !== 'wake' && event.kind !== 'resign') this.#asked = undefined;
    if (event.kind === 'read') this.#see(nowUs, event.stored);
    if (event.kind === 'written' && asked?.record !== undefined)
      this.#wrote(nowUs, asked.atUs, asked.record, event.revision);
    if (event.kind === 'unanswered') this.#unanswered(asked?.record !== undefined);
    if (event.kind === 'resign') this.#resign();
    // Whoever is not answered has done what it could.
    if (!this.#resigned) this.#look(nowUs);
    else if (event.kind !== 'unanswered') this.#layDown(nowUs);
    return this.#effects;
  }

  #see(nowUs: number, stored: { readonly record: OfficeRecord; readonly revision: number } | undefined): void {
    this.#inDoubt = false;
    if (stored === undefined) {
      this.#miss(nowUs);
      return;
    }
    this.#know(nowUs, stored.record, stored.revision);
    if (!this.#isOwn(stored.record)) this.#depose();
    if (stored.record.holder === undefined) this.#claim(nowUs, stored.revision, this.#epoch + 1);
  }

  #know(nowUs: number, record: OfficeRecord, revision: number): void {
    const known = this.#seen;
    // A store that began anew may come to the same revision.
    const isKnown = known?.revision === revision && known.record.epoch === record.epoch;
    if (!isKnown || known.record.holder !== record.holder) this.#seen = { record, revision, sinceUs: nowUs };
    this.#epoch = Math.max(this.#epoch, record.epoch);
    this.#missing = undefined;
    this.#lost = true;
  }

  /** There is no record. */
  #miss(nowUs: number): void {
    this.#depose();
    this.#seen = undefined;
    const { lookUs, leaseUs } = this.#times;
    const before = this.#missing;
    // Somebody may have held it while nobody looked.
    const sinceUs = before !== undefined && nowUs - before.lookedUs <= 3 * lookUs ? before.sinceUs : nowUs;
    this.#missing = { sinceUs, lookedUs: nowUs };
    if (this.#lost && nowUs >= this.#leaseEndUs && nowUs - sinceUs < leaseUs) return;
    const unusedEpoch = this.#lost ? this.#originMs + Math.floor(nowUs / 1000) : 1;
    this.#claim(nowUs, undefined, Math.max(this.#epoch + 1, unusedEpoch));
  }

  #unanswered(wrote: boolean): void {
    // Nobody knows how long it has not been heard of.
    this.#lost = true;
    if (wrote) this.#inDoubt = true;
  }

  #isOwn({ holder, epoch }: OfficeRecord): boolean {
    return holder === this.#name && epoch === this.#held?.epoch;
  }

  #wrote(nowUs: number, askedUs: number, record: OfficeRecord, revision: number | undefined): void {
    if (revision === undefined) {
      this.#depose();
      this.#inDoubt = true;
      return;
    }
    this.#know(nowUs, record, revision);
    const untilUs = askedUs + this.#times.leaseUs - this.#times.guardUs;
    if (nowUs >= untilUs) return;
    const first = this.#held === undefined;
    // Laid down meanwhile, or its lease ended: a new claim gives a new epoch.
    if (this.#resigned || (first && record.epoch <= this.#latestEpoch)) return;
    this.#held = { epoch: record.epoch, untilUs };
    this.#leaseEndUs = untilUs;
    this.#latestEpoch = record.epoch;
    if (first) this.#effects.push({ kind: 'elected', epoch: record.epoch });
  }

  #look(nowUs: number): void {
    if (nowUs < this.#nextLookUs) return;
    this.#nextLookUs = nowUs + this.#times.lookUs;
    if (this.#asked !== undefined) return;
    const seen = this.#seen;
    if (seen === undefined || this.#inDoubt) this.#read(nowUs);
    else if (this.#isOwn(seen.record)) this.#write(nowUs, seen.record, seen.revision);
    else if (seen.record.holder === this.#name || nowUs - seen.sinceUs >= this.#times.leaseUs)
      this.#claim(nowUs, seen.revision, this.#epoch + 1);
    else this.#read(nowUs);
  }

  #read(nowUs: number): void {
    this.#asked = { atUs: nowUs, record: undefined };
    this.#effects.push({ kind: 'read' });
  }

  #claim(nowUs: number, revision: number | undefined, epoch: number): void {
    if (!this.#resigned) this.#write(nowUs, { holder: this.#name, epoch }, revision);
  }

  #write(nowUs: number, record: OfficeRecord, revision: number | undefined): void {
    this.#asked = { atUs: nowUs, record };
    this.#effects.push({ kind: 'write', record, revision });
  }

  #depose(): void {
    if (this.#held === undefined) return;
    this.#effects.push({ kind: 'deposed', epoch: this.#held.epoch });
    this.#held = undefined;
  }

  #resign(): void {
    this.#resigned = true;
    this.#depose();
  }

  /** Whoever looks next need not wait for the lease to end. What is under way may still be written in this name: its answer comes first. */
  #layDown(nowUs: number): void {
    if (this.#asked !== undefined) return;
    const seen = this.#seen;
    if (this.#inDoubt) this.#read(nowUs);
    else if (seen?.record.holder === this.#name)
      this.#write(nowUs, { holder: undefined, epoch: seen.record.epoch }, seen.revision);
  }
}
