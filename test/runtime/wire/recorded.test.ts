// Messages and records as releases have written them: those of each version in the range are read, and those before it are refused by name.
import { readdirSync, readFileSync } from 'node:fs';
import { expect, it } from 'vitest';
import { MemoryHub } from '../../../src/runtime/bus/memory-hub.ts';
import { agreeOn } from '../../../src/runtime/processes/agree.ts';
import { agreementKey } from '../../../src/runtime/processes/agreement-keeper.ts';
import { PeerSession } from '../../../src/runtime/processes/peer-session.ts';
import { emptySnapshot } from '../../../src/runtime/snapshots/metric-snapshots.ts';
import { readAgreement } from '../../../src/runtime/wire/agreement-record.ts';
import { encode } from '../../../src/runtime/wire/codec.ts';
import { decodeFrame } from '../../../src/runtime/wire/frames.ts';
import { readGateway, readInstance } from '../../../src/runtime/wire/messages.ts';
import { describeVersions, wireVersions } from '../../../src/runtime/wire/versions.ts';
import { wireReaders, wireSeeds } from '../../fuzz/wire-cases.ts';
import { settled } from '../bus/settled.ts';

/** Bytes in hexadecimal, as `test/runtime/wire/recorded/VERSION.json` has them. A release adds a file for its version, and changes none. */
type Recorded = Record<'gateway' | 'instance' | 'ack' | 'part' | 'record', Uint8Array>;

const folder = new URL('./recorded/', import.meta.url);
const recorded = new Map(
  readdirSync(folder).map((file) => {
    const { version, ...bytes } = JSON.parse(readFileSync(new URL(file, folder), 'utf8')) as { version: number };
    const fields = Object.entries(bytes).map(([name, hex]) => [name, Uint8Array.from(Buffer.from(String(hex), 'hex'))]);
    return [version, Object.fromEntries(fields) as Recorded] as const;
  }),
);
const versions = Array.from({ length: wireVersions.max - wireVersions.min + 1 }, (_, i) => wireVersions.min + i);
const root = { modelFingerprint: 'm', weightForm: 'q8', inputForm: 'bf16', kvType: 'bf16', rope: '[]' };

function of(version: number): Recorded {
  const found = recorded.get(version);
  if (found === undefined) throw new Error(`No messages of wire version ${version} are recorded`);
  return found;
}

it.each(versions)('messages and records of wire version %d are read', (version) => {
  const { gateway, instance, ack, part, record } = of(version);
  const start = { version, incarnation: 1, number: 1 };
  expect(readGateway(gateway)).toMatchObject({ ...start, name: 'g', traces: false });
  const own = { role: 'mixed', canSwitchRole: false, root, identity: 'ab', capacityTokens: 4096 };
  expect(readInstance(instance)).toMatchObject({ ...start, name: 'i', ...own });
  expect(decodeFrame(ack)).toEqual({ kind: 'ack', session: 2, sent: 3, received: 4, bytes: Uint8Array.of(5) });
  expect(decodeFrame(part)).toEqual({ kind: 'part', session: 2, number: 3, last: true, bytes: Uint8Array.of(5, 6) });
  expect(readAgreement(record)).toMatchObject({ version, hashKey: [1, 2, 3, 4], modelFingerprint: 'm', root });
});

it('processes, frames and records of the version before the range are refused in one line that names both', async () => {
  const before = wireVersions.min - 1;
  const { gateway, ack, record } = of(before);
  const own = describeVersions();
  expect(() => decodeFrame(ack)).toThrow(`its wire version is ${before}, that of this process ${own}`);
  const hub = new MemoryHub();
  const [bus, old] = [hub.connect(), hub.connect()];
  const log: string[] = [];
  const session = new PeerSession({ bus, name: 'i', incarnation: 1, log: (line) => void log.push(line) }, 'instance', {
    readAnnouncement: readGateway,
    onJoined: () => {},
    onLost: () => {},
    onMessage: () => {},
  });
  session.start();
  await settled();
  for (let i = 0; i < 2; i++) old.publish('beat.gateway', gateway);
  await settled();
  expect(log).toEqual([`Refused g: its wire version is ${before}, that of this process ${own}`]);
  session.close();
  // Its processes run.
  await old.records.write(agreementKey, record, undefined);
  const beats = setInterval(() => old.publish('beat.gateway', gateway), 5);
  await expect(agreeOn(bus, { modelFingerprint: 'm', root })).rejects.toThrow(
    `its processes have wire version ${before}, this one ${own}: none is common`,
  );
  clearInterval(beats);
});

/** The data with one more field in each object. */
function withNewFields(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(withNewFields);
  if (typeof value !== 'object' || value === null || ArrayBuffer.isView(value)) return value;
  const fields = Object.entries(value).map(([name, field]) => [name, withNewFields(field)] as const);
  return { ...Object.fromEntries(fields), ofTheNextRelease: { figure: 1 } };
}

it('fields of the next release are ignored in every object of every message and record', () => {
  const step = { count: 3, predictedUs: 4, stalledUs: 5 };
  const status = { snapshot: emptySnapshot, number: 1, kvEventNumber: 2, requests: [], step };
  const borrow = { kind: 'borrow', loan: 1, memory: 'host', blocks: 3, reserves: false, urgent: false, closedBelow: 1 };
  const lending = {
    kind: 'lending',
    envelope: { from: 0, fromIncarnation: 1, to: 2, toIncarnation: 1, message: borrow },
  };
  const messages = [...wireSeeds, status, lending];
  for (const [name, read] of Object.entries(wireReaders)) {
    const accepted = messages.filter((message) => accepts(read, encode(message)));
    expect(accepted.length, name).toBeGreaterThan(0);
    for (const message of accepted)
      expect(read(encode(withNewFields(message))), name).toMatchObject(read(encode(message)) as object);
  }
});

function accepts(read: (bytes: Uint8Array) => unknown, bytes: Uint8Array): boolean {
  try {
    read(bytes);
    return true;
  } catch {
    return false;
  }
}
