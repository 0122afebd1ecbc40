// Messages with a MAC, a number and a time: those of other clients of the server are ignored.
import { mkdtempSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeEach, expect, test } from 'vitest';
import { clusterToken } from '../../../src/cli/serve/host/cluster-token.ts';
import { AuthenticatedBus } from '../../../src/runtime/bus/authenticated-bus.ts';
import { MemoryHub } from '../../../src/runtime/bus/memory-hub.ts';
import { encode } from '../../../src/runtime/wire/codec.ts';
import { settled } from './settled.ts';

let hub: MemoryHub;
let nowMs = 0;
let log: string[] = [];
beforeEach(() => {
  [hub, nowMs, log] = [new MemoryHub(), 1e9, []];
});

const open = (token = 'a token of the test', cluster = 'c') =>
  new AuthenticatedBus(hub.connect(), { token, cluster, log: (line) => log.push(line), now: () => nowMs });

function listen(bus: AuthenticatedBus, subject = 'beat.*') {
  const received: string[] = [];
  bus.subscribe(subject, (payload, on) => received.push(`${on} ${new TextDecoder().decode(payload)}`));
  return received;
}
const bytes = (text: string) => new TextEncoder().encode(text);

test('members of a cluster receive one another in order, on several subscriptions each', async () => {
  const [a, b] = [open(), open()];
  const [all, one] = [listen(b), listen(b, 'beat.one')];
  await settled();
  a.publish('beat.one', bytes('1'));
  a.publish('beat.two', bytes(''));
  a.publish('beat.one', bytes('3'));
  await settled();
  expect([all, one]).toEqual([
    ['beat.one 1', 'beat.two ', 'beat.one 3'],
    ['beat.one 1', 'beat.one 3'],
  ]);
  expect(log).toEqual([]);
});

test('messages without the token, of another cluster, changed, or on another subject are ignored and logged once a minute', async () => {
  const [a, b, raw] = [open(), open(), hub.connect()];
  const seen: Uint8Array[] = [];
  raw.subscribe('beat.one', (payload) => seen.push(payload));
  let observed = 0;
  b.observe('beat.*', () => observed++);
  // Its own window of numbers has none: only the MAC binds a message to its subject.
  const [received, onOther] = [listen(b), listen(b, 'beat.two')];
  await settled();
  a.publish('beat.one', bytes('true'));
  await settled();
  const [genuine = bytes('')] = seen;
  for (let i = 0; i < genuine.length; i++) raw.publish('beat.one', genuine.with(i, (genuine[i] ?? 0) ^ 1));
  raw.publish('beat.two', genuine);
  raw.publish('beat.one', bytes('short'));
  open('another token of it').publish('beat.one', bytes('other'));
  open(undefined, 'other').publish('beat.one', bytes('other'));
  await settled();
  expect([received, onOther]).toEqual([['beat.one true'], []]);
  expect(observed).toBe(genuine.length + 5);
  expect(log).toEqual([
    'Ignored messages on beat: they do not have the token of this process: all processes of a cluster need the same --token',
  ]);
  nowMs += 60_000;
  raw.publish('beat.one', bytes('short'));
  await settled();
  expect(log).toHaveLength(2);
});

test('a message is accepted once, in time, and not by a subscription that follows it', async () => {
  const [a, b, raw] = [open(), open(), hub.connect()];
  const seen: Uint8Array[] = [];
  raw.subscribe('beat.*', (payload) => seen.push(payload));
  const received = listen(b);
  await settled();
  for (let i = 0; i < 3; i++) a.publish('beat.one', bytes(String(i)));
  await settled();
  const replay = async (): Promise<void> => {
    for (const payload of seen.splice(0)) raw.publish('beat.one', payload);
    await settled();
  };
  await replay();
  expect(received).toEqual(['beat.one 0', 'beat.one 1', 'beat.one 2']);
  expect(log).toEqual(['Ignored messages on beat: they arrived before: another client of NATS repeats them']);
  const later = listen(b);
  await replay();
  expect(later).toEqual([]);
  // A process that starts later accepts no message of long before.
  nowMs += 60_001;
  const fresh = listen(open());
  await settled();
  await replay();
  expect(fresh).toEqual([]);
  a.publish('beat.one', bytes('new'));
  await settled();
  expect([fresh, later, received.slice(3)]).toEqual(Array(3).fill(['beat.one new']));
});

test('messages that overtake one another are accepted within the window alone', async () => {
  const [a, b, raw] = [open(), open(), hub.connect()];
  const seen: Uint8Array[] = [];
  raw.subscribe('held', (payload) => seen.push(payload));
  await settled();
  for (let i = 0; i < 1_100; i++) a.publish('held', bytes(String(i)));
  await settled();
  const received: string[] = [];
  b.subscribe('held', (payload) => received.push(new TextDecoder().decode(payload)));
  await settled();
  for (const i of [1099, 1000, 76, 75, 1000]) raw.publish('held', seen[i] ?? bytes(''));
  await settled();
  expect(received).toEqual(['1099', '1000', '76']);
});

test('records without the token, under another key, or replayed count as absent, and members overwrite them', async () => {
  const [a, b, raw] = [open(), open(), hub.connect()];
  const text = async (bus: AuthenticatedBus, key = 'lease') => {
    const stored = await bus.records.read(key);
    return stored && new TextDecoder().decode(stored.value);
  };
  const first = await a.records.write('lease', bytes('first'), undefined);
  const genuine = (await raw.records.read('lease'))?.value ?? bytes('');
  expect([await text(a), await text(b)]).toEqual(['first', 'first']);
  expect(await b.records.write('lease', bytes('late'), undefined)).toBeUndefined();
  // Without the token: changed in any byte, under another key, of another cluster, or short.
  await raw.records.write('other', genuine, undefined);
  expect([await text(a, 'other'), await text(open(undefined, 'other'))]).toEqual([undefined, undefined]);
  let revision = first;
  for (const forged of [...genuine.keys()].map((i) => genuine.with(i, (genuine[i] ?? 0) ^ 1)).concat(bytes('short'))) {
    revision = await raw.records.write('lease', forged, revision);
    const why = forged.length < 24 ? 'unsealed' : 'token';
    expect([await text(b), await b.records.readRejected('lease')]).toEqual([undefined, { value: forged, why }]);
  }
  revision = await a.records.write('lease', bytes('second'), undefined);
  expect([await text(b), await b.records.readRejected('lease')]).toEqual(['second', undefined]);
  nowMs += 60_001;
  revision = await a.records.write('lease', bytes('third'), revision);
  expect(await text(b)).toBe('third');
  // A replay: a process that has read a later one ignores it.
  await raw.records.write('lease', genuine, revision);
  expect([await text(b), await b.records.readRejected('lease')]).toEqual([
    undefined,
    { value: genuine, why: 'replayed' },
  ]);
  // A record of an earlier release has no MAC.
  const unsealed = encode({ version: 18, versionMin: 18 });
  await raw.records.write('earlier', unsealed, undefined);
  expect(await b.records.readRejected('earlier')).toEqual({ value: unsealed, why: 'unsealed' });
});

test('stored snapshots carry a MAC too', async () => {
  const [a, b, raw] = [open(), open(), hub.connect()];
  await a.snapshots.put('part', bytes('blocks'));
  expect(new TextDecoder().decode((await b.snapshots.read('part'))?.value)).toBe('blocks');
  const sealed = (await raw.snapshots.read('part'))?.value ?? bytes('');
  await raw.records.write('part', sealed, undefined);
  expect(await b.records.read('part')).toBeUndefined();
});

test('without a given token, processes of a host share one that only their user can read', () => {
  const folder = mkdtempSync(join(tmpdir(), 'kvasir-token-'));
  expect(clusterToken('given by the operator', folder)).toBe('given by the operator');
  const drawn = clusterToken(undefined, join(folder, 'state'));
  expect(drawn).toHaveLength(32);
  expect(clusterToken(undefined, join(folder, 'state'))).toBe(drawn);
  expect(statSync(join(folder, 'state', 'cluster-token')).mode & 0o777).toBe(0o600);
  rmSync(folder, { recursive: true });
});
