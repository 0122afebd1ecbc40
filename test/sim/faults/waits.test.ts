// Cycles of waiting requests: all are found, and only real ones.
import { expect, it } from 'vitest';
import { cycleOfWaits, waitsOf } from '../../../src/sim/checks/waits.ts';
import { Simulation } from '../../../src/sim/engine/simulation.ts';
import { cluster, config, requestOf } from '../small-cluster.ts';

it('finds a cycle, and none where one wait can end', () => {
  const waits = new Map([
    ['a', [['b']]],
    ['b', [['c', 'd']]],
    ['c', [['a'], ['free']]],
    ['d', [['a']]],
  ]);
  expect(cycleOfWaits(waits)).toBe('a -> b -> c -> a');
  expect(cycleOfWaits(new Map([...waits, ['d', [['free']]]]))).toBeUndefined();
  expect(cycleOfWaits(new Map([['a', [[]]]]))).toBe('a -> nothing');
});

it('names prompts that wait for receive buffers, and finds no cycle among them', () => {
  const handOff = { layerWise: false, receiveTokens: 110, rechecksAdmission: false };
  const instances = cluster({ prefill: 2, decode: 1 }, { handOff, blocks: 16 });
  const seen = new Set<string>();
  const simulation: Simulation = new Simulation({
    ...config,
    instances,
    inspect: {
      after: () => {
        const waits = waitsOf(simulation.cluster.instances);
        for (const waiter of waits.keys()) seen.add(waiter.replace(/^\d+/, 'one'));
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
