// Attention workers under faults: no step attends to what a lost worker held, and each request ends once with all its tokens.
import { expect, it } from 'vitest';
import { addCounts, uncovered } from '../../../src/sim/faults/chaos-counts.ts';
import { runWorkerChaos, workerChaos } from '../../../src/sim/faults/worker-chaos.ts';

it('breaks no rule over many seeds, and injects each fault and runs each handler', () => {
  const sum = Array.from({ length: 20 }, (_, i) => runWorkerChaos(i + 1)).reduce(addCounts);
  expect(uncovered(workerChaos, sum)).toEqual([]);
  const { requests, completed } = sum.totals;
  expect(completed).toBeGreaterThan(requests / 2);
});

it('is a function of its seed', () => {
  expect(runWorkerChaos(7)).toEqual(runWorkerChaos(7));
});
