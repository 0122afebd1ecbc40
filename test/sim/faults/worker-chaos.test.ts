// Attention workers under faults: no step attends to what a lost worker held, and each request ends once with all its tokens.

import { expect, it } from 'vitest';
import { addCounts, uncovered } from '../../../src/sim/faults/chaos-counts.ts';
import { runWorkerChaos, workerChaos, workerWorld } from '../../../src/sim/faults/worker-chaos.ts';
import { hashOf } from './world-hash.ts';

it('breaks no rule over many seeds, and injects each fault and runs each handler', () => {
  const sum = Array.from({ length: 12 }, (_, i) => runWorkerChaos(i + 1)).reduce(addCounts);
  expect(uncovered(workerChaos, sum)).toEqual([]);
  const { requests, completed } = sum.totals;
  expect(completed).toBeGreaterThan(requests / 2);
});

it('is a function of its seed', () => {
  expect(runWorkerChaos(7)).toEqual(runWorkerChaos(7));
});

it('has the same hash with equal steps run one by one', () => {
  for (let seed = 1; seed <= 4; seed++) {
    const world = workerWorld(seed);
    expect(hashOf(world, true), `seed ${seed}`).toBe(hashOf(world, false));
  }
});
