// A simulated cluster copies a hot prefix ahead of the prompts that would wait for it, and only when it is asked to.

import { expect, it } from 'vitest';
import { Simulation } from '../../src/sim/engine/simulation.ts';
import { cluster, config, requestOf } from './small-cluster.ts';

/** Bursts of prompts with one prefix, at two instances whose link is slower than computing. */
function copies(copiesHotPrefixes: boolean) {
  const placement = { ...config.placement, copiesHotPrefixes };
  const instances = cluster({ mixed: 2 }, { blocks: 400 });
  const simulation = new Simulation({ ...config, instances, placement, linkBytesPerSecond: 4e6 });
  simulation.arrive(requestOf(0, 0, 401, 2, 7));
  for (let i = 1; i < 40; i++) simulation.arrive(requestOf(i, 5_000_000 + 1_000 * i, 401, 2, 7));
  simulation.finish();
  const { completedRequests: completed, replication } = simulation.outcome;
  return { completed, ...replication };
}

it('a hot prefix is copied ahead of prompts, and a cluster without this option copies none', () => {
  const [without, copying] = [copies(false), copies(true)];
  expect([without.completed, without.proactive]).toEqual([40, 0]);
  expect(copying.completed).toBe(40);
  // All blocks that the prompts share.
  expect(copying.proactive).toBe(24);
});
