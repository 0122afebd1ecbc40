// Maintains the cluster's agreement record after joining: restores it when it is lost, and resolves conflicts between two versions of it.
import { type Agreement, isCompatible, reconcile } from '../../core/membership/agreement.ts';
import type { Bus } from '../bus/bus.ts';
import { nowUs } from '../threads/alarm.ts';
import { encodeAgreement, readAgreement, readAnyAgreement } from '../wire/agreement-record.ts';
import { commonVersion } from '../wire/versions.ts';
import { announceMissing, RecordReconciler } from './record-reconciler.ts';

export const agreementKey = 'agreement';
/** Within this time running processes restore all other lost records. */
const restoredMs = 120_000;
/** For this time after joining, a process yields to others that reconnect: that may take longer than discovery waits. */
const youngUs = 30_000_000;
/** Subject on which a process publishes its agreement if the record differs. */
const contested = 'contested';
const overruled = 'processes that were disconnected when it joined are back, with another agreement';

export interface KeepOptions {
  log?(message: string): void;
  /** Called once, with the reason, when reconnected processes have restored an earlier agreement. */
  onOverruled?(why: string): void;
}

export function writeAgreement(
  { records }: Bus,
  agreement: Agreement,
  revision: number | undefined,
): Promise<number | undefined> {
  return records.write(agreementKey, encodeAgreement(agreement), revision);
}

/** Receives the agreements of processes that find another one in the record. */
export function subscribeContests(bus: Bus, onContest: (theirs: Agreement) => void): void {
  bus.subscribe(contested, (bytes) => {
    const theirs = readAny(bytes);
    if (theirs !== undefined) onContest(theirs);
  });
}

export class AgreementKeeper {
  readonly #bus: Bus;
  readonly #alone: boolean;
  readonly #options: KeepOptions;
  readonly #youngUntilUs = nowUs() + youngUs;
  #held: Agreement;
  /** How the record differs, as logged last. */
  #difference = '';
  #isOverruled = false;
  #restoreTimer: NodeJS.Timeout | undefined;

  /** @param alone there was no record and no other process: this one has generated the key */
  constructor(bus: Bus, agreement: Agreement, alone: boolean, options: KeepOptions) {
    this.#bus = bus;
    this.#held = agreement;
    this.#alone = alone;
    this.#options = options;
    if (agreement.restored) this.#scheduleRestored();
  }

  /** Restores the record from now on, so that joining processes find it. */
  start(): void {
    const bus = this.#bus;
    const reconciler = new RecordReconciler(bus, {
      what: "the cluster's record",
      check: () => this.#check(),
      log: (line) => this.#log(line),
    });
    bus.watchConnection((up) => {
      // The reconciler checks the record after the reconnection.
      if (!up) clearTimeout(this.#restoreTimer);
    });
    if (this.#held.pages !== undefined) return;
    // A gateway that joined before all instances reads the fields that the first one adds.
    const stop = bus.subscribe('beat.*', (_, subject) => {
      if (subject !== 'beat.coming' && subject !== 'beat.instance') return;
      stop();
      reconciler.check();
    });
  }

  /** Reconnected processes hold another agreement: a process that has just joined alone yields to them. */
  onContest(theirs: Agreement): void {
    if (!this.#alone || nowUs() >= this.#youngUntilUs || !isCompatible(this.#held, theirs)) return;
    // If the record cannot be written, nothing changes.
    void this.#yieldTo(theirs).catch(() => {});
  }

  async #check(): Promise<void> {
    for (;;) {
      const stored = await this.#read();
      if (stored?.agreement === 'foreign') return;
      const decision = reconcile(stored?.agreement, this.#held);
      if (decision.kind === 'write') {
        if ((await writeAgreement(this.#bus, decision.agreement, stored?.revision)) === undefined) continue;
        this.#log("The cluster's record was lost: restored it");
        this.#scheduleRestored();
        return;
      }
      if (decision.kind === 'differs') this.#onDifference(decision.why, stored?.agreement.restored === true);
      else this.#onConsistent(decision.held);
      return;
    }
  }

  async #read(): Promise<{ readonly agreement: Agreement | 'foreign'; readonly revision: number } | undefined> {
    const stored = await this.#bus.records.read(agreementKey);
    return stored && { agreement: readOurs(stored.value) ?? 'foreign', revision: stored.revision };
  }

  /** Writes their agreement if the record still has this process's own. */
  async #yieldTo(theirs: Agreement): Promise<void> {
    for (;;) {
      const stored = await this.#read();
      if (stored === undefined || stored.agreement === 'foreign') return;
      if (reconcile(stored.agreement, this.#held).kind !== 'consistent') return;
      if ((await writeAgreement(this.#bus, { ...theirs, restored: true }, stored.revision)) === undefined) continue;
      announceMissing(this.#bus);
      return;
    }
  }

  #onConsistent(stored: Agreement): void {
    this.#held = stored;
    if (this.#difference !== '') this.#log('The cluster agrees with this process again');
    this.#difference = '';
    if (stored.restored) this.#scheduleRestored();
  }

  /** @param restored the record was restored after a loss */
  #onDifference(why: string, restored: boolean): void {
    if (restored && nowUs() < this.#youngUntilUs) {
      if (!this.#isOverruled) this.#options.onOverruled?.(`${overruled}: ${why}`);
      this.#isOverruled = true;
      return;
    }
    if (this.#difference !== why) this.#log(`The cluster has another agreement than this process: ${why}`);
    this.#difference = why;
    this.#bus.publish(contested, encodeAgreement(this.#held));
  }

  #log(line: string): void {
    this.#options.log?.(line);
  }

  /** Clears the mark of a restored record after the time within which all records are restored. */
  #scheduleRestored(): void {
    clearTimeout(this.#restoreTimer);
    // On failure, the next process that joins clears it.
    this.#restoreTimer = setTimeout(() => void this.#clearRestored().catch(() => {}), restoredMs).unref();
  }

  async #clearRestored(): Promise<void> {
    const stored = await this.#read();
    if (stored === undefined || stored.agreement === 'foreign' || !stored.agreement.restored) return;
    if (reconcile(stored.agreement, this.#held).kind === 'consistent')
      await writeAgreement(this.#bus, { ...stored.agreement, restored: undefined }, stored.revision);
  }
}

/** Undefined for a record of another wire version. */
function readOurs(bytes: Uint8Array): Agreement | undefined {
  return commonVersion(readAnyAgreement(bytes)) === undefined ? undefined : readAgreement(bytes);
}

/** Undefined also for malformed bytes. */
function readAny(bytes: Uint8Array): Agreement | undefined {
  try {
    return readOurs(bytes);
  } catch {
    return undefined;
  }
}
