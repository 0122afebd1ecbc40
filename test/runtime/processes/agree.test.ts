// The cluster's record over a bus whose records can be lost: which process writes it again, and how long joining processes are told of the loss.
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import type { Agreement } from '../../../src/core/membership/agreement.ts';
import { MemoryHub } from '../../../src/runtime/bus/memory-hub.ts';
import { agreeOn } from '../../../src/runtime/processes/agree.ts';
import type { KeepOptions } from '../../../src/runtime/processes/agreement-keeper.ts';
import { announceMissing } from '../../../src/runtime/processes/record-reconciler.ts';
import { readAgreement } from '../../../src/runtime/wire/agreement-record.ts';
import { encode } from '../../../src/runtime/wire/codec.ts';
import { wireVersion } from '../../../src/runtime/wire/frames.ts';
import { settled } from '../bus/settled.ts';
import { lose, UnsteadyBus } from './unsteady-bus.ts';

const root = { modelFingerprint: 'm', weightForm: 'q8', inputForm: 'bf16', kvType: 'bf16', rope: '[]' };
const instance = { modelFingerprint: 'm', root };

let hub: MemoryHub;
let ends: UnsteadyBus[];
beforeEach(() => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'performance'] });
  [hub, ends] = [new MemoryHub(), []];
});
afterEach(async () => {
  vi.useRealTimers();
  for (const end of ends) await end.close();
});

function end(): UnsteadyBus {
  const made = new UnsteadyBus(hub.connect());
  ends.push(made);
  return made;
}

async function pass(ms: number): Promise<void> {
  await settled();
  vi.advanceTimersByTime(ms);
  await settled();
}

/** It listens for a second, and the others for no longer. */
async function comes(bus: UnsteadyBus, options?: KeepOptions): Promise<Agreement> {
  const agreed = agreeOn(bus, instance, options);
  await pass(1_000);
  return agreed;
}

async function agreementOf({ records }: UnsteadyBus): Promise<Agreement | undefined> {
  const stored = await records.read('agreement');
  return stored && readAgreement(stored.value);
}

it('reports the loss until all members have had time to write theirs again, and no longer', async () => {
  const [first, other] = [end(), end()];
  const agreed = await comes(first);
  await comes(other);
  const before = await agreementOf(other);
  expect(before?.hashKey).toEqual(agreed.hashKey);
  expect(before?.again).toBeUndefined();
  await lose(first, 'agreement');
  announceMissing(other);
  await settled();
  expect(await agreementOf(other)).toEqual({ ...before, again: true });
  expect((await comes(end())).again).toBe(true);
  await pass(60_000);
  // Something may have been lost again.
  announceMissing(other);
  await pass(119_999);
  expect(await agreementOf(other)).toEqual({ ...before, again: true });
  await pass(1);
  expect(await agreementOf(other)).toEqual(before);
  expect((await comes(end())).again).toBeUndefined();
});

it('is completed by a joining process once the processes that restored it have left, and not by a disconnected one', async () => {
  const [first, cut] = [end(), end()];
  await comes(first);
  await comes(cut);
  const before = await agreementOf(first);
  await lose(first, 'agreement');
  announceMissing(first);
  await settled();
  await first.close();
  cut.connect(false);
  await pass(600_000);
  const late = end();
  expect(await comes(late)).toMatchObject({ again: true });
  await pass(118_999);
  cut.connect(true);
  await settled();
  await pass(1_000);
  expect(await agreementOf(late)).toEqual(before);
});

/** A process, what it has logged, and whether it was told to step aside. */
async function member(bus: UnsteadyBus) {
  const log: string[] = [];
  const overruled: string[] = [];
  const agreement = await comes(bus, { log: (line) => log.push(line), onOverruled: (why) => overruled.push(why) });
  return { bus, key: agreement.hashKey, log, overruled };
}

const elsewhere = 'The cluster has another agreement than this process: it has another block hash key';
const aside =
  'processes that were disconnected when it joined are back, with another agreement: it has another block hash key';

/** Two processes are cut off when they are so old, the record is lost, and two others come meanwhile. */
async function split(oldMs: number) {
  const old = [await member(end()), await member(end())];
  await pass(oldMs);
  for (const { bus } of old) bus.connect(false);
  await lose(old[0].bus, 'agreement');
  const late = [await member(end()), await member(end())];
  expect(late[1]?.key).toEqual(late[0]?.key);
  expect(late[0]?.key).not.toEqual(old[0]?.key);
  return { old, late };
}

it.each([0, 60_000])(
  'is the one of members that return %d ms old; a newcomer with another one is told to leave',
  async (oldMs) => {
    const { old, late } = await split(oldMs);
    await pass(20_000);
    for (const { bus } of old) bus.connect(true);
    await settled();
    expect((await agreementOf(late[0].bus))?.hashKey).toEqual(old[0]?.key);
    expect(late.map(({ overruled }) => overruled)).toEqual([[aside], [aside]]);
    for (const { overruled, log } of old) {
      expect(overruled).toEqual([]);
      expect(log.at(-1)).toBe(log.length === 0 ? undefined : 'The cluster agrees with this process again');
    }
    expect(old.some(({ log }) => log.includes(elsewhere))).toBe(true);
    expect((await member(end())).key).toEqual(old[0]?.key);
  },
);

it('stays as it is when members return late: they log it', async () => {
  const { old, late } = await split(0);
  await pass(30_000);
  for (const { bus } of old) bus.connect(true);
  await settled();
  expect((await agreementOf(late[0].bus))?.hashKey).toEqual(late[0]?.key);
  expect([...old, ...late].map(({ overruled }) => overruled)).toEqual([[], [], [], []]);
  expect([...old, ...late].map(({ log }) => log)).toEqual([[elsewhere], [elsewhere], [], []]);
  // A later write overrules no other.
  await lose(late[0].bus, 'agreement');
  announceMissing(late[0].bus);
  await settled();
  expect((await agreementOf(late[0].bus))?.again).toBe(true);
  expect([...old, ...late].map(({ overruled }) => overruled)).toEqual([[], [], [], []]);
});

it('is not replaced by a process with another form of the model, or by a malformed message', async () => {
  const late = await member(end());
  const stranger = end();
  const other = { ...instance, root: { ...root, weightForm: 'q4' } };
  const theirs = { ...other, version: wireVersion, hashKey: [1, 2, 3, 4], pages: { token: 't', mark: 't' } };
  for (const bytes of [encode(theirs), encode({ ...theirs, version: 1 }), new Uint8Array([1, 2, 3])])
    stranger.publish('contested', bytes);
  await settled();
  expect((await agreementOf(stranger))?.hashKey).toEqual(late.key);
  stranger.publish('contested', encode({ ...theirs, root }));
  await settled();
  expect((await agreementOf(stranger))?.hashKey).toEqual([1, 2, 3, 4]);
  expect(late.overruled).toEqual([aside]);
  // To the first of several.
  stranger.publish('contested', encode({ ...theirs, root, hashKey: [5, 6, 7, 8] }));
  await settled();
  expect((await agreementOf(stranger))?.hashKey).toEqual([1, 2, 3, 4]);
});
