// Requests under faults: whichever messages are lost or late and whichever instances fail, each request ends once and nothing leaks.

import { expect, it } from 'vitest';
import { EventQueue } from '../../../src/sim/engine/event-queue.ts';
import { addCounts, uncovered } from '../../../src/sim/faults/chaos-counts.ts';
import { parseFault } from '../../../src/sim/faults/fault-plan.ts';
import { FaultyNetwork } from '../../../src/sim/faults/faulty-network.ts';
import { requestChaos, runRequestChaos } from '../../../src/sim/faults/request-chaos.ts';
import { preemptingWorld, requestWorld, sparseWorld } from '../../../src/sim/faults/request-worlds.ts';
import { Prng } from '../../../src/util/prng.ts';
import { hashOf } from './world-hash.ts';

it('breaks no rule over many seeds, and injects each fault and runs each handler', () => {
  // In seed 43 an instance answers a reservation that no instance has any more.
  // In seed 9209244 the requests need 16 s after the last fault. In seed 9302629 a running request loses guaranteed memory
  // while all other memory is in use. In seed 9412846 requests of higher priority overtake one that waits for another's
  // load. In seed 9404160 a lease is the last to end.
  const seeds = [...Array.from({ length: 40 }, (_, i) => i + 1), 43, 9209244, 9302629, 9412846, 9404160];
  const sum = seeds.map((seed) => runRequestChaos(seed)).reduce(addCounts);
  // Each of these occurs in fewer than one of 25 worlds: the soak of 500 must reach it.
  const orphans = ['report', 'reserved', 'snapshot', 'received'].map((message) => `orphan ${message}`);
  const rare = ['late released', 'late declinePipeline', ...orphans];
  expect(uncovered(requestChaos, sum).filter((name) => !rare.includes(name))).toEqual([]);
  const { requests, completed, groups, movedBlocks, lostBlocks, hostBlocks } = sum.totals;
  expect(completed).toBeGreaterThan(requests / 2);
  expect(groups).toBeGreaterThan(20);
  expect(Math.min(movedBlocks, lostBlocks, hostBlocks)).toBeGreaterThan(0);
});

it('is a function of its seed', () => {
  expect(runRequestChaos(7)).toEqual(runRequestChaos(7));
});

it('has the same hash with equal steps run one by one', () => {
  // Seeds with earlier bugs: a reservation lost by its own plan, a fetch that takes memory from a borrower, a reconnect that separates two
  // other endpoints, a partition while blocks move home.
  const once = [270, 404, 539, 540];
  for (const seed of [...Array.from({ length: 8 }, (_, i) => i + 1), ...once]) {
    const world = requestWorld(seed);
    expect(hashOf(world, true), `seed ${seed}`).toBe(hashOf(world, false));
  }
});

it('has the same hash with equal steps run one by one where requests have priorities', () => {
  // In some of these seeds the row of a preempted request was counted in every step of a run.
  const once = [33, 34, 43];
  for (const seed of [...Array.from({ length: 4 }, (_, i) => i + 1), ...once]) {
    const world = preemptingWorld(seed);
    expect(hashOf(world, true), `seed ${seed}`).toBe(hashOf(world, false));
  }
});

it('breaks no rule and has the same hash with equal steps run one by one where requests keep only some tokens', () => {
  for (let seed = 1; seed <= 5; seed++) {
    const world = sparseWorld(seed);
    expect(hashOf(world, true), `seed ${seed}`).toBe(hashOf(world, false));
  }
});

it('ends each partition separately', () => {
  const network = new FaultyNetwork(new Prng(1, 1), [], new EventQueue(), new Map());
  const connected = () =>
    [
      [0, 2],
      [0, 1],
      [2, 1],
    ].map(([a, b]) => network.isConnected(a, b));
  const both = [0, 2];
  const one = [0];
  network.partition(both);
  network.partition(one);
  expect(connected()).toEqual([false, false, false]);
  network.reconnect(one);
  expect(connected()).toEqual([true, false, false]);
  network.reconnect(both);
  expect(connected()).toEqual([true, true, true]);
});

it('parses faults, and names in one line what is wrong with one', () => {
  expect(parseFault('crash:instance=2+3,at=60s,for=500ms')).toMatchObject({ instances: [2, 3], atUs: 6e7, forUs: 5e5 });
  expect(() => parseFault('crash:instance=2')).toThrow('requires either at (once) or every');
  expect(() => parseFault('loss:ratio=2')).toThrow('2 is not a number from 0 to 1');
  expect(() => parseFault('flood:at=1s')).toThrow('Cannot inject flood');
});
