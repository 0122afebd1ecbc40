// Brings a process to an agreement with its cluster: one record, written by compare-and-set, and discovery of running processes.
import { createHash, randomBytes, webcrypto } from 'node:crypto';
import { type Agreement, agree, type FreshSecrets, type JoiningProcess } from '../../core/membership/agreement.ts';
import type { Bus, RejectedRecord } from '../bus/bus.ts';
import { nowUs } from '../threads/alarm.ts';
import { readAgreement, readAnyAgreement } from '../wire/agreement-record.ts';
import { commonVersion, describeVersions } from '../wire/versions.ts';
import {
  AgreementKeeper,
  agreementKey,
  type KeepOptions,
  subscribeContests,
  writeAgreement,
} from './agreement-keeper.ts';
import { hasTraffic, lostListenMs } from './record-reconciler.ts';

/** Three heartbeats of each running process. */
const discoveryMs = 1_500;
/** Poll interval while running processes restore a lost record. */
const restorePollMs = 50;
const restoreUsMax = 10_000_000;

/**
 * Agrees with the cluster, and maintains the record until the bus is closed. @throws Error in one line if the cluster has another model,
 * another form of it, or processes of another version
 */
export async function agreeOn(bus: Bus, own: JoiningProcess, options: KeepOptions = {}): Promise<Agreement> {
  let keeper: AgreementKeeper | undefined;
  // Subscribes before another process can read the written record.
  subscribeContests(bus, (theirs) => keeper?.onContest(theirs));
  const { agreement, alone } = await agreed(bus, own);
  keeper = new AgreementKeeper(bus, agreement, alone, options);
  keeper.start();
  return agreement;
}

interface Agreed {
  readonly agreement: Agreement;
  /** There was no record and no other process: this one has generated the key. */
  readonly alone: boolean;
}

async function agreed(bus: Bus, own: JoiningProcess): Promise<Agreed> {
  const generated = { ...generate(), ...(own.hashKey !== undefined && { hashKey: own.hashKey }) };
  const startedUs = nowUs();
  for (;;) {
    const stored = await bus.records.read(agreementKey);
    const refuse = async (why: string): Promise<void> => {
      // The processes that run may have replaced a record without members since.
      const current = await bus.records.read(agreementKey);
      if (current?.revision === stored?.revision) throw new Error(`Cannot join the cluster: ${why}`);
    };
    const known = stored && (await readOurs(bus, stored.value));
    if (known?.foreign !== undefined) {
      await refuse(known.foreign);
      continue;
    }
    const { agreement, hashKey = generated.hashKey } = known ?? {};
    const fresh = { ...generated, hashKey };
    // With durable records, an absent one was never written.
    const isFirst = stored === undefined ? bus.durable : agreement === undefined;
    let others = isFirst ? false : undefined;
    let verdict = agree(agreement, own, fresh, others);
    if (verdict.kind === 'discover') {
      others = await hasTraffic(bus, 'beat.*', stored === undefined ? lostListenMs : discoveryMs);
      verdict = agree(agreement, own, fresh, others);
    }
    if (verdict.kind === 'agreed') return { agreement: verdict.agreement, alone: false };
    if (verdict.kind === 'refused') {
      await refuse(verdict.why);
      continue;
    }
    if (verdict.kind === 'discover') continue;
    if (verdict.kind === 'wait') {
      const waitedUs = nowUs() - startedUs;
      const rejected = waitedUs > foreignUsMax ? await bus.records.readRejected?.(agreementKey) : undefined;
      if (rejected !== undefined) throw new Error(`Cannot join the cluster: ${describeRejected(rejected)}`);
      if (waitedUs > restoreUsMax) throw new Error(`Cannot join the cluster: ${recordLost}`);
      await new Promise((resolve) => setTimeout(resolve, restorePollMs));
      continue;
    }
    const written = await writeAgreement(bus, verdict.agreement, stored?.revision);
    // Undefined if another process wrote first.
    if (written !== undefined) return { agreement: verdict.agreement, alone: stored === undefined && others === false };
  }
}

/** Processes with this token have replaced a record without it by then. */
const foreignUsMax = 1_000_000;
const recordLost = 'its record is lost, and the running processes do not restore it: all must be of one release';

/** Why the record is ignored. An earlier release, whose records have no MAC, states its versions. */
function describeRejected({ value, why }: RejectedRecord): string {
  if (why === 'token') return 'it has another token than this one was given: all processes need the same --token';
  if (why === 'replayed') return 'its record is an old one that another client of NATS has restored';
  try {
    return `its record has no MAC and wire version ${describeVersions(readAnyAgreement(value))}, this one ${describeVersions()}: all must be of one release`;
  } catch {
    return 'its record has no MAC: another client of NATS has written it';
  }
}

interface KnownRecord {
  readonly agreement?: Agreement;
  readonly hashKey?: readonly number[] | undefined;
  /** Processes of another version run: the reason why this one cannot join. */
  readonly foreign?: string;
}

/** From a record of another version only the block hash key is used, once all its processes have ended. */
async function readOurs(bus: Bus, record: Uint8Array): Promise<KnownRecord> {
  const { hashKey, ...versions } = readAnyAgreement(record);
  if (commonVersion(versions) !== undefined) return { agreement: readAgreement(record) };
  if (!(await hasTraffic(bus, 'beat.*', discoveryMs))) return { hashKey };
  return {
    foreign: `its processes have wire version ${describeVersions(versions)}, this one ${describeVersions()}: none is common`,
  };
}

function generate(): FreshSecrets {
  const token = randomBytes(24).toString('base64url');
  const hashKey = [...webcrypto.getRandomValues(new Uint32Array(4))];
  return { hashKey, pages: { token, mark: tokenDigest(token) } };
}

/** Digest by which tokens are compared; it protects only tokens that are hard to guess. */
export function tokenDigest(token: string): string {
  return createHash('sha256').update('kvasir token 1\0').update(token).digest('hex');
}
