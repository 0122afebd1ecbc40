// The order of faults: every kind in every round, the same for one seed.
import { expect, it } from 'vitest';
import { FaultSchedule } from '../../../src/bench/kills/fault-schedule.ts';

const kinds = ['instance', 'gateway', 'nats', 'pause', 'hang', 'disk'];
const drawn = (seed: number, count: number): string[] => {
  const schedule = new FaultSchedule(kinds, seed);
  return Array.from({ length: count }, () => schedule.next());
};

it('injects each kind once in every round, in an order of the seed', () => {
  for (let seed = 0; seed < 50; seed++) {
    const faults = drawn(seed, 3 * kinds.length);
    for (let at = 0; at < faults.length; at += kinds.length)
      expect(faults.slice(at, at + kinds.length).toSorted()).toEqual(kinds.toSorted());
    expect(drawn(seed, 3 * kinds.length)).toEqual(faults);
  }
  expect(new Set(Array.from({ length: 50 }, (_, seed) => drawn(seed, kinds.length).join(' '))).size).toBeGreaterThan(
    30,
  );
});

it('chooses among all processes', () => {
  const schedule = new FaultSchedule(kinds, 7);
  expect(new Set(Array.from({ length: 60 }, () => schedule.victim(4)))).toEqual(new Set([0, 1, 2, 3]));
});
