// Growth of resident memory by role: the peak after the time to settle over that of its second half.
import { expect, it } from 'vitest';
import { ResidentMemory } from '../../../src/bench/kills/resident-memory.ts';

it('compares the largest process of a role after the time to settle with that of its second half', () => {
  const memory = new ResidentMemory(1000, 500);
  memory.observe(900, [['instance', 900]]);
  expect(memory.growth()).toEqual({});
  memory.observe(1100, [
    ['instance', 200],
    ['instance', 100],
  ]);
  memory.observe(1600, [
    ['instance', 150],
    ['gateway', 50],
  ]);
  memory.observe(9000, [['instance', 230]]);
  memory.observe(9100, [['instance', 190]]);
  expect(memory.growth()).toEqual({ instance: { settledBytes: 200, laterBytes: 230, endBytes: 190, growth: 0.15 } });
});
