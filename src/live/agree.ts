// How a process comes to an agreement with its cluster: one record, written by compare-and-set, and who is heard.
import { createHash, randomBytes, webcrypto } from 'node:crypto';
import { type Agreement, agree, type Candidate, type Fresh } from '../cluster/agreement.ts';
import type { Bus } from './bus/bus.ts';
import { encode } from './wire/codec.ts';
import { readAgreement } from './wire/messages.ts';

const key = 'agreement';
/** Three announcements of each who is there. */
const listenMs = 1_500;

/** @throws Error in one line when the cluster has another model, or another form of it */
export async function agreeOn(bus: Bus, own: Candidate): Promise<Agreement> {
  const fresh = drawn();
  for (;;) {
    const stored = await bus.records.read(key);
    const agreement = stored && readAgreement(stored.value);
    let verdict = agree(agreement, own, fresh, undefined);
    if (verdict.kind === 'listen') verdict = agree(agreement, own, fresh, await isAnybodyThere(bus));
    if (verdict.kind === 'agreed') return verdict.agreement;
    if (verdict.kind === 'refused') throw new Error(`Cannot join the cluster: ${verdict.why}`);
    if (verdict.kind === 'listen') continue;
    const written = await bus.records.write(key, encode(verdict.agreement), stored?.revision);
    // Undefined: somebody else was faster.
    if (written !== undefined) return verdict.agreement;
  }
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
