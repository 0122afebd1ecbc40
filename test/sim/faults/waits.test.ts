// Who waits for whom: cycles are found, and only those out of which nobody helps.
import { expect, it } from 'vitest';
import { cycleOfWaits, waitsOf } from '../../../src/sim/checks/waits.ts';
import { Simulation } from '../../../src/sim/engine/simulation.ts';
import { cluster, config, requestOf } from '../small-cluster.ts';

it('finds a way round when everybody in it waits for others in it', () => {
  const waits = new Map([
    ['a', [['b']]],
    ['b', [['c', 'd']]],
    ['c', [['a'], ['free']]],
    ['d', [['a']]],
  ]);
  expect(cycleOfWaits(waits)).toBe('a -> b -> c -> a');
  expect(cycleOfWaits(new Map([...waits, ['d', [['free']]]]))).toBeUndefined();
  expect(cycleOfWaits(new Map([['a', [[]]]]))).toBe('a -> nobody');
});

it('names prompts that wait for memory to land in, and none that cannot go on', () => {
  const handOff = { layerWise: false, landingTokens: 110, rechecks: false };
  const instances = cluster({ prefill: 2, decode: 1 }, { handOff, blocks: 16 });
  const seen = new Set<string>();
  const simulation: Simulation = new Simulation({
    ...config,
    instances,
    inspect: {
      after: () => {
        const waits = waitsOf(simulation.inside.instances);
        for (const who of waits.keys()) seen.add(who.replace(/^\d+/, 'one'));
        expect(cycleOfWaits(waits)).toBeUndefined();
      },
      ended: () => {},
    },
  });
  for (let i = 0; i < 12; i++) simulation.arrive(requestOf(i, 0, 100, 10));
  simulation.finish();
  expect(simulation.outcome.completedRequests).toBe(12);
  expect([...seen].sort()).toEqual(['one at 0', 'one at 1', 'one at 2']);
});
