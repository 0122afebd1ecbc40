// The simulated cluster from options: instances by role, their hardware, and the network between them.
import { type Command, Option } from 'commander';
import { z } from 'zod';
import type { StepCostModel } from '../../core/cost/roofline.ts';
import { type EvictionKind, evictionKinds } from '../../core/kvcache/eviction.ts';
import type { PipelineSettings } from '../../core/pipeline/group.ts';
import { batchingKinds } from '../../core/scheduler/batching/batching-order.ts';
import { backgroundLimits } from '../../core/scheduler/batching/step-budget.ts';
import type { InstanceSpec } from '../../sim/engine/simulation.ts';
import { readSimulatedFleet } from '../serve/fleet/fleet-file.ts';
import {
  type AttentionWorkerSettings,
  addSimulatedAttentionFlags,
  attentionWorkerFields,
  attentionWorkersCost,
  dopOf,
} from '../simulate/simulated-attention-workers.ts';
import {
  simulatedSparsity,
  simulatedSparsityFields,
  sparseCostModel,
  sparseWorkersCost,
} from '../simulate/simulated-sparsity.ts';
import { groups } from '../terminal/help.ts';
import { UsageError } from '../usage-error.ts';
import { costKinds, createCostModel, defaultChunkTokens, defaultMemoryShare, spanOf } from './cost-model.ts';
import { toFlag } from './options.ts';
import { addRoleFlags, instanceRoles, roleFields, settingsOf } from './role-options.ts';
import { numeric } from './schema-parts.ts';
import { addSparseFlags } from './sparse-options.ts';
import { hardwareSpec, modelSpec } from './specs.ts';
import { addStandbyFlags, standbyFields, startUs } from './standby-options.ts';
import { addStoreFlags, storeFields, storesPricePerHour, withStores } from './store-options.ts';
import { addTierFlags, instanceTiers, tierFields } from './tier-options.ts';

const count = (least: number) => numeric(z.number().int().min(least));
const positive = numeric(z.number().positive());

export const clusterFields = {
  model: z.string().default('llama2-70b'),
  hardware: z.string().default('a800x8'),
  models: z.string().optional(),
  machines: z.string().optional(),
  prefill: count(0).default(0),
  decode: count(0).default(0),
  mixed: count(0).optional(),
  fleet: z.string().min(1).optional(),
  standby: count(0).default(0),
  ...standbyFields,
  tp: count(1).optional(),
  pp: count(1).default(1),
  precision: z.enum(['bf16', 'fp8']).default('bf16'),
  kvType: z.enum(['bf16', 'fp8']).default('bf16'),
  expertImbalance: numeric(z.number().min(1)).default(1),
  specTokens: count(1).optional(),
  specAcceptance: numeric(z.number().min(0).max(1)).optional(),
  specModel: z.string().optional(),
  cost: z.enum(costKinds).default('roofline'),
  tables: z.string().optional(),
  gpuMemoryUtilization: numeric(z.number().gt(0).max(1)).default(defaultMemoryShare),
  blockTokens: count(1).default(512),
  cacheBlocks: count(1).optional(),
  eviction: z.enum(evictionKinds).default('lru'),
  ...tierFields,
  chunkTokens: count(1).default(defaultChunkTokens),
  sequences: count(1).default(256),
  stepMs: positive.default(100),
  pinMemory: numeric(z.number().min(0).max(0.9)).default(0),
  batchMemory: numeric(z.number().gt(0).max(1)).default(backgroundLimits.memoryShare),
  batchStepMs: positive.default(backgroundLimits.stepUs / 1000),
  sharing: z.enum(batchingKinds).default('tokens'),
  nicGbps: positive.optional(),
  linkGbps: positive.optional(),
  rack: count(1).optional(),
  rackGbps: positive.optional(),
  rackUs: numeric(z.number().min(0)).optional(),
  cppGroup: count(2).optional(),
  cppTokens: count(0).default(65_536),
  pricePerHour: positive.optional(),
  ...attentionWorkerFields,
  ...simulatedSparsityFields,
  ...roleFields,
  ...storeFields,
  stream: z.boolean().default(true),
  aheadOfUse: z.boolean().default(false),
  coalesce: z.boolean().default(true),
};

const clusterSchema = z.object(clusterFields);
type ClusterOptions = Readonly<z.infer<typeof clusterSchema>>;

export function addClusterFlags(command: Command): Command {
  command
    .optionsGroup(groups.cluster)
    .option('--hardware <name>', 'Build each instance from this entry of specs/hardware.yaml (default: a800x8)')
    .option('--prefill <n>', 'Simulate this number of prefill instances (default: 0)')
    .option('--decode <n>', 'Simulate this number of decode instances (default: 0)')
    .option(
      '--mixed <n>',
      'Simulate this number of instances that prefill and decode (default: 8, or 0 with --prefill)',
    )
    .option(
      '--fleet <file>',
      'Simulate the external engines of this fleet file, with the step times of --tables, in place of instances',
    )
    .option('--price-per-hour <price>', 'Charge this price per machine and hour (default: by hardware)')
    .optionsGroup(groups.standby)
    .option(
      '--standby <n>',
      'Keep this number of larger instances stopped until a request outgrows a mixed instance (default: 0)',
    );
  return addStoreFlags(addStandbyFlags(addRoleFlags(addInstanceFlags(command))));
}

/** Flags that the cost model of an instance follows from. */
function addCostFlags(command: Command): Command {
  return command
    .optionsGroup(groups.model)
    .option('--model <name>', 'Serve this entry of specs/models.yaml (default: llama2-70b)')
    .option('--models <file>', 'Read more models from this YAML file')
    .option('--machines <file>', 'Read more hardware from this YAML file')
    .optionsGroup(groups.instances)
    .option(
      '--tp <n>',
      'Split each layer over this number of devices, over several machines if necessary (default: one machine)',
    )
    .option('--pp <n>', 'Split the layers over this number of pipeline stages (default: 1)')
    .addOption(
      new Option('--precision <type>', 'Store weights and compute in this precision (default: bf16)').choices([
        'bf16',
        'fp8',
      ]),
    )
    .addOption(
      new Option('--kv-type <type>', 'Store keys and values in this precision (default: bf16)').choices([
        'bf16',
        'fp8',
      ]),
    )
    .option(
      '--expert-imbalance <x>',
      'Give the busiest device this multiple of the mean rows of experts (default: 1: even routing)',
    )
    .option('--spec-tokens <n>', 'Decode speculatively: draft this number of tokens in each step (default: off)')
    .option(
      '--spec-acceptance <share>',
      'Accept each drafted token with this probability, if those before it are accepted',
    )
    .option('--spec-model <name>', 'Draft with this model on the same devices (default: drafting takes no time)')
    .addOption(new Option('--cost <model>', 'Predict step times by this model (default: roofline)').choices(costKinds))
    .option('--tables <dir>', 'Read measured kernel latencies from this directory, for --cost table')
    .option(
      '--gpu-memory-utilization <share>',
      'Use this share of the device memory for weights, activations and KV (default: 0.9)',
    );
}

/** Flags of all instances and their network, without hardware and instance counts. */
export function addInstanceFlags(command: Command): Command {
  const eviction: readonly EvictionKind[] = evictionKinds;
  addCostFlags(command)
    .option('--chunk-tokens <n>', 'Compute at most this number of tokens in a step (default: 8192)')
    .option('--sequences <n>', 'Run at most this number of sequences at once on an instance (default: 256)')
    .option('--step-ms <ms>', 'Limit the predicted time of a step that decodes and prefills (default: 100)')
    .addOption(
      new Option(
        '--sharing <order>',
        'Order requests of equal priority by the tokens that their tenant received, or by arrival (default: tokens)',
      ).choices(batchingKinds),
    )
    .option(
      '--ahead-of-use',
      'Start a request while its remote prefix still arrives, layer by layer, as live instances do',
    )
    .option('--no-coalesce', 'Simulate equal decode steps one by one: slower, with the same outcome')
    .optionsGroup(groups.memory)
    .option('--block-tokens <n>', 'Use blocks of this number of tokens; must match the trace (default: 512)')
    .option('--cache-blocks <n>', 'Give each instance this number of KV blocks (default: by its memory)')
    .addOption(new Option('--eviction <order>', 'Evict cached blocks in this order (default: lru)').choices(eviction))
    .option('--pin-memory <share>', 'Let pinned prefixes hold at most this share of the KV memory (default: 0)')
    .option('--batch-memory <share>', 'Let batch jobs hold at most this share of the KV memory (default: 0.2)')
    .option('--batch-step-ms <ms>', 'Limit the predicted time of a step of batch jobs only (default: 50)')
    .optionsGroup(groups.network)
    .option('--nic-gbps <n>', 'Limit what an instance sends, and what it receives, to this rate (default: by hardware)')
    .option('--link-gbps <n>', 'Limit each direction between two instances to this rate (default: the NIC rate)')
    .option('--rack <n>', 'Put this number of instances in each rack (default: all are neighbours)')
    .option(
      '--rack-gbps <n>',
      'Give the uplink of a rack this rate in each direction (default: the NICs of one instance)',
    )
    .option('--rack-us <us>', 'Add this latency between two racks (default: 0)')
    .option('--no-stream', 'Send keys and values after the whole prompt is computed, not layer by layer')
    .optionsGroup(groups.pipeline)
    .option(
      '--cpp-group <n>',
      'Compute a long prompt as a pipeline of chunks on this number of prefill instances (default: off)',
    )
    .option(
      '--cpp-tokens <n>',
      'Use the pipeline for prompts with more tokens than this, if it is faster (default: 65536)',
    );
  return addTierFlags(addSparseFlags(addSimulatedAttentionFlags(command)));
}

/** Instance counts by role. @throws UsageError */
function countsOf({ prefill, decode, mixed = prefill + decode > 0 ? 0 : 8, standby }: ClusterOptions) {
  if (prefill > 0 !== decode > 0) {
    throw new UsageError(`Cannot use --prefill ${prefill} with --decode ${decode}: each needs the other`);
  }
  if (prefill + decode + mixed === 0) throw new UsageError('Cannot simulate --mixed 0: there is no instance');
  return { prefill, decode, mixed, standby };
}

/** Instances in the order prefill, decode, mixed, standby, store. @param rechecksAdmission decode instances refuse received prompts that would miss their SLO @throws UsageError */
export function instanceSpecs(options: ClusterOptions, rechecksAdmission: boolean): readonly InstanceSpec[] {
  if (options.fleet !== undefined) return fleetSpecs(options, options.fleet);
  const counts = countsOf(options);
  const costs = new Map<string, StepCostModel>();
  const instances = instanceRoles.flatMap((role): readonly InstanceSpec[] => {
    if (counts[role] === 0) return [];
    const standby = role === 'standby';
    // Prefill instances compute attention themselves.
    const dop = role === 'prefill' ? undefined : options.dop;
    // Attention workers have no lower tiers.
    const tiers = dop === undefined ? {} : { hostCacheBlocks: 0, ssdCacheBlocks: 0 };
    const settings = { ...options, ...settingsOf(role, options), dop, ...tiers };
    // --cache-blocks does not apply to standby instances, which are larger.
    const parts = instanceParts(standby ? { ...settings, cacheBlocks: undefined } : settings, rechecksAdmission, costs);
    const hardware = hardwareSpec(settings.hardware, options.machines);
    const spec = standby ? ({ role: 'decode', startUs: startUs(settings, hardware) } as const) : { role };
    return Array.from({ length: counts[role] }, () => ({ ...parts, ...spec }));
  });
  return withStores(options, instances);
}

/** Options that external engines have no counterpart of, with the values that leave them out. */
const notOfEngines = {
  ...{ prefill: 0, decode: 0, mixed: undefined, standby: 0, store: 0, dop: undefined, sparse: undefined },
  ...{ cppGroup: undefined, hostCacheBlocks: undefined, ssdCacheBlocks: 0, aheadOfUse: false, pinMemory: 0 },
} as const;

/** The engines of a fleet file. @throws UsageError */
function fleetSpecs(options: ClusterOptions, path: string): readonly InstanceSpec[] {
  const wrong = (Object.keys(notOfEngines) as (keyof typeof notOfEngines)[]).find(
    (name) => (options[name] ?? notOfEngines[name]) !== notOfEngines[name],
  );
  if (wrong !== undefined)
    throw new UsageError(`Cannot use --${toFlag(wrong)} with --fleet: external engines have none`);
  if (options.tables === undefined)
    throw new UsageError('Cannot use --fleet without --tables: add measured step times');
  const costs = new Map<string, StepCostModel>();
  const engines = readSimulatedFleet(path);
  return engines.map(({ role, machine, takesPriorities }) => {
    const { hardware = options.hardware, pp = options.pp, precision = options.precision } = machine;
    const { chunkTokens = options.chunkTokens, sequences = options.sequences } = machine;
    const own = { ...options, ...machine, hardware, pp, precision, chunkTokens, sequences };
    const parts = instanceParts({ ...own, cost: 'table', hostCacheBlocks: 0 }, false, costs);
    const shown = { coalesce: false, reportsAll: true, ignoresPriorities: !takesPriorities };
    return { ...parts, role, machine: { ...parts.machine, ...shown } };
  });
}

/** Undefined: every prompt is computed by one instance. @throws UsageError */
export function pipelineSettings(options: ClusterOptions): PipelineSettings | undefined {
  const { cppGroup: members, cppTokens: tokensOver, sparse, sparseBudget: [budget] = [] } = options;
  if (members === undefined) return undefined;
  const { prefill } = countsOf(options);
  if (prefill < members) {
    const why = prefill === 0 ? 'a group needs prefill instances' : `there are ${prefill} prefill instances`;
    throw new UsageError(`Cannot use --cpp-group ${members}: ${why}`);
  }
  const isList = sparse?.includes(',') === true;
  return { members, tokensOver, budgetByDefault: isList || typeof budget === 'number' };
}

/** Price of all machines without those on standby; undefined if one has no price. Machines are filled by role. */
export function pricePerHourOf(options: ClusterOptions): number | undefined {
  if (options.fleet !== undefined) return undefined;
  const counts = countsOf(options);
  let sum = 0;
  for (const role of instanceRoles) {
    if (counts[role] === 0 || role === 'standby') continue;
    const settings = settingsOf(role, options);
    for (const { hardware, devices } of devicesOf(options, settings, role)) {
      const spec = hardwareSpec(hardware, options.machines);
      const price = settings.pricePerHour ?? spec.pricePerHour;
      if (price === undefined) return undefined;
      const machines = devices / spec.devices;
      sum += Math.ceil(machines >= 1 ? counts[role] * machines : counts[role] / Math.floor(1 / machines)) * price;
    }
  }
  const stores = storesPricePerHour(options);
  return stores === undefined ? undefined : sum + stores;
}

/** The devices of one instance, by hardware. */
function devicesOf(options: ClusterOptions, settings: ReturnType<typeof settingsOf>, role: string) {
  const { hardware } = settings;
  const { devices } = hardwareSpec(hardware, options.machines);
  if (options.dop === undefined || role === 'prefill') {
    const { tensorParallel } = spanOf({ ...options, ...settings }, devices);
    return [{ hardware, devices: tensorParallel * settings.pp }];
  }
  const { modelDevices, attentionDevices } = dopOf(options.dop);
  return [
    { hardware, devices: modelDevices },
    { hardware: options.attentionHardware ?? hardware, devices: attentionDevices },
  ];
}

/** Names numbered by role: 'prefill 0', 'prefill 1', 'decode 0'. */
export function instanceNames(instances: readonly InstanceSpec[]): readonly string[] {
  const counts = new Map<string, number>();
  return instances.map(({ role, startUs }) => {
    const name = startUs === undefined ? role : 'standby';
    const count = counts.get(name) ?? 0;
    counts.set(name, count + 1);
    return `${name} ${count}`;
  });
}

function costOf(options: AttentionWorkerSettings, isSparse: boolean): StepCostModel {
  const { dop } = options;
  if (!isSparse) return dop === undefined ? createCostModel(options) : attentionWorkersCost({ ...options, dop });
  return dop === undefined ? sparseCostModel(options) : sparseWorkersCost({ ...options, dop });
}

/** The hardware that holds the KV of an instance. */
function kvHardwareOf({ dop, hardware, attentionHardware }: AttentionWorkerSettings): string {
  return dop === undefined ? hardware : (attentionHardware ?? hardware);
}

/** The machines, or the part of one, that hold the KV of an instance. */
function kvMachinesOf(options: AttentionWorkerSettings): number {
  const { devices } = hardwareSpec(kvHardwareOf(options), options.machines);
  if (options.dop === undefined) return spanOf(options, devices).machines;
  return dopOf(options.dop).attentionDevices / devices;
}

/** @param costs cost models by settings; equal instances share one */
function instanceParts(
  options: ClusterOptions,
  rechecksAdmission: boolean,
  costs: Map<string, StepCostModel>,
): Omit<InstanceSpec, 'role'> {
  const { dop } = options;
  const key = JSON.stringify([options.hardware, options.tp, options.pp, options.precision, options.dop]);
  const model = modelSpec(options.model, options.models);
  const sparsity = simulatedSparsity(options, model);
  const cost = costs.get(key) ?? costOf(options, sparsity !== undefined);
  costs.set(key, cost);
  const hardware = hardwareSpec(kvHardwareOf(options), options.machines);
  const { nicBytesPerSecond, nicUs } = hardware;
  // An instance on some devices of a machine has that share of its NICs and host memory.
  const part = kvMachinesOf(options);
  const { layers } = model;
  const { kvBytesPerToken } = cost;
  const { receiveTokens, hostMemory, ssd, ...tiers } = instanceTiers({
    options,
    hardware,
    machines: part,
    kvBytesPerToken,
    layers,
  });
  return {
    nic: {
      bytesPerSecond: options.nicGbps === undefined ? nicBytesPerSecond * part : bytesOf(options.nicGbps),
      us: nicUs,
    },
    ssd,
    hostMemory,
    machine: {
      cost,
      blockTokens: options.blockTokens,
      blocks: options.cacheBlocks,
      eviction: options.eviction,
      pinShare: options.pinMemory,
      limits: stepLimits(options),
      coalesce: options.coalesce,
      aheadOfUse: options.aheadOfUse,
      decodeOnly: options.decodeOnly,
      sparsity,
      attentionWorkers:
        dop === undefined ? undefined : { workers: dopOf(dop).attentionDevices, partition: options.partition },
      handOff: {
        layerWise: options.stream,
        receiveTokens,
        rechecksAdmission,
      },
      ...tiers,
    },
  };
}

function stepLimits(options: ClusterOptions) {
  return {
    tokensMax: Math.max(options.chunkTokens, options.sequences + options.blockTokens),
    logitRowsMax: options.sequences + 1,
    sequencesMax: options.sequences,
    stepUsDecoding: options.stepMs * 1000,
    stepUsPrefill: Number.MAX_SAFE_INTEGER,
    background: {
      ...backgroundLimits,
      memoryShare: options.batchMemory,
      stepUs: options.batchStepMs * 1000,
    },
    order: options.sharing,
  };
}

export function bytesOf(gbps: number): number {
  return (gbps * 1e9) / 8;
}
