// Readings of a pushed load that are doubled, late, lost, or numbered anew.
import { expect, it } from 'vitest';
import { LoadSequence } from '../../../src/core/fleet/load-sequence.ts';

it('takes each reading once, passes over lost ones, and ignores those that are doubled or late', () => {
  const sequence = new LoadSequence();
  expect(sequence.isFresh(0)).toBe(false);
  expect([0, 1, 1, 5, 3, 6].map((number) => sequence.received(10, number))).toEqual([
    ...[true, true, false, true, false, true],
  ]);
});

it('holds for three seconds, which doubled readings do not prolong', () => {
  const sequence = new LoadSequence();
  sequence.received(1_000_000, 7);
  sequence.received(3_000_000, 7);
  expect([sequence.isFresh(4_000_000), sequence.isFresh(4_000_001)]).toEqual([true, false]);
});

it('takes any number after a reconnection, and after a silence', () => {
  const sequence = new LoadSequence();
  sequence.received(0, 2 ** 60);
  expect(sequence.received(1, 0)).toBe(false);
  sequence.connected();
  expect(sequence.received(2, 0)).toBe(true);
  sequence.received(3, 2 ** 60);
  expect([sequence.received(3_000_003, 1), sequence.received(3_000_004, 1)]).toEqual([false, true]);
});
