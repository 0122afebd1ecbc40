// Attention workers under faults: no step attends to what a lost worker held, and each request ends once with all its tokens.
import { expect, it } from 'vitest';
import { Simulation } from '../../../src/sim/engine/simulation.ts';
import { addCounts, uncovered } from '../../../src/sim/faults/chaos-counts.ts';
import type { RequestWorld } from '../../../src/sim/faults/request-worlds.ts';
import { runWorkerChaos, workerChaos, workerWorld } from '../../../src/sim/faults/worker-chaos.ts';

it('breaks no rule over many seeds, and injects each fault and runs each handler', () => {
  const sum = Array.from({ length: 12 }, (_, i) => runWorkerChaos(i + 1)).reduce(addCounts);
  expect(uncovered(workerChaos, sum)).toEqual([]);
  const { requests, completed } = sum.totals;
  expect(completed).toBeGreaterThan(requests / 2);
});

it('is a function of its seed', () => {
  expect(runWorkerChaos(7)).toEqual(runWorkerChaos(7));
});

/** The state hash of a world with occasional cancels. */
function hashOf({ config, trace }: RequestWorld, coalesce: boolean): string {
  const instances = config.instances.map((one) => ({ ...one, machine: { ...one.machine, coalesce } }));
  const simulation = new Simulation({ ...config, instances, checking: false });
  for (const request of trace) {
    simulation.arrive(request);
    if (request.index % 12 === 11) simulation.cancel(String(request.index - 3));
  }
  simulation.finish();
  return simulation.outcome.stateHash;
}

it('has the same hash with equal steps run one by one', () => {
  for (let seed = 1; seed <= 4; seed++) {
    const world = workerWorld(seed);
    expect(hashOf(world, true), `seed ${seed}`).toBe(hashOf(world, false));
  }
});
