// How a process comes to an agreement with its cluster, and keeps it: one record, written by compare-and-set, and who is heard.
import { createHash, randomBytes, webcrypto } from 'node:crypto';
import { type Agreement, agree, type Candidate, type Fresh, uphold } from '../cluster/agreement.ts';
import { nowUs } from './alarm.ts';
import type { Bus } from './bus/bus.ts';
import { sayMissing, whenDoubtful } from './upheld.ts';
import { readAgreement, readAnyAgreement } from './wire/agreement-record.ts';
import { encode } from './wire/codec.ts';
import { wireVersion } from './wire/frames.ts';

const key = 'agreement';
/** Three announcements of each who is there. */
const listenMs = 1_500;
/** Where the record may have been lost: those who are there are back by then, and asked. */
const lostListenMs = 1_000;
/** They say it again within a moment, or not at all. */
const lostWaitMs = 50;
const lostUsMax = 10_000_000;

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
      const others = await isAnybodyThere(bus, stored === undefined ? lostListenMs : listenMs);
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
  let held = agreement;
  let said = '';
  const check = async (): Promise<void> => {
    for (;;) {
      const stored = await bus.records.read(key);
      if (stored !== undefined && readAnyAgreement(stored.value).version !== wireVersion) return;
      const upheld = uphold(stored && readAgreement(stored.value), held);
      if (upheld.kind === 'write') {
        if ((await write(bus, upheld.agreement, stored?.revision)) === undefined) continue;
        log("The cluster's record was lost: written again");
        return;
      }
      if (upheld.kind === 'stands') held = upheld.held;
      else if (said !== upheld.why) log(`The cluster has agreed on something else without this process: ${upheld.why}`);
      said = upheld.kind === 'differs' ? upheld.why : '';
      return;
    }
  };
  const upholding = whenDoubtful(bus, { what: "the cluster's record", check, log });
  if (held.pages !== undefined) return;
  // A gateway that came before all instances learns what the first one has added.
  const stop = bus.subscribe('beat.*', (_, subject) => {
    if (subject !== 'beat.coming' && subject !== 'beat.instance') return;
    stop();
    upholding.check();
  });
}

/** Of another version nothing is kept but the key of blocks, once nobody of it is there. @throws Error in one line while somebody is */
async function readOurs(
  bus: Bus,
  record: Uint8Array,
): Promise<{ readonly agreement?: Agreement; readonly hashKey?: readonly number[] | undefined }> {
  const { version, hashKey } = readAnyAgreement(record);
  if (version === wireVersion) return { agreement: readAgreement(record) };
  if (!(await isAnybodyThere(bus, listenMs))) return { hashKey };
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

/** They look after the record meanwhile. */
function isAnybodyThere(bus: Bus, ms: number): Promise<boolean> {
  return new Promise((resolve) => {
    const decide = (there: boolean): void => {
      stop();
      clearTimeout(timer);
      resolve(there);
    };
    const stop = bus.subscribe('beat.*', () => decide(true));
    const timer = setTimeout(() => decide(false), ms);
    sayMissing(bus);
  });
}
