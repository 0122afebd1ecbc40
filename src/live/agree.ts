// How a process comes to an agreement with its cluster, and keeps it: one record, written by compare-and-set, and who is heard.
import { createHash, randomBytes, webcrypto } from 'node:crypto';
import { type Agreement, agree, type Candidate, type Fresh, uphold } from '../cluster/agreement.ts';
import { nowUs } from './alarm.ts';
import type { Bus } from './bus/bus.ts';
import { isHeard, lostListenMs, whenDoubtful } from './upheld.ts';
import { readAgreement, readAnyAgreement } from './wire/agreement-record.ts';
import { encode } from './wire/codec.ts';
import { wireVersion } from './wire/frames.ts';

const key = 'agreement';
/** Three announcements of each who is there. */
const listenMs = 1_500;
/** They say it again within a moment, or not at all. */
const lostWaitMs = 50;
const lostUsMax = 10_000_000;
/** Those who are there have written again what else was lost by then, or are taken for gone. */
const mendedMs = 120_000;

/** Looked after from then on, until the bus is closed. @throws Error in one line when the cluster has another model, another form of it, or processes of another version */
export async function agreeOn(bus: Bus, own: Candidate, log: (message: string) => void = () => {}): Promise<Agreement> {
  const agreement = await agreed(bus, own);
  keep(bus, agreement, log);
  return agreement;
}

async function agreed(bus: Bus, own: Candidate): Promise<Agreement> {
  const drawnNow = drawn();
  const startedUs = nowUs();
  for (;;) {
    const stored = await bus.records.read(key);
    const known = stored && (await readOurs(bus, stored.value));
    const { agreement, hashKey = drawnNow.hashKey } = known ?? {};
    const fresh = { ...drawnNow, hashKey };
    // What nobody has lost, nobody has written.
    const nobody = stored === undefined ? bus.lasting : agreement === undefined;
    let verdict = agree(agreement, own, fresh, nobody ? false : undefined);
    if (verdict.kind === 'listen') {
      const others = await isHeard(bus, 'beat.*', stored === undefined ? lostListenMs : listenMs);
      verdict = agree(agreement, own, fresh, others);
    }
    if (verdict.kind === 'agreed') return verdict.agreement;
    if (verdict.kind === 'refused') throw new Error(`Cannot join the cluster: ${verdict.why}`);
    if (verdict.kind === 'listen') continue;
    if (verdict.kind === 'wait') {
      if (nowUs() - startedUs > lostUsMax) throw new Error(`Cannot join the cluster: ${lost}`);
      await new Promise((resolve) => setTimeout(resolve, lostWaitMs));
      continue;
    }
    const written = await write(bus, verdict.agreement, stored?.revision);
    // Undefined: somebody else was faster.
    if (written !== undefined) return verdict.agreement;
  }
}

const lost = 'its record is lost, and those who are there do not write it again: all have to be of one release';

function write(bus: Bus, agreement: Agreement, revision: number | undefined): Promise<number | undefined> {
  return bus.records.write(key, encode({ ...agreement, version: wireVersion }), revision);
}

/** Whoever comes finds what holds, whatever the server has lost. */
function keep(bus: Bus, agreement: Agreement, log: (message: string) => void): void {
  const keeper = new Keeper(bus, agreement, log);
  const upholding = whenDoubtful(bus, { what: "the cluster's record", check: () => keeper.check(), log });
  bus.watch((up) => keeper.connect(up));
  if (agreement.pages !== undefined) return;
  // A gateway that came before all instances learns what the first one has added.
  const stop = bus.subscribe('beat.*', (_, subject) => {
    if (subject !== 'beat.coming' && subject !== 'beat.instance') return;
    stop();
    upholding.check();
  });
}

/** What one process does about the record that it has agreed to. */
class Keeper {
  readonly #bus: Bus;
  readonly #log: (message: string) => void;
  #held: Agreement;
  /** Of a record that differs. */
  #said = '';
  #mending: NodeJS.Timeout | undefined;

  constructor(bus: Bus, held: Agreement, log: (message: string) => void) {
    this.#bus = bus;
    this.#held = held;
    this.#log = log;
    if (held.again) this.#mendLater();
  }

  async check(): Promise<void> {
    for (;;) {
      const stored = await this.#read();
      if (stored?.agreement === 'foreign') return;
      const upheld = uphold(stored?.agreement, this.#held);
      if (upheld.kind === 'write') {
        if ((await write(this.#bus, upheld.agreement, stored?.revision)) === undefined) continue;
        this.#log("The cluster's record was lost: written again");
        this.#mendLater();
        return;
      }
      if (upheld.kind === 'differs') this.#differs(upheld.why);
      else this.#stands(upheld.held);
      return;
    }
  }

  /** It is checked when the connection is back. */
  connect(up: boolean): void {
    if (!up) clearTimeout(this.#mending);
  }

  async #read(): Promise<{ readonly agreement: Agreement | 'foreign'; readonly revision: number } | undefined> {
    const stored = await this.#bus.records.read(key);
    if (stored === undefined) return undefined;
    const { value, revision } = stored;
    const isForeign = readAnyAgreement(value).version !== wireVersion;
    return { agreement: isForeign ? 'foreign' : readAgreement(value), revision };
  }

  #stands(stored: Agreement): void {
    this.#held = stored;
    this.#said = '';
    if (stored.again) this.#mendLater();
  }

  #differs(why: string): void {
    if (this.#said !== why) this.#log(`The cluster has agreed on something else without this process: ${why}`);
    this.#said = why;
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
    if (uphold(stored.agreement, this.#held).kind === 'stands')
      await write(this.#bus, { ...stored.agreement, again: undefined }, stored.revision);
  }
}

/** Of another version nothing is kept but the key of blocks, once nobody of it is there. @throws Error in one line while somebody is */
async function readOurs(
  bus: Bus,
  record: Uint8Array,
): Promise<{ readonly agreement?: Agreement; readonly hashKey?: readonly number[] | undefined }> {
  const { version, hashKey } = readAnyAgreement(record);
  if (version === wireVersion) return { agreement: readAgreement(record) };
  if (!(await isHeard(bus, 'beat.*', listenMs))) return { hashKey };
  throw new Error(
    `Cannot join the cluster: its processes speak version ${version ?? 'none'}, this one ${wireVersion}: all have to be of one release`,
  );
}

function drawn(): Fresh {
  const token = randomBytes(24).toString('base64url');
  const hashKey = [...webcrypto.getRandomValues(new Uint32Array(4))];
  return { hashKey, pages: { token, mark: markOf(token) } };
}

/** Tells whether tokens are equal, and little else: what is given should be hard to guess. */
export function markOf(token: string): string {
  return createHash('sha256').update('kvasir token 1\0').update(token).digest('hex');
}
