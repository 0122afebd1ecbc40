// An exception inside a driver: the other effects of the step are carried out, and its alarms continue.
import { serialize } from 'node:v8';
import { afterEach, beforeEach, expect, it, type MockInstance, vi } from 'vitest';
import { createTokenInstance } from '../../../src/core/instance/token-instance.ts';
import { defaultLendingTimes } from '../../../src/core/lending/times.ts';
import { defaultElectionTimes } from '../../../src/core/membership/election.ts';
import type { Bus } from '../../../src/runtime/bus/bus.ts';
import { MemoryHub } from '../../../src/runtime/bus/memory-hub.ts';
import { LenderLinks } from '../../../src/runtime/lending/lender-links.ts';
import { LendingManagerHost } from '../../../src/runtime/lending/lending-manager-host.ts';
import { LeaderElection } from '../../../src/runtime/processes/leader-election.ts';
import { PeerSession, silentUs } from '../../../src/runtime/processes/peer-session.ts';
import { RecordReconciler } from '../../../src/runtime/processes/record-reconciler.ts';
import { ArchiveDriver } from '../../../src/runtime/snapshots/archive-driver.ts';
import { CatchUpDriver } from '../../../src/runtime/snapshots/catch-up-driver.ts';
import { Alarm, carryOutStep } from '../../../src/runtime/threads/alarm.ts';
import { InstanceLoop } from '../../../src/runtime/threads/instance-loop.ts';
import { StepInterrupt } from '../../../src/runtime/threads/step-interrupt.ts';
import { ownAddress, publishTo, subscribeTo } from '../../../src/runtime/threads/thread-bus.ts';
import { encode } from '../../../src/runtime/wire/codec.ts';
import { readPeer } from '../../../src/runtime/wire/messages.ts';
import { wireVersion } from '../../../src/runtime/wire/versions.ts';
import { baseConfig, promptOf, request } from '../../core/instance-world.ts';
import { FakeEngine } from '../../core/scheduler/fake-engine.ts';
import { settled } from '../bus/settled.ts';
import { StalledRecords } from '../processes/stalled-records.ts';

const closing: (() => unknown)[] = [];
let alarms: MockInstance<Alarm['set']>;
beforeEach(() => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'setInterval', 'clearInterval', 'performance'] });
  alarms = vi.spyOn(Alarm.prototype, 'set');
});
afterEach(async () => {
  vi.useRealTimers();
  vi.restoreAllMocks();
  for (const close of closing.splice(0).toReversed()) await close();
});

const injected = (): never => {
  throw new Error('injected');
};

function connect(hub = new MemoryHub()) {
  const bus = hub.connect();
  closing.push(() => bus.close());
  return bus;
}

/** A bus without peers: the test delivers its messages, and every publication throws while `throws` is true. */
class ThrowingBus {
  readonly #handlers = new Map<string, Parameters<Bus['subscribe']>[1]>();
  throws = false;
  published = 0;

  subscribe(subject: string, handler: Parameters<Bus['subscribe']>[1]): () => void {
    this.#handlers.set(subject, handler);
    return () => {};
  }

  publish(): void {
    if (this.throws) injected();
    this.published++;
  }

  deliver(pattern: string, subject: string, message: unknown): void {
    this.#handlers.get(pattern)?.(serialize(message), subject);
  }
}

const manager = { times: defaultLendingTimes, blocksMin: 1, rangeBlocks: 1, uniform: () => 0.5 };
const query = (from: number) => ({
  ...{ from, to: 'gmanager', fromIncarnation: 1, toIncarnation: undefined, epoch: 1 },
  message: {
    kind: 'query',
    query: 1,
    memory: 'device',
    blocks: 1,
    refusals: [],
    reservation: undefined,
    urgent: false,
  },
});

it('a step whose effects throw carries out the others, sets the alarm, and reports the first error', () => {
  const done: string[] = [];
  const run = (step: () => readonly string[]): void =>
    carryOutStep(
      step,
      (effect) => {
        if (effect !== 'good') throw new Error(effect);
        done.push(effect);
      },
      () => done.push('alarm'),
    );
  expect(() => run(() => ['good', 'bad', 'worse', 'good'])).toThrow('bad');
  expect(() => run(injected)).toThrow('injected');
  expect(done).toEqual(['good', 'good', 'alarm', 'alarm']);
});

it('a peer session detects silent peers after its owner has thrown', async () => {
  const hub = new MemoryHub();
  const [bus, other] = [connect(hub), connect(hub)];
  const lost: string[] = [];
  const session = new PeerSession({ bus, name: 'g', incarnation: 1, log: () => {} }, 'gateway', {
    readAnnouncement: readPeer,
    onJoined: ({ member }) => {
      if (member.name === 'a') injected();
    },
    onLost: ({ member }) => {
      lost.push(member.name);
      if (member.name === 'b') injected();
    },
    onMessage: () => {},
  });
  session.start();
  closing.push(() => session.close());
  await settled();
  for (const name of ['a', 'b', 'c'])
    other.publish('beat.instance', encode({ version: wireVersion, name, incarnation: 1, number: 1 }));
  other.publish('leave.instance', encode({ name: 'b', incarnation: 1 }));
  await settled();
  expect(lost).toEqual(['b']);
  vi.advanceTimersByTime(silentUs / 1000);
  await settled();
  expect(lost).toEqual(['b', 'a', 'c']);
});

it('a candidate sets its alarm although its owner throws at its deposition', async () => {
  const bus = connect();
  const records = new StalledRecords(bus.records);
  const elected = vi.fn();
  const common = { key: 'leader', name: 'own', recordLost: false, onElected: elected, onDeposed: injected };
  const election = new LeaderElection({ ...common, records });
  election.start();
  await settled();
  expect(elected).toHaveBeenCalledOnce();
  records.stall = 'requests';
  vi.advanceTimersByTime(defaultElectionTimes.pollUs / 1000);
  await settled();
  expect(() => vi.advanceTimersByTime(defaultElectionTimes.leaseUs / 1000)).toThrow('injected');
  expect(alarms.mock.lastCall?.[0]).toBeLessThan(Number.POSITIVE_INFINITY);
});

it('the gManager of a process sets its alarm and answers again after its bus has thrown', () => {
  const bus = new ThrowingBus();
  const host = new LendingManagerHost({ ...manager, instances: 2 }, bus as unknown as Bus);
  closing.push(() => host.close());
  host.begin([{}, {}]);
  alarms.mockClear();
  bus.throws = true;
  expect(() => bus.deliver('manager.*', 'manager.0', query(0))).toThrow('injected');
  expect(alarms).toHaveBeenCalledOnce();
  bus.throws = false;
  bus.deliver('manager.*', 'manager.1', query(1));
  expect(bus.published).toBe(1);
});

it('the gManager of a cluster sets its alarm and answers again after the bus of its threads has thrown', async () => {
  const bus = connect();
  const threads = new ThrowingBus();
  const links = await LenderLinks.open({
    ...{ bus, threads: threads as unknown as Bus, name: 'a', incarnation: 1, manager, lost: false },
    ...{ onTaken: () => {}, log: () => {} },
  });
  closing.push(() => links.close());
  links.start({ identity: 'same', lendableBlocks: 32, attentionAddress: '127.0.0.1:1' });
  await settled();
  expect(links.isManager).toBe(true);
  const ask = (): void => threads.deliver(`manager.${ownAddress}`, `manager.${ownAddress}`, query(links.instance));
  alarms.mockClear();
  threads.throws = true;
  expect(ask).toThrow('injected');
  expect(alarms).toHaveBeenCalledOnce();
  threads.throws = false;
  ask();
  expect(threads.published).toBe(1);
});

it('the archive driver and the catch-up driver set their alarms although their owners throw', () => {
  const process = { bus: connect(), name: 'i', incarnation: 1, log: () => {} };
  const archive = new ArchiveDriver<string>(process, { requestSnapshot: injected, reportStored: () => {} });
  expect(() => archive.onRequest('g', false)).toThrow('injected');
  expect(alarms).toHaveBeenCalledOnce();
  const catchUp = new CatchUpDriver({
    ...{ requestSnapshot: injected, readSnapshot: async () => undefined },
    ...{ onSnapshot: () => {}, onKvEvents: () => {} },
  });
  expect(() => catchUp.feed({ kind: 'behind', instance: 0 })).toThrow('injected');
  expect(alarms).toHaveBeenCalledTimes(2);
  catchUp.close();
});

it('a reconciler repeats a check that has thrown before it returned a promise', async () => {
  let checks = 0;
  const check = (): Promise<void> => (++checks === 1 ? injected() : Promise.resolve());
  const reconciler = new RecordReconciler(connect(), { what: 'a record', check, log: () => {} });
  closing.push(() => reconciler.stop());
  reconciler.check();
  await settled();
  vi.advanceTimersByTime(250);
  await settled();
  expect(checks).toBe(2);
});

it('the loop of an instance serves further requests after an exception', async () => {
  const hub = new MemoryHub();
  const [outer, inner] = [connect(hub), connect(hub)];
  const machine = createTokenInstance(baseConfig);
  const pages = new FakeEngine(baseConfig.pages, baseConfig.groups);
  const engine = {
    run: (plan: Parameters<FakeEngine['run']>[0]) => ({ kind: 'done', result: pages.run(plan) }) as const,
  };
  const own = { bus: inner, address: '0', incarnation: 1 };
  // The loop logs a second request of the same id.
  new InstanceLoop(machine, engine, own, new StepInterrupt().polled, injected).start();
  const finished: string[] = [];
  subscribeTo(outer, 'output', ['0', 1], (message) => {
    if (message.kind !== 'events') return;
    for (const [id, event] of message.events) if (event.kind === 'finished') finished.push(id);
  });
  await settled();
  const submit = (id: string, tokens: number): void =>
    publishTo(outer, 'command', ['0', 1], { kind: 'submit', request: request(id, promptOf(tokens, 20)) });
  submit('a', 1);
  submit('a', 1);
  expect(() => inner.drain()).toThrow('injected');
  submit('b', 2);
  await settled();
  expect(finished.toSorted()).toEqual(['a', 'b']);
});
