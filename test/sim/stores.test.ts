// Simulated stores: blocks outlive their instances there, and are fetched as from any other instance.
import { expect, it } from 'vitest';
import { z } from 'zod';
import { clusterFields, instanceSpecs, pricePerHourOf } from '../../src/cli/options/cluster-options.ts';
import { readOptions } from '../../src/cli/options/options.ts';
import { type InstanceSpec, Simulation } from '../../src/sim/engine/simulation.ts';
import { blockTokens, cluster, config, nic, requestOf } from './small-cluster.ts';

/** Two instances, and a store that keeps their blocks. */
function withStore(tiers: NonNullable<InstanceSpec['machine']['tiers']>): readonly InstanceSpec[] {
  const stores = [{ instance: 2, key: 0 }];
  const [first, ...others] = cluster({ mixed: 2 }, { stores });
  if (first === undefined) throw new Error('there is no instance');
  const { handOff: _, ...machine } = first.machine;
  const ssd = { readBytesPerSecond: 1e8, writeBytesPerSecond: 1e8 };
  return [first, ...others, { role: 'store', nic, ssd, machine: { ...machine, blocks: 0, tiers, isStore: true } }];
}

const crash = {
  ...({ kind: 'crash', ratio: 0, byUs: 0, everyUs: undefined, factor: 1 } as const),
  ...{ atUs: 1_000_000, forUs: Number.POSITIVE_INFINITY },
};
const times = { reportUs: 100_000, silentUs: 500_000, timeoutUs: 25_000_000, attemptsMax: 5 };

for (const [where, tiers] of [
  ['host memory', { hostBlocks: 40, ssdBlocks: 0 }],
  ['SSD', { hostBlocks: 8, ssdBlocks: 40 }],
] as const)
  it(`a prefix outlives the instance that computed it, in the ${where} of a store`, () => {
    const instances = withStore(tiers);
    const plan = { seed: 1, times, faults: [{ ...crash, instances: [0] }] };
    const simulation = new Simulation({ ...config, instances, faults: plan });
    simulation.arrive(requestOf(0, 0, 97, 2, 7));
    if (tiers.ssdBlocks > 0) simulation.arrive(requestOf(1, 500_000, 97, 2, 8));
    simulation.advance(4_000_000);
    const before = simulation.outcome.cachedTokens;
    simulation.arrive(requestOf(2, 4_000_000, 97, 2, 7));
    simulation.advance(5_000_000);
    expect(simulation.cluster.faults?.isUp(0)).toBe(false);
    expect(simulation.unfinished).toBe(0);
    expect(simulation.outcome.cachedTokens - before).toBe(5 * blockTokens);
  });

it('stores are listed last, with memory and a price of their own; hardware without host memory is refused', () => {
  const clusterOf = (flags: Record<string, unknown>) => readOptions(z.object(clusterFields), flags);
  const flags = { mixed: '2', store: '1', storeHardware: 'h20x8', storeHostBlocks: '100', storeSsdBlocks: '50' };
  const specs = instanceSpecs(clusterOf(flags), false);
  expect(specs.map(({ role }) => role)).toEqual(['mixed', 'mixed', 'store']);
  expect(specs.map(({ machine }) => machine.stores)).toEqual([
    [{ instance: 2, key: 0 }],
    [{ instance: 2, key: 0 }],
    undefined,
  ]);
  expect(specs[2]?.machine.tiers).toEqual({ hostBlocks: 100, ssdBlocks: 50 });
  const price = (given: Record<string, unknown>) => pricePerHourOf(clusterOf(given));
  expect((price(flags) ?? 0) - (price({ mixed: '2' }) ?? 0)).toBe(24);
  expect(() => instanceSpecs(clusterOf({ mixed: '1', store: '1', storeHardware: 'cpu' }), false)).toThrow(
    'Cannot use --store 1: cpu has no host memory for blocks',
  );
});
