// Leadership over a bus: a leader that ends resigns, even while its writes are in flight, so that the next leader need
// not wait for the lease.
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { defaultElectionTimes } from '../../../src/core/membership/election.ts';
import type { Bus } from '../../../src/runtime/bus/bus.ts';
import { MemoryHub } from '../../../src/runtime/bus/memory-hub.ts';
import { Office } from '../../../src/runtime/processes/office.ts';
import { readOffice } from '../../../src/runtime/wire/lending-messages.ts';
import { settled } from '../bus/settled.ts';
import { HeldRecords } from './held-records.ts';

const lookMs = defaultElectionTimes.pollUs / 1000;
const buses: Bus[] = [];
beforeEach(() => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'performance'] });
});
afterEach(async () => {
  vi.useRealTimers();
  for (const bus of buses.splice(0)) await bus.close();
});

function offices(): {
  readonly office: Office;
  readonly records: HeldRecords;
  readonly other: Office;
  readonly bus: Bus;
} {
  const hub = new MemoryHub();
  const [own, bus] = [hub.connect(), hub.connect()];
  buses.push(own, bus);
  const records = new HeldRecords(own.records);
  const common = { key: 'office', lost: false, onElected: () => {}, onDeposed: () => {} };
  const office = new Office({ ...common, records, name: 'own' });
  return { office, records, other: new Office({ ...common, records: bus.records, name: 'other' }), bus };
}

async function pass(ms: number): Promise<void> {
  vi.advanceTimersByTime(ms);
  await settled();
}

const recordOf = async (bus: Bus) => {
  const stored = await bus.records.read('office');
  return stored && readOffice(stored.value);
};

it.each([
  ['is on its way there', 'there'],
  ['was made, and its answer is on its way', 'back'],
] as const)('a leader that resigns while a renewal %s gives up the leadership', async (_, way) => {
  const { office, records, other, bus } = offices();
  office.start();
  await settled();
  expect(office.isHeld).toBe(true);
  records.way = way;
  await pass(lookMs);
  expect(records.held).toBe(1);
  let resigned = false;
  const resigning = office.resign().then(() => {
    resigned = true;
  });
  expect(office.isHeld).toBe(false);
  await settled();
  expect(resigned).toBe(false);
  records.letGo();
  await resigning;
  expect(await recordOf(bus)).toEqual({ holder: undefined, epoch: 1 });
  other.start();
  await settled();
  expect(other.isHeld).toBe(true);
  await pass(2 * lookMs);
  expect(await recordOf(bus)).toEqual({ holder: 'other', epoch: 2 });
  await other.resign();
});

it.each(['there', 'back'] as const)(
  'a candidate that resigns while it claims the leadership, held %s, leaves it to others',
  async (way) => {
    const { office, records, bus } = offices();
    records.way = way;
    office.start();
    await settled();
    // What was read there.
    records.letGo();
    records.way = way;
    await settled();
    expect(records.held).toBe(1);
    const resigning = office.resign();
    records.letGo();
    await resigning;
    expect(await recordOf(bus)).toEqual({ holder: undefined, epoch: 1 });
  },
);

it('a leader that resigns in doubt of its renewal reads the record, and does not wait endlessly for an answer', async () => {
  const { office, records, bus } = offices();
  office.start();
  await settled();
  records.way = 'back';
  await pass(lookMs);
  records.lose();
  await settled();
  expect(await recordOf(bus)).toEqual({ holder: 'own', epoch: 1 });
  await office.resign();
  expect(await recordOf(bus)).toEqual({ holder: undefined, epoch: 1 });
  const gone = offices();
  gone.office.start();
  await settled();
  gone.records.way = 'there';
  await pass(lookMs);
  const resigning = gone.office.resign();
  gone.records.lose();
  await resigning;
  expect(await recordOf(gone.bus)).toEqual({ holder: 'own', epoch: 1 });
});
