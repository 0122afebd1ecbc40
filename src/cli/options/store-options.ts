// Options of simulated stores: instances that cache the blocks of other instances in host memory and on SSD.
import type { Command } from 'commander';
import { z } from 'zod';
import type { InstanceSpec } from '../../sim/engine/simulation.ts';
import { groups } from '../terminal/help.ts';
import { UsageError } from '../usage-error.ts';
import { numeric } from './schema-parts.ts';
import { hardwareSpec } from './specs.ts';
import { instanceTiers } from './tier-options.ts';

const count = numeric(z.number().int().min(0));
const positive = numeric(z.number().positive()).optional();

export const storeFields = {
  store: count.default(0),
  storeHardware: z.string().optional(),
  storeNicGbps: positive,
  storePricePerHour: positive,
  storeHostBlocks: count.optional(),
  storeSsdBlocks: count.default(0),
};

const storeSchema = z.object(storeFields);

export interface StoreOptions extends Readonly<z.infer<typeof storeSchema>> {
  readonly hardware: string;
  readonly machines?: string | undefined;
  readonly blockTokens: number;
  readonly stream: boolean;
  readonly pricePerHour?: number | undefined;
}

export function addStoreFlags(command: Command): Command {
  return command
    .optionsGroup(groups.store)
    .option(
      '--store <n>',
      'Simulate this number of store instances, which keep blocks in host memory and on SSD only (default: 0)',
    )
    .option('--store-hardware <name>', 'Build store instances from this hardware (default: --hardware)')
    .option('--store-nic-gbps <n>', 'Limit the NICs of store instances to this rate (default: by hardware)')
    .option('--store-price-per-hour <price>', 'Charge this price per store machine (default: --price-per-hour)')
    .option('--store-host-blocks <n>', 'Keep this number of KV blocks in the host memory of each store (default: half)')
    .option('--store-ssd-blocks <n>', 'Keep this number of KV blocks on the SSD of each store (default: 0)');
}

/** Appends stores, to which the other instances offer their blocks. @throws UsageError if a store has no memory */
export function withStores(options: StoreOptions, instances: readonly InstanceSpec[]): readonly InstanceSpec[] {
  const [first] = instances;
  if (options.store === 0 || first === undefined) return instances;
  const stores = Array.from({ length: options.store }, (_, i) => ({
    instance: instances.length + i,
    key: i,
  }));
  const store = storeSpec(options, first);
  return [...instances.map((spec) => ({ ...spec, machine: { ...spec.machine, stores } })), ...stores.map(() => store)];
}

function storeSpec(options: StoreOptions, { machine }: InstanceSpec): InstanceSpec {
  const { storeHostBlocks, storeSsdBlocks, storeHardware = options.hardware, storeNicGbps } = options;
  const hardware = hardwareSpec(storeHardware, options.machines);
  const { kvBytesPerToken, layers } = machine.cost;
  const { tiers, ssd } = instanceTiers({
    options: {
      ...{ hardware: storeHardware, blockTokens: options.blockTokens, stream: options.stream, lendHost: 0 },
      ...{ hostCacheBlocks: storeHostBlocks, ssdCacheBlocks: storeSsdBlocks },
    },
    hardware,
    machines: 1,
    kvBytesPerToken,
    layers,
  });
  if (tiers === undefined)
    throw new UsageError(`Cannot use --store ${options.store}: ${storeHardware} has no host memory for blocks`);
  const { handOff: _, ...own } = machine;
  return {
    role: 'store',
    nic: {
      bytesPerSecond: storeNicGbps === undefined ? hardware.nicBytesPerSecond : (storeNicGbps * 1e9) / 8,
      us: hardware.nicUs,
    },
    ssd,
    machine: { ...own, blocks: 0, pinShare: 0, tiers, isStore: true },
  };
}

/** Price of all stores together; undefined if they have none. */
export function storesPricePerHour(options: StoreOptions): number | undefined {
  if (options.store === 0) return 0;
  const { pricePerHour } = hardwareSpec(options.storeHardware ?? options.hardware, options.machines);
  const price = options.storePricePerHour ?? options.pricePerHour ?? pricePerHour;
  return price && options.store * price;
}
