// The agreement record over a bus that may lose it: which process restores it, and how long it is marked as restored.
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import type { Agreement } from '../../../src/core/membership/agreement.ts';
import { MemoryHub } from '../../../src/runtime/bus/memory-hub.ts';
import { agreeOn } from '../../../src/runtime/processes/agree.ts';
import type { KeepOptions } from '../../../src/runtime/processes/agreement-keeper.ts';
import { announceMissing } from '../../../src/runtime/processes/record-reconciler.ts';
import { encodeAgreement, readAgreement } from '../../../src/runtime/wire/agreement-record.ts';
import { encode } from '../../../src/runtime/wire/codec.ts';
import { wireVersion } from '../../../src/runtime/wire/versions.ts';
import { settled } from '../bus/settled.ts';
import { removeRecord, UnreliableBus } from './unreliable-bus.ts';

const root = { modelFingerprint: 'm', weightForm: 'q8', inputForm: 'bf16', kvType: 'bf16', rope: '[]' };
const instance = { modelFingerprint: 'm', root };

let hub: MemoryHub;
let buses: UnreliableBus[];
beforeEach(() => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'performance'] });
  [hub, buses] = [new MemoryHub(), []];
});
afterEach(async () => {
  vi.useRealTimers();
  for (const bus of buses) await bus.close();
});

function connect(): UnreliableBus {
  const bus = new UnreliableBus(hub.connect());
  buses.push(bus);
  return bus;
}

async function pass(ms: number): Promise<void> {
  await settled();
  vi.advanceTimersByTime(ms);
  await settled();
}

/** Joins a process: it listens for running processes for one second. */
async function join(bus: UnreliableBus, options?: KeepOptions): Promise<Agreement> {
  const agreed = agreeOn(bus, instance, options);
  await pass(1_000);
  return agreed;
}

async function agreementOf({ records }: UnreliableBus): Promise<Agreement | undefined> {
  const stored = await records.read('agreement');
  return stored && readAgreement(stored.value);
}

it('a restored record is marked until all processes have had time to restore theirs', async () => {
  const [first, other] = [connect(), connect()];
  const agreed = await join(first);
  await join(other);
  const before = await agreementOf(other);
  expect(before?.hashKey).toEqual(agreed.hashKey);
  expect(before?.restored).toBeUndefined();
  await removeRecord(first, 'agreement');
  announceMissing(other);
  await settled();
  expect(await agreementOf(other)).toEqual({ ...before, restored: true });
  expect((await join(connect())).restored).toBe(true);
  await pass(60_000);
  // A further loss restarts the time.
  announceMissing(other);
  await pass(119_999);
  expect(await agreementOf(other)).toEqual({ ...before, restored: true });
  await pass(1);
  expect(await agreementOf(other)).toEqual(before);
  expect((await join(connect())).restored).toBeUndefined();
});

it('a joining process clears the mark if the process that restored the record has left, and a disconnected one does not', async () => {
  const [first, cut] = [connect(), connect()];
  await join(first);
  await join(cut);
  const before = await agreementOf(first);
  await removeRecord(first, 'agreement');
  announceMissing(first);
  await settled();
  await first.close();
  cut.setConnected(false);
  await pass(600_000);
  const late = connect();
  expect(await join(late)).toMatchObject({ restored: true });
  await pass(118_999);
  cut.setConnected(true);
  await settled();
  await pass(1_000);
  expect(await agreementOf(late)).toEqual(before);
});

it('the first process of a cluster without a record offers the key of its blocks, and others take it', async () => {
  const [wiped, other] = [connect(), connect()];
  const offer = async (bus: UnreliableBus, hashKey: readonly number[]): Promise<readonly number[]> => {
    const agreed = agreeOn(bus, { ...instance, hashKey });
    await pass(1_000);
    return (await agreed).hashKey;
  };
  const key = [1, 2, 3, 0xffff_ffff];
  expect(await offer(wiped, key)).toEqual(key);
  expect(await offer(other, [4, 4, 4, 4])).toEqual(key);
});

/** A process, its log lines, and the reasons for which it was overruled. */
async function member(bus: UnreliableBus) {
  const log: string[] = [];
  const overruled: string[] = [];
  const agreement = await join(bus, { log: (line) => log.push(line), onOverruled: (why) => overruled.push(why) });
  return { bus, key: agreement.hashKey, log, overruled };
}

const differs = 'The cluster has another agreement than this process: it has another block hash key';
const overruledBy =
  'processes that were disconnected when it joined are back, with another agreement: it has another block hash key';

/** Two processes are disconnected `oldMs` after they joined, the record is lost, and two others join meanwhile. */
async function split(oldMs: number) {
  const old = [await member(connect()), await member(connect())];
  await pass(oldMs);
  for (const { bus } of old) bus.setConnected(false);
  await removeRecord(old[0].bus, 'agreement');
  const late = [await member(connect()), await member(connect())];
  expect(late[1]?.key).toEqual(late[0]?.key);
  expect(late[0]?.key).not.toEqual(old[0]?.key);
  return { old, late };
}

it.each([0, 60_000])(
  'processes that reconnect %d ms after joining restore their agreement and overrule those that joined meanwhile',
  async (oldMs) => {
    const { old, late } = await split(oldMs);
    await pass(20_000);
    for (const { bus } of old) bus.setConnected(true);
    await settled();
    expect((await agreementOf(late[0].bus))?.hashKey).toEqual(old[0]?.key);
    expect(late.map(({ overruled }) => overruled)).toEqual([[overruledBy], [overruledBy]]);
    for (const { overruled, log } of old) {
      expect(overruled).toEqual([]);
      expect(log.at(-1)).toBe(log.length === 0 ? undefined : 'The cluster agrees with this process again');
    }
    expect(old.some(({ log }) => log.includes(differs))).toBe(true);
    expect((await member(connect())).key).toEqual(old[0]?.key);
  },
);

it('processes that reconnect late log the difference, and the record stays', async () => {
  const { old, late } = await split(0);
  await pass(30_000);
  for (const { bus } of old) bus.setConnected(true);
  await settled();
  expect((await agreementOf(late[0].bus))?.hashKey).toEqual(late[0]?.key);
  expect([...old, ...late].map(({ overruled }) => overruled)).toEqual([[], [], [], []]);
  expect([...old, ...late].map(({ log }) => log)).toEqual([[differs], [differs], [], []]);
  // A later restoration overrules no process.
  await removeRecord(late[0].bus, 'agreement');
  announceMissing(late[0].bus);
  await settled();
  expect((await agreementOf(late[0].bus))?.restored).toBe(true);
  expect([...old, ...late].map(({ overruled }) => overruled)).toEqual([[], [], [], []]);
});

it('the record is not replaced by the agreement of another form of the model, or by a malformed message', async () => {
  const late = await member(connect());
  const outsider = connect();
  const other = { ...instance, root: { ...root, weightForm: 'q4' } };
  const theirs = { ...other, version: wireVersion, hashKey: [1, 2, 3, 4], pages: { token: 't', mark: 't' } };
  for (const bytes of [encode(theirs), encode({ ...theirs, version: 1 }), new Uint8Array([1, 2, 3])])
    outsider.publish('contested', bytes);
  await settled();
  expect((await agreementOf(outsider))?.hashKey).toEqual(late.key);
  outsider.publish('contested', encode({ ...theirs, root }));
  await settled();
  expect((await agreementOf(outsider))?.hashKey).toEqual([1, 2, 3, 4]);
  expect(late.overruled).toEqual([overruledBy]);
  // Only the first compatible agreement replaces it.
  outsider.publish('contested', encode({ ...theirs, root, hashKey: [5, 6, 7, 8] }));
  await settled();
  expect((await agreementOf(outsider))?.hashKey).toEqual([1, 2, 3, 4]);
});

it.each([
  [
    'another model',
    encodeAgreement({ hashKey: [1, 2, 3, 4], modelFingerprint: 'old', root: undefined, pages: undefined }),
  ],
  ['another version', encode({ version: 1, hashKey: [1, 2, 3, 4] })],
])('a record of %s without living members yields to processes that start together', async (_, record) => {
  const [gateway, first, second] = [connect(), connect(), connect()];
  await first.records.write('agreement', record, undefined);
  const joining = agreeOn(first, instance);
  await pass(1_000);
  const later = [agreeOn(second, instance), agreeOn(gateway, { ...instance, root: undefined })];
  await pass(500);
  const agreed = await joining;
  // The first process announces itself while the others still listen.
  for (let beat = 0; beat < 2; beat++) {
    first.publish('beat.coming', new Uint8Array());
    await pass(500);
  }
  for (const other of later) expect(await other).toMatchObject({ root, pages: agreed.pages, hashKey: [1, 2, 3, 4] });
  // A living member keeps the record.
  const late = agreeOn(connect(), { modelFingerprint: 'new', root: { ...root, modelFingerprint: 'new' } });
  const refused = expect(late).rejects.toThrow(
    'Cannot join the cluster: the cluster has the model with the fingerprint m',
  );
  await pass(500);
  first.publish('beat.instance', new Uint8Array());
  await refused;
});
