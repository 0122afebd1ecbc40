// Leadership over a bus: a leader that ends resigns, even while its writes are in flight, so that the next leader need
// not wait for the lease.
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { defaultElectionTimes } from '../../../src/core/membership/election.ts';
import type { Bus } from '../../../src/runtime/bus/bus.ts';
import { MemoryHub } from '../../../src/runtime/bus/memory-hub.ts';
import { LeaderElection } from '../../../src/runtime/processes/leader-election.ts';
import { readLease } from '../../../src/runtime/wire/lending-messages.ts';
import { settled } from '../bus/settled.ts';
import { StalledRecords } from './stalled-records.ts';

const pollMs = defaultElectionTimes.pollUs / 1000;
const buses: Bus[] = [];
beforeEach(() => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'performance'] });
});
afterEach(async () => {
  vi.useRealTimers();
  for (const bus of buses.splice(0)) await bus.close();
});

function candidates(): {
  readonly own: LeaderElection;
  readonly records: StalledRecords;
  readonly other: LeaderElection;
  readonly bus: Bus;
} {
  const hub = new MemoryHub();
  const [ownBus, bus] = [hub.connect(), hub.connect()];
  buses.push(ownBus, bus);
  const records = new StalledRecords(ownBus.records);
  const common = { key: 'leader', recordLost: false, onElected: () => {}, onDeposed: () => {} };
  const own = new LeaderElection({ ...common, records, name: 'own' });
  return { own, records, other: new LeaderElection({ ...common, records: bus.records, name: 'other' }), bus };
}

async function pass(ms: number): Promise<void> {
  vi.advanceTimersByTime(ms);
  await settled();
}

const recordOf = async (bus: Bus) => {
  const stored = await bus.records.read('leader');
  return stored && readLease(stored.value);
};

it.each([
  ['has not reached the store', 'requests'],
  ['was written, before its response arrives', 'responses'],
] as const)('a leader that resigns while a renewal %s gives up the lease', async (_, stall) => {
  const { own, records, other, bus } = candidates();
  own.start();
  await settled();
  expect(own.isLeader).toBe(true);
  records.stall = stall;
  await pass(pollMs);
  expect(records.stalled).toBe(1);
  let resigned = false;
  const resigning = own.resign().then(() => {
    resigned = true;
  });
  expect(own.isLeader).toBe(false);
  await settled();
  expect(resigned).toBe(false);
  records.release();
  await resigning;
  expect(await recordOf(bus)).toEqual({ holder: undefined, epoch: 1 });
  other.start();
  await settled();
  expect(other.isLeader).toBe(true);
  await pass(2 * pollMs);
  expect(await recordOf(bus)).toEqual({ holder: 'other', epoch: 2 });
  await other.resign();
});

it.each(['requests', 'responses'] as const)(
  'a candidate that resigns while %s of its first write stall leaves the leadership vacant',
  async (stall) => {
    const { own, records, bus } = candidates();
    records.stall = stall;
    own.start();
    await settled();
    // The read.
    records.release();
    records.stall = stall;
    await settled();
    expect(records.stalled).toBe(1);
    const resigning = own.resign();
    records.release();
    await resigning;
    expect(await recordOf(bus)).toEqual({ holder: undefined, epoch: 1 });
  },
);

it('a leader that resigns after a lost response reads the record first, and does not wait for a lost response', async () => {
  const { own, records, bus } = candidates();
  own.start();
  await settled();
  records.stall = 'responses';
  await pass(pollMs);
  records.fail();
  await settled();
  expect(await recordOf(bus)).toEqual({ holder: 'own', epoch: 1 });
  await own.resign();
  expect(await recordOf(bus)).toEqual({ holder: undefined, epoch: 1 });
  const unanswered = candidates();
  unanswered.own.start();
  await settled();
  unanswered.records.stall = 'requests';
  await pass(pollMs);
  const resigning = unanswered.own.resign();
  unanswered.records.fail();
  await resigning;
  expect(await recordOf(unanswered.bus)).toEqual({ holder: 'own', epoch: 1 });
});
