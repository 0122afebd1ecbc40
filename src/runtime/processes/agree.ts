// How a process comes to an agreement with its cluster, and keeps it: one record, written by compare-and-set, and who is heard.
import { createHash, randomBytes, webcrypto } from 'node:crypto';
import { type Agreement, agree, type Candidate, type FreshSecrets } from '../../core/membership/agreement.ts';
import type { Bus } from '../bus/bus.ts';
import { nowUs } from '../threads/alarm.ts';
import { readAgreement, readAnyAgreement } from '../wire/agreement-record.ts';
import { wireVersion } from '../wire/frames.ts';
import {
  AgreementKeeper,
  agreementKey,
  type KeepOptions,
  subscribeContests,
  writeAgreement,
} from './agreement-keeper.ts';
import { hasTraffic, lostListenMs } from './record-reconciler.ts';

/** Three announcements of each who is there. */
const listenMs = 1_500;
/** They say it again within a moment, or not at all. */
const lostWaitMs = 50;
const lostUsMax = 10_000_000;

/** Looked after from then on, until the bus is closed. @throws Error in one line when the cluster has another model, another form of it, or processes of another version */
export async function agreeOn(bus: Bus, own: Candidate, options: KeepOptions = {}): Promise<Agreement> {
  let keeper: AgreementKeeper | undefined;
  // Before anybody can read what is written.
  subscribeContests(bus, (theirs) => keeper?.onContest(theirs));
  const { agreement, alone } = await agreed(bus, own);
  keeper = new AgreementKeeper(bus, agreement, alone, options);
  keeper.start();
  return agreement;
}

interface Agreed {
  readonly agreement: Agreement;
  /** There was no record, and nobody was heard: this process has drawn the key. */
  readonly alone: boolean;
}

async function agreed(bus: Bus, own: Candidate): Promise<Agreed> {
  const drawnNow = drawn();
  const startedUs = nowUs();
  for (;;) {
    const stored = await bus.records.read(agreementKey);
    const known = stored && (await readOurs(bus, stored.value));
    const { agreement, hashKey = drawnNow.hashKey } = known ?? {};
    const fresh = { ...drawnNow, hashKey };
    // What nobody has lost, nobody has written.
    const nobody = stored === undefined ? bus.durable : agreement === undefined;
    let others = nobody ? false : undefined;
    let verdict = agree(agreement, own, fresh, others);
    if (verdict.kind === 'discover') {
      others = await hasTraffic(bus, 'beat.*', stored === undefined ? lostListenMs : listenMs);
      verdict = agree(agreement, own, fresh, others);
    }
    if (verdict.kind === 'agreed') return { agreement: verdict.agreement, alone: false };
    if (verdict.kind === 'refused') throw new Error(`Cannot join the cluster: ${verdict.why}`);
    if (verdict.kind === 'discover') continue;
    if (verdict.kind === 'wait') {
      if (nowUs() - startedUs > lostUsMax) throw new Error(`Cannot join the cluster: ${lost}`);
      await new Promise((resolve) => setTimeout(resolve, lostWaitMs));
      continue;
    }
    const written = await writeAgreement(bus, verdict.agreement, stored?.revision);
    // Undefined: somebody else was faster.
    if (written !== undefined) return { agreement: verdict.agreement, alone: stored === undefined && others === false };
  }
}

const lost = 'its record is lost, and those who are there do not write it again: all have to be of one release';

/** Of another version nothing is kept but the key of blocks, once nobody of it is there. @throws Error in one line while somebody is */
async function readOurs(
  bus: Bus,
  record: Uint8Array,
): Promise<{ readonly agreement?: Agreement; readonly hashKey?: readonly number[] | undefined }> {
  const { version, hashKey } = readAnyAgreement(record);
  if (version === wireVersion) return { agreement: readAgreement(record) };
  if (!(await hasTraffic(bus, 'beat.*', listenMs))) return { hashKey };
  throw new Error(
    `Cannot join the cluster: its processes speak version ${version ?? 'none'}, this one ${wireVersion}: all have to be of one release`,
  );
}

function drawn(): FreshSecrets {
  const token = randomBytes(24).toString('base64url');
  const hashKey = [...webcrypto.getRandomValues(new Uint32Array(4))];
  return { hashKey, pages: { token, mark: tokenDigest(token) } };
}

/** Tells whether tokens are equal, and little else: what is given should be hard to guess. */
export function tokenDigest(token: string): string {
  return createHash('sha256').update('kvasir token 1\0').update(token).digest('hex');
}
