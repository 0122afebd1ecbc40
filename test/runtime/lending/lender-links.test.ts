// Processes that lend to one another over a bus, with threads that only record messages: numbers, one gManager, envelopes, joins and departures.
import { afterEach, expect, it, vi } from 'vitest';
import { defaultLendingTimes } from '../../../src/core/lending/times.ts';
import type { Bus } from '../../../src/runtime/bus/bus.ts';
import { MemoryHub } from '../../../src/runtime/bus/memory-hub.ts';
import { LenderLinks } from '../../../src/runtime/lending/lender-links.ts';
import { keepNumber, releaseNumber, takeNumber } from '../../../src/runtime/lending/lender-registry.ts';
import { announceDeparture, silentUs } from '../../../src/runtime/processes/peer-session.ts';
import { announceMissing } from '../../../src/runtime/processes/record-reconciler.ts';
import { ownAddress, publishTo, subscribeTo } from '../../../src/runtime/threads/thread-bus.ts';
import { encode } from '../../../src/runtime/wire/codec.ts';
import { wireVersion } from '../../../src/runtime/wire/frames.ts';
import { readLenderRecord } from '../../../src/runtime/wire/lending-messages.ts';
import { settled } from '../bus/settled.ts';
import { removeRecord, UnreliableBus } from '../processes/unreliable-bus.ts';

const closing: (() => unknown)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0)) await close();
});

const manager = { times: defaultLendingTimes, blocksMin: 1, blocksMax: 16, uniform: () => 0.5 };

async function lender(bus: Bus, name: string, incarnation = 1, identity = 'same') {
  const inside = new MemoryHub();
  const [threads, thread] = [inside.connect(), inside.connect()];
  const links = await LenderLinks.open({
    bus,
    threads,
    name,
    incarnation,
    manager,
    lost: false,
    onTaken: () => {},
    log: () => {},
  });
  const { instance } = links;
  const news: unknown[] = [];
  subscribeTo(thread, 'managerOutput', [ownAddress], (wire) => news.push(wire));
  subscribeTo(thread, 'lending', [ownAddress, '*'], (wire, [, from]) => news.push({ instance: Number(from), wire }));
  await thread.flush();
  links.start({ identity, lendableBlocks: 32, attentionAddress: `127.0.0.1:${1000 + instance}` });
  closing.push(() => links.close());
  return { links, instance, thread, heard: (): readonly unknown[] => news };
}

/** Asks again until the condition holds; the test's own time-out bounds it. */
async function until(holds: () => boolean | Promise<boolean>): Promise<void> {
  while (!(await holds())) await new Promise((resolve) => setTimeout(resolve, 5));
}

const doors = (heard: readonly unknown[]): readonly unknown[] =>
  heard.filter((each) => Object.hasOwn(each as object, 'wire'));

it('meet, and each hears where the others are and how much they lend together', async () => {
  const hub = new MemoryHub();
  const members = await Promise.all(['a', 'b', 'c'].map((name) => lender(hub.connect(), name)));
  await until(() => members.every(({ heard }) => doors(heard()).length === 2));
  for (const { instance, heard } of members) {
    const others = members.filter((each) => each.instance !== instance);
    for (const other of others)
      expect(heard()).toContainEqual({
        instance: other.instance,
        wire: { kind: 'attentionAddress', address: `127.0.0.1:${1000 + other.instance}` },
      });
    expect(heard().at(-1)).toEqual({ kind: 'lenders', lendableBlocks: 64 });
  }
});

it('elect one gManager, which answers all lenders, and another one when it leaves', async () => {
  const hub = new MemoryHub();
  const members = await Promise.all(['a', 'b'].map((name) => lender(hub.connect(), name)));
  const holders = () => members.filter(({ links }) => links.isManager);
  await until(() => holders().length === 1 && members.every(({ heard }) => doors(heard()).length === 1));
  const [holder] = holders();
  const query = {
    kind: 'query',
    query: 1,
    memory: 'device',
    blocks: 4,
    reservation: undefined,
    urgent: false,
    refusals: [],
  } as const;
  const answers = (heard: readonly unknown[], fromIncarnation: number): boolean =>
    heard.some(
      (each) =>
        JSON.stringify(each).includes('"candidates"') &&
        JSON.stringify(each).includes(`"fromIncarnation":${fromIncarnation}`),
    );
  const ask = ({ instance, thread }: (typeof members)[number]): void => {
    const envelope = {
      from: instance,
      fromIncarnation: 5,
      to: 'gmanager',
      toIncarnation: undefined,
      message: query,
    } as const;
    publishTo(thread, 'manager', [ownAddress], envelope);
  };
  // Before the other process has read the record, it cannot address the gManager.
  const asking = setInterval(() => members.forEach(ask), 20);
  closing.push(() => clearInterval(asking));
  await until(() => members.every(({ heard }) => answers(heard(), 1)));
  await holder?.links.close();
  const rest = members.filter((each) => each !== holder);
  await until(() => rest.every(({ links, heard }) => links.isManager && answers(heard(), 2)));
});

it('relay messages between threads, and report the loss of a lender', async () => {
  const hub = new MemoryHub();
  const [a, b] = await Promise.all([lender(hub.connect(), 'a'), lender(hub.connect(), 'b')]);
  await until(() => doors(a.heard()).length === 1 && doors(b.heard()).length === 1);
  publishTo(a.thread, 'lending', [b.instance, ownAddress], { kind: 'prepareCopy', move: 7, blocks: [1, 2] });
  await until(() => b.heard().length > 2);
  expect(b.heard().at(-1)).toEqual({ instance: a.instance, wire: { kind: 'prepareCopy', move: 7, blocks: [1, 2] } });
  // As its parent does when it has died.
  announceDeparture(hub.connect(), 'lender', 'a', 1);
  await until(() => b.heard().length > 3);
  expect(b.heard().at(-1)).toEqual({ kind: 'instanceFailed', instance: a.instance });
});

it('refuse lenders with another block identity', async () => {
  const hub = new MemoryHub();
  const members = await Promise.all([
    lender(hub.connect(), 'a', 1, 'one'),
    lender(hub.connect(), 'b', 1, 'other'),
    lender(hub.connect(), 'c', 1, 'one'),
  ]);
  await until(() => doors(members[0]?.heard() ?? []).length > 0 && doors(members[2]?.heard() ?? []).length > 0);
  expect(members.map(({ heard }) => doors(heard()).length)).toEqual([1, 0, 1]);
});

it('keep their number across restarts with a higher incarnation, and free it when they leave', async () => {
  const bus = new MemoryHub().connect();
  const [a, b] = [await takeNumber(bus, 'a', 10, false), await takeNumber(bus, 'b', 10, false)];
  expect([a, b]).toEqual([
    { instance: 0, incarnation: 10 },
    { instance: 1, incarnation: 10 },
  ]);
  // A clock was set back.
  const again = await takeNumber(bus, 'a', 3, false);
  expect(again).toEqual({ instance: 0, incarnation: 11 });
  await releaseNumber(bus, 'a', a);
  expect(await takeNumber(bus, 'c', 1, false)).toEqual({ instance: 2, incarnation: 1 });
  await releaseNumber(bus, 'a', again);
  expect(await takeNumber(bus, 'd', 1, false)).toEqual({ instance: 0, incarnation: 12 });
});

const placesOf = async (bus: Bus) => {
  const record = await bus.records.read('lenders');
  return record && readLenderRecord(record.value).places;
};

it('write their numbers again after the record is lost, and end when another process has theirs', async () => {
  const hub = new MemoryHub();
  const buses = [hub.connect(), hub.connect(), hub.connect()] as const;
  const [busA, busB, bus] = buses;
  closing.push(...buses.map((each) => () => each.close()));
  const [a, b] = [await takeNumber(busA, 'a', 10, false), await takeNumber(busB, 'b', 10, false)];
  const taken: string[] = [];
  const keptA = keepNumber(busA, 'a', a, () => taken.push('a'));
  keepNumber(busB, 'b', b, () => taken.push('b'));
  const before = await placesOf(bus);
  await removeRecord(bus, 'lenders');
  announceMissing(bus);
  await until(async () => (await placesOf(bus))?.every(({ name }) => name !== '') === true);
  expect(await placesOf(bus)).toEqual(before);
  // One of them is slow to say it, and is heard; then not even that.
  keptA.stop();
  await removeRecord(bus, 'lenders');
  announceMissing(bus);
  await until(async () => (await placesOf(bus))?.length === 2);
  expect(await placesOf(bus)).toEqual([{ name: '', incarnation: 0 }, before?.[1]]);
  const own = {
    version: wireVersion,
    incarnation: 10,
    number: 1,
    identity: 'same',
    lendableBlocks: 1,
    attentionAddress: 'host:1',
  };
  const take = async (name: string, heard: readonly object[]) => {
    vi.useFakeTimers({ toFake: ['setTimeout'] });
    try {
      const place = takeNumber(bus, name, 1, true);
      await settled();
      for (const each of heard) busA.publish('beat.lender', encode({ ...own, ...each }));
      await settled();
      vi.advanceTimersByTime(silentUs / 1000);
      return await place;
    } finally {
      vi.useRealTimers();
    }
  };
  expect(await take('c', [{ name: 'a', instance: 0 }, { version: 1 }])).toEqual({ instance: 2, incarnation: 1 });
  expect(await take('d', [])).toEqual({ instance: 0, incarnation: 1 });
  const keptToo = keepNumber(busA, 'a', a, () => taken.push('a'));
  announceMissing(bus);
  await until(async () => taken.length > 0);
  expect(taken).toEqual(['a']);
  keptToo.stop();
});

it('leave nothing in the record that was being written again as they left', async () => {
  const hub = new MemoryHub();
  const [bus, far] = [hub.connect(), new UnreliableBus(hub.connect())];
  const member = await lender(far, 'a');
  await removeRecord(bus, 'lenders');
  far.records.stall = 'responses';
  announceMissing(bus);
  await until(() => far.records.stalled > 0);
  const left = member.links.close();
  await settled();
  far.records.release();
  await left;
  expect((await placesOf(bus))?.filter(({ name }) => name !== '')).toEqual([]);
});

it('take no number twice where their record alone was lost while all were connected', async () => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'setInterval', 'clearInterval', 'performance'] });
  try {
    const hub = new MemoryHub();
    const end = (): UnreliableBus => new UnreliableBus(hub.connect());
    const bus = end();
    /** For as long as it takes. */
    const opened = async (name: string) => {
      let links: LenderLinks | undefined;
      void lender(end(), name).then((opened) => {
        links = opened.links;
      });
      while (links === undefined) {
        await settled();
        vi.advanceTimersByTime(100);
      }
      return links.instance;
    };
    expect([await opened('a'), await opened('b')]).toEqual([0, 1]);
    const before = await placesOf(bus);
    await removeRecord(bus, 'lenders');
    expect(await opened('c')).toBe(2);
    expect(await placesOf(bus)).toEqual([...(before ?? []), { name: 'c', incarnation: 1 }]);
    expect(await opened('d')).toBe(3);
  } finally {
    vi.useRealTimers();
  }
});
