// How a process comes to an agreement with its cluster: one record, written by compare-and-set, and who is heard.
import { createHash, randomBytes, webcrypto } from 'node:crypto';
import { type Agreement, agree, type Candidate, type Fresh } from '../cluster/agreement.ts';
import type { Bus } from './bus/bus.ts';
import { readAgreement, readAnyAgreement } from './wire/agreement-record.ts';
import { encode } from './wire/codec.ts';
import { wireVersion } from './wire/frames.ts';

const key = 'agreement';
/** Three announcements of each who is there. */
const listenMs = 1_500;

/** @throws Error in one line when the cluster has another model, another form of it, or processes of another version */
export async function agreeOn(bus: Bus, own: Candidate): Promise<Agreement> {
  const drawnNow = drawn();
  for (;;) {
    const stored = await bus.records.read(key);
    const known = stored && (await readOurs(bus, stored.value));
    const { agreement, hashKey = drawnNow.hashKey } = known ?? {};
    const fresh = { ...drawnNow, hashKey };
    let verdict = agree(agreement, own, fresh, undefined);
    if (verdict.kind === 'listen') verdict = agree(agreement, own, fresh, await isAnybodyThere(bus));
    if (verdict.kind === 'agreed') return verdict.agreement;
    if (verdict.kind === 'refused') throw new Error(`Cannot join the cluster: ${verdict.why}`);
    if (verdict.kind === 'listen') continue;
    const record = encode({ ...verdict.agreement, version: wireVersion });
    const written = await bus.records.write(key, record, stored?.revision);
    // Undefined: somebody else was faster.
    if (written !== undefined) return verdict.agreement;
  }
}

/** Of another version nothing is kept but the key of blocks, once nobody of it is there. @throws Error in one line while somebody is */
async function readOurs(
  bus: Bus,
  record: Uint8Array,
): Promise<{ readonly agreement?: Agreement; readonly hashKey?: readonly number[] | undefined }> {
  const { version, hashKey } = readAnyAgreement(record);
  if (version === wireVersion) return { agreement: readAgreement(record) };
  if (!(await isAnybodyThere(bus))) return { hashKey };
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

function isAnybodyThere(bus: Bus): Promise<boolean> {
  return new Promise((resolve) => {
    const decide = (there: boolean): void => {
      stop();
      clearTimeout(timer);
      resolve(there);
    };
    const stop = bus.subscribe('beat.*', () => decide(true));
    const timer = setTimeout(() => decide(false), listenMs);
  });
}
