// Options of simulated attention workers, and the cost model of an instance that has them.

import { type Command, Option } from 'commander';
import { z } from 'zod';
import { AttentionWorkersCost } from '../../core/attention-workers/attention-worker-cost.ts';
import { type KvPartition, kvPartitions } from '../../core/attention-workers/choose-worker.ts';
import { replicasFor } from '../../core/attention-workers/rotation.ts';
import type { PlacementKind } from '../../core/router/placement/placement.ts';
import type { CostOptions } from '../options/cost-model.ts';
import { instanceShape, rangeErrorsAsUsage } from '../options/cost-model.ts';
import { numeric } from '../options/schema-parts.ts';
import { type HardwareSpec, hardwareSpec } from '../options/specs.ts';
import { groups } from '../terminal/help.ts';
import { UsageError } from '../usage-error.ts';

/**
 * Software between a GPU and its NIC, as Lamina measured it on 400 Gbps (section 6): time of a message from memory to
 * memory, and the share of the line that large messages reach. `nccl`: the host starts every transfer; `fhbn`: the NIC
 * is driven without the host.
 */
export const stacks = {
  nccl: { messageUs: 66.6, lineShare: 35.5 / 50 },
  fhbn: { messageUs: 33, lineShare: 45.7 / 50 },
} as const;
export const stackNames = ['nccl', 'fhbn'] as const;

const dopPattern = /^(auto|[1-9]\d{0,3},[1-9]\d{0,3})$/;

const defaults = { stack: 'fhbn', staggeredBatches: 2, partition: 'heads' } as const;

export const attentionWorkerFields = {
  dop: z
    .string('write MODEL,ATTENTION, for example 2,4, or auto')
    .regex(dopPattern, 'write MODEL,ATTENTION, for example 2,4, or auto')
    .optional(),
  attentionHardware: z.string().optional(),
  stack: z.enum(stackNames).default(defaults.stack),
  staggeredBatches: numeric(z.number().int().min(1)).default(defaults.staggeredBatches),
  partition: z.enum(kvPartitions).default(defaults.partition),
  decodeOnly: z.boolean().default(false),
};

export interface AttentionWorkerSettings extends CostOptions {
  /** Undefined: the instance computes attention itself. */
  readonly dop?: string | undefined;
  readonly attentionHardware?: string | undefined;
  readonly stack: (typeof stackNames)[number];
  readonly staggeredBatches: number;
  readonly partition: KvPartition;
}

interface Combined extends Omit<AttentionWorkerSettings, keyof CostOptions> {
  readonly decodeOnly: boolean;
  readonly prefill: number;
  readonly standby: number;
  readonly store: number;
  readonly borrow: boolean;
  readonly placement?: PlacementKind | undefined;
  readonly hostCacheBlocks?: number | undefined;
  readonly ssdCacheBlocks?: number | undefined;
}

/** Refuses combinations that instances with attention workers do not have. @throws UsageError */
export function refuseWithAttentionWorkers(options: Combined): void {
  const { dop, decodeOnly } = options;
  if (decodeOnly && options.prefill > 0)
    throw new UsageError(`Cannot use --decode-only with --prefill ${options.prefill}: requests arrive with their KV`);
  if (dop === undefined) {
    const { attentionHardware, partition, stack, staggeredBatches } = options;
    const useless: readonly (readonly [boolean, string])[] = [
      [attentionHardware !== undefined, `--attention-hardware ${attentionHardware}`],
      [partition !== defaults.partition, `--partition ${partition}`],
      [stack !== defaults.stack, `--stack ${stack}`],
      [staggeredBatches !== defaults.staggeredBatches, `--staggered-batches ${staggeredBatches}`],
    ];
    const flag = useless.find(([isGiven]) => isGiven)?.[1];
    if (flag !== undefined) throw new UsageError(`Cannot use ${flag}: it needs --dop MODEL,ATTENTION or --dop auto`);
  }
  const conflict = simulatedDopConflict(options);
  if (dop !== undefined && conflict !== undefined) throw new UsageError(`Cannot use --dop ${dop}: ${conflict}`);
}

/** The reason why instances cannot have attention workers beside other options. */
export function simulatedDopConflict(options: Combined): string | undefined {
  const conflicts: readonly (readonly [boolean, string])[] = [
    [options.borrow, 'pages at attention workers cannot be lent: remove --borrow'],
    [
      options.placement === 'cache-aware',
      'instances fetch no prefixes from attention workers: use --placement local-cache-only',
    ],
    [options.standby > 0, 'requests cannot migrate to a standby instance: remove --standby'],
    [options.store > 0, 'pages at attention workers are not offered to stores: remove --store'],
    [(options.hostCacheBlocks ?? 0) > 0, 'pages at attention workers have no lower tier: remove --host-cache-blocks'],
    [(options.ssdCacheBlocks ?? 0) > 0, 'pages at attention workers have no lower tier: remove --ssd-cache-blocks'],
  ];
  return conflicts.find(([applies]) => applies)?.[1];
}

/** The options of instances without attention workers: those of attention workers have their defaults. */
export function withoutAttentionWorkers<Options extends Omit<AttentionWorkerSettings, keyof CostOptions>>(
  options: Options,
): Options {
  return { ...options, dop: undefined, attentionHardware: undefined, ...defaults };
}

/** Devices of model workers and of attention workers. */
export function dopOf(dop: string): { readonly modelDevices: number; readonly attentionDevices: number } {
  const [modelDevices, attentionDevices] = dop.split(',').map(Number);
  return { modelDevices, attentionDevices };
}

export function addSimulatedAttentionFlags(command: Command): Command {
  return command
    .optionsGroup(groups.attention)
    .option(
      '--dop [model,attention]',
      'Divide mixed and decode instances into model workers and attention workers of this number of devices; auto: by tokens per price, or not (default: off)',
    )
    .option('--attention-hardware <name>', 'Build attention workers from this hardware (default: --hardware)')
    .addOption(
      new Option(
        '--stack <name>',
        'Assume the message time and the bandwidth of this network software between workers (default: fhbn)',
      ).choices(stackNames),
    )
    .option(
      '--staggered-batches <n>',
      'Overlap this number of batches, n; n - 1 model replicas compute them in rotation (default: 2)',
    )
    .addOption(
      new Option(
        '--partition <by>',
        'Give each attention worker a shard of the KV heads of all sequences, or some sequences whole (default: heads)',
      ).choices(kvPartitions),
    )
    .option('--decode-only', 'Let requests arrive with the KV of their prompts');
}

/** @throws UsageError if the devices do not fit the model or each other */
export function attentionWorkersCost(
  options: AttentionWorkerSettings & { readonly dop: string },
): AttentionWorkersCost {
  const { dop, attentionHardware = options.hardware, staggeredBatches: batches, partition } = options;
  const { modelDevices, attentionDevices } = dopOf(dop);
  const refuse = (why: string): never => {
    throw new UsageError(`Cannot use --dop ${dop}: ${why}`);
  };
  if (options.cost !== 'roofline') refuse(`--cost ${options.cost} has no attention apart from the model`);
  if (options.tp !== undefined) refuse('it states the devices of the model workers: remove --tp');
  if (options.specTokens !== undefined)
    refuse('speculative decoding with attention workers has no cost model: remove --spec-tokens');
  if (options.pp !== 1) refuse('model workers have no pipeline stages: remove --pp');
  const replicas = replicasFor(batches);
  if (modelDevices % replicas !== 0)
    refuse(
      `--staggered-batches ${batches} needs ${replicas} model replicas, and ${modelDevices} model devices are not divisible by ${replicas}`,
    );
  const tensorParallel = modelDevices / replicas;
  const { device, machine, shape, efficiency } = instanceShape({ ...options, tp: tensorParallel });
  const attention = hardwareSpec(attentionHardware, options.machines);
  const operationsPerSecond = attention.operationsPerSecond[options.precision];
  if (operationsPerSecond === undefined) refuse(`${attentionHardware} has no ${options.precision} arithmetic`);
  const { messageUs, lineShare } = stacks[options.stack];
  const lineBytes = Math.min(nicOfDevice(hardwareSpec(options.hardware, options.machines)), nicOfDevice(attention));
  return rangeErrorsAsUsage(
    () =>
      new AttentionWorkersCost({
        replica: { ...shape, device, machine, efficiency },
        attentionDevice: { ...attention, operationsPerSecond: operationsPerSecond ?? 0 },
        attentionWorkers: attentionDevices,
        partition,
        network: {
          messageUs,
          bytesPerSecond: lineBytes * lineShare,
          replicaNics: tensorParallel,
          attentionNics: attentionDevices,
        },
        batches,
      }),
    `--dop ${dop}`,
  );
}

/** Each device has its share of the machine's NICs. */
function nicOfDevice({ nicBytesPerSecond, devices }: HardwareSpec): number {
  return nicBytesPerSecond / devices;
}
