// What a process does about the cluster's record once it has agreed to it: says it again when it is lost, and finds out what becomes of it where two have been written.
import { type Agreement, isCompatible, reconcile } from '../../core/membership/agreement.ts';
import type { Bus } from '../bus/bus.ts';
import { nowUs } from '../threads/alarm.ts';
import { readAgreement, readAnyAgreement } from '../wire/agreement-record.ts';
import { encode } from '../wire/codec.ts';
import { wireVersion } from '../wire/frames.ts';
import { announceMissing, whenDoubtful } from './record-reconciler.ts';

export const agreementKey = 'agreement';
/** Those who are there have written again what else was lost by then, or are taken for gone. */
const mendedMs = 120_000;
/** So long after it has agreed a process gives way to those who come back: they may take longer than whoever comes listens. */
const youngUs = 30_000_000;
/** Where is told what somebody holds who finds something else in the record. */
const contested = 'contested';
const overruled = 'those who were cut off when it joined are back, and had agreed on something else';

export interface KeepOptions {
  readonly log?: (message: string) => void;
  /** Others who were cut off when it was agreed on are back, and hold what they had agreed on before: told why, once. */
  readonly onOverruled?: (why: string) => void;
}

export function writeAgreement(
  { records }: Bus,
  agreement: Agreement,
  revision: number | undefined,
): Promise<number | undefined> {
  return records.write(agreementKey, encodeAgreement(agreement), revision);
}

function encodeAgreement(agreement: Agreement): Uint8Array {
  return encode({ ...agreement, version: wireVersion });
}

/** Hears of what those hold who find something else in the record. */
export function subscribeContests(bus: Bus, contest: (theirs: Agreement) => void): void {
  bus.subscribe(contested, (bytes) => {
    const theirs = readAny(bytes);
    if (theirs !== undefined) contest(theirs);
  });
}

export class AgreementKeeper {
  readonly #bus: Bus;
  readonly #alone: boolean;
  readonly #options: KeepOptions;
  readonly #youngUntilUs = nowUs() + youngUs;
  #held: Agreement;
  /** Of a record that differs. */
  #said = '';
  #isOverruled = false;
  #mending: NodeJS.Timeout | undefined;

  /** @param alone there was no record, and nobody was heard: this process has drawn the key */
  constructor(bus: Bus, agreement: Agreement, alone: boolean, options: KeepOptions) {
    this.#bus = bus;
    this.#held = agreement;
    this.#alone = alone;
    this.#options = options;
    if (agreement.again) this.#mendLater();
  }

  /** Whoever comes finds what holds, whatever the server has lost. */
  start(): void {
    const bus = this.#bus;
    const log = (line: string): void => this.#log(line);
    const upholding = whenDoubtful(bus, { what: "the cluster's record", check: () => this.#check(), log });
    bus.watchConnection((up) => {
      // It is checked when the connection is back.
      if (!up) clearTimeout(this.#mending);
    });
    if (this.#held.pages !== undefined) return;
    // A gateway that came before all instances learns what the first one has added.
    const stop = bus.subscribe('beat.*', (_, subject) => {
      if (subject !== 'beat.coming' && subject !== 'beat.instance') return;
      stop();
      upholding.check();
    });
  }

  /** Others are back who hold something else, and have more to lose than whoever came, a moment ago, when nobody was heard. */
  onContest(theirs: Agreement): void {
    if (!this.#alone || nowUs() >= this.#youngUntilUs || !isCompatible(this.#held, theirs)) return;
    // All stays as it is where the record cannot be written.
    void this.#giveWay(theirs).catch(() => {});
  }

  async #check(): Promise<void> {
    for (;;) {
      const stored = await this.#read();
      if (stored?.agreement === 'foreign') return;
      const upheld = reconcile(stored?.agreement, this.#held);
      if (upheld.kind === 'write') {
        if ((await writeAgreement(this.#bus, upheld.agreement, stored?.revision)) === undefined) continue;
        this.#log("The cluster's record was lost: written again");
        this.#mendLater();
        return;
      }
      if (upheld.kind === 'differs') this.#differs(upheld.why, stored?.agreement.again === true);
      else this.#stands(upheld.held);
      return;
    }
  }

  async #read(): Promise<{ readonly agreement: Agreement | 'foreign'; readonly revision: number } | undefined> {
    const stored = await this.#bus.records.read(agreementKey);
    return stored && { agreement: readOurs(stored.value) ?? 'foreign', revision: stored.revision };
  }

  /** To those who hold something else, if what this process holds is still what is written. */
  async #giveWay(theirs: Agreement): Promise<void> {
    for (;;) {
      const stored = await this.#read();
      if (stored === undefined || stored.agreement === 'foreign') return;
      if (reconcile(stored.agreement, this.#held).kind !== 'consistent') return;
      if ((await writeAgreement(this.#bus, { ...theirs, again: true }, stored.revision)) === undefined) continue;
      announceMissing(this.#bus);
      return;
    }
  }

  #stands(stored: Agreement): void {
    this.#held = stored;
    if (this.#said !== '') this.#log('The cluster agrees with this process again');
    this.#said = '';
    if (stored.again) this.#mendLater();
  }

  /** @param again it is what others had agreed on before */
  #differs(why: string, again: boolean): void {
    if (again && nowUs() < this.#youngUntilUs) {
      if (!this.#isOverruled) this.#options.onOverruled?.(`${overruled}: ${why}`);
      this.#isOverruled = true;
      return;
    }
    if (this.#said !== why) this.#log(`The cluster has agreed on something else without this process: ${why}`);
    this.#said = why;
    this.#bus.publish(contested, encodeAgreement(this.#held));
  }

  #log(line: string): void {
    this.#options.log?.(line);
  }

  /** Nothing has been in doubt for so long then. */
  #mendLater(): void {
    clearTimeout(this.#mending);
    // Whoever comes next tries it, too.
    this.#mending = setTimeout(() => void this.#mend().catch(() => {}), mendedMs).unref();
  }

  async #mend(): Promise<void> {
    const stored = await this.#read();
    if (stored === undefined || stored.agreement === 'foreign' || !stored.agreement.again) return;
    if (reconcile(stored.agreement, this.#held).kind === 'consistent')
      await writeAgreement(this.#bus, { ...stored.agreement, again: undefined }, stored.revision);
  }
}

/** Undefined: of another version. */
function readOurs(bytes: Uint8Array): Agreement | undefined {
  return readAnyAgreement(bytes).version === wireVersion ? readAgreement(bytes) : undefined;
}

/** Undefined also for nonsense: anybody may have said it. */
function readAny(bytes: Uint8Array): Agreement | undefined {
  try {
    return readOurs(bytes);
  } catch {
    return undefined;
  }
}
