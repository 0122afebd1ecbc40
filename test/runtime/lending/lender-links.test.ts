// Processes that lend to one another over a bus, with threads that only record messages: lender numbers, one gManager,
// relayed messages, joins and departures.
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
import { readLenderRecord } from '../../../src/runtime/wire/lending-messages.ts';
import { wireVersion } from '../../../src/runtime/wire/versions.ts';
import { settled } from '../bus/settled.ts';
import { removeRecord, UnreliableBus } from '../processes/unreliable-bus.ts';

const closing: (() => unknown)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0)) await close();
});

const manager = { times: defaultLendingTimes, blocksMin: 1, rangeBlocks: 1, uniform: () => 0.5 };

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
  const received: unknown[] = [];
  subscribeTo(thread, 'managerOutput', [ownAddress], (wire) => received.push(wire));
  subscribeTo(thread, 'lending', [ownAddress, '*'], (wire, [, from]) =>
    received.push({ instance: Number(from), wire }),
  );
  await thread.flush();
  links.start({ identity, lendableBlocks: 32, attentionAddress: `127.0.0.1:${1000 + instance}` });
  closing.push(() => links.close());
  return { links, instance, thread, received: (): readonly unknown[] => received };
}

/** Waits until the condition holds, at most for the time-out of the test. */
async function until(holds: () => boolean | Promise<boolean>): Promise<void> {
  while (!(await holds())) await new Promise((resolve) => setTimeout(resolve, 5));
}

const messagesOfLenders = (received: readonly unknown[]): readonly unknown[] =>
  received.filter((each) => Object.hasOwn(each as object, 'wire'));

it('connect, and each receives the addresses of the others and the blocks that they lend together', async () => {
  const hub = new MemoryHub();
  const members = await Promise.all(['a', 'b', 'c'].map((name) => lender(hub.connect(), name)));
  await until(() => members.every(({ received }) => messagesOfLenders(received()).length === 2));
  for (const { instance, received } of members) {
    const others = members.filter((each) => each.instance !== instance);
    for (const other of others)
      expect(received()).toContainEqual({
        instance: other.instance,
        wire: { kind: 'attentionAddress', address: `127.0.0.1:${1000 + other.instance}` },
      });
    expect(received().at(-1)).toEqual({ kind: 'lenders', lendableBlocks: 64 });
  }
});

it('elect one gManager, which answers all lenders, and another one when it leaves', async () => {
  const hub = new MemoryHub();
  const members = await Promise.all(['a', 'b'].map((name) => lender(hub.connect(), name)));
  const holders = () => members.filter(({ links }) => links.isManager);
  await until(
    () => holders().length === 1 && members.every(({ received }) => messagesOfLenders(received()).length === 1),
  );
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
  const answers = (received: readonly unknown[], fromIncarnation: number): boolean =>
    received.some(
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
  await until(() => members.every(({ received }) => answers(received(), 1)));
  await holder?.links.close();
  const rest = members.filter((each) => each !== holder);
  await until(() => rest.every(({ links, received }) => links.isManager && answers(received(), 2)));
});

it('relay messages between threads, and report the loss of a lender', async () => {
  const hub = new MemoryHub();
  const [a, b] = await Promise.all([lender(hub.connect(), 'a'), lender(hub.connect(), 'b')]);
  await until(() => messagesOfLenders(a.received()).length === 1 && messagesOfLenders(b.received()).length === 1);
  publishTo(a.thread, 'lending', [b.instance, ownAddress], { kind: 'prepareCopy', move: 7, blocks: [1, 2] });
  await until(() => b.received().length > 2);
  expect(b.received().at(-1)).toEqual({ instance: a.instance, wire: { kind: 'prepareCopy', move: 7, blocks: [1, 2] } });
  // As the parent of a process announces when the process has died.
  announceDeparture(hub.connect(), 'lender', 'a', 1);
  await until(() => b.received().length > 3);
  expect(b.received().at(-1)).toEqual({ kind: 'instanceFailed', instance: a.instance });
});

it('refuse lenders with another block identity', async () => {
  const hub = new MemoryHub();
  const members = await Promise.all([
    lender(hub.connect(), 'a', 1, 'one'),
    lender(hub.connect(), 'b', 1, 'other'),
    lender(hub.connect(), 'c', 1, 'one'),
  ]);
  await until(
    () =>
      messagesOfLenders(members[0]?.received() ?? []).length > 0 &&
      messagesOfLenders(members[2]?.received() ?? []).length > 0,
  );
  expect(members.map(({ received }) => messagesOfLenders(received()).length)).toEqual([1, 0, 1]);
});

it('keep their number across restarts with a higher incarnation, and free it when they leave', async () => {
  const bus = new MemoryHub().connect();
  const [a, b] = [await takeNumber(bus, 'a', 10, false), await takeNumber(bus, 'b', 10, false)];
  expect([a, b]).toEqual([
    { instance: 0, incarnation: 10, isFirst: true },
    { instance: 1, incarnation: 10, isFirst: false },
  ]);
  // With a clock that was set back.
  const again = await takeNumber(bus, 'a', 3, false);
  expect(again).toMatchObject({ instance: 0, incarnation: 11 });
  await releaseNumber(bus, 'a', a);
  expect(await takeNumber(bus, 'c', 1, false)).toMatchObject({ instance: 2, incarnation: 1 });
  await releaseNumber(bus, 'a', again);
  expect(await takeNumber(bus, 'd', 1, false)).toMatchObject({ instance: 0, incarnation: 12 });
});

const placesOf = async (bus: Bus) => {
  const record = await bus.records.read('lenders');
  return record && readLenderRecord(record.value).places;
};

it('restore their numbers after the record is lost, and end when another process has theirs', async () => {
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
  // The owner of the missing entry announces itself; later it does not.
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
  const take = async (name: string, announced: readonly object[]) => {
    vi.useFakeTimers({ toFake: ['setTimeout'] });
    try {
      const place = takeNumber(bus, name, 1, true);
      await settled();
      for (const each of announced) busA.publish('beat.lender', encode({ ...own, ...each }));
      await settled();
      vi.advanceTimersByTime(silentUs / 1000);
      return await place;
    } finally {
      vi.useRealTimers();
    }
  };
  expect(await take('c', [{ name: 'a', instance: 0 }, { version: 1 }])).toMatchObject({ instance: 2, incarnation: 1 });
  expect(await take('d', [])).toMatchObject({ instance: 0, incarnation: 1 });
  const keptToo = keepNumber(busA, 'a', a, () => taken.push('a'));
  announceMissing(bus);
  await until(async () => taken.length > 0);
  expect(taken).toEqual(['a']);
  keptToo.stop();
});

it('leave no entry in the record if they leave while they restore it', async () => {
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

it('take no number twice when the record was lost while all lenders were connected', async () => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'setInterval', 'clearInterval', 'performance'] });
  try {
    const hub = new MemoryHub();
    const end = (): UnreliableBus => new UnreliableBus(hub.connect());
    const bus = end();
    /** Advances the clock until the lender is open. */
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
