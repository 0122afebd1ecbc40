// Options of standby instances, which start when a request outgrows its instance.
import type { Command } from 'commander';
import { z } from 'zod';
import { parameters } from '../../core/cost/memory.ts';
import type { InstanceSpec } from '../../sim/engine/simulation.ts';
import { groups } from '../terminal/help.ts';
import { UsageError } from '../usage-error.ts';
import { numeric } from './schema-parts.ts';
import { type HardwareSpec, modelSpec } from './specs.ts';

export const standbyFields = {
  standbyMark: numeric(z.number().gt(0).max(1)).default(1),
  startS: numeric(z.number().min(0)).optional(),
  weightLoadGbps: numeric(z.number().positive()).optional(),
};

export type StandbyOptions = Readonly<z.infer<z.ZodObject<typeof standbyFields>>> & {
  readonly model: string;
  readonly models?: string | undefined;
  readonly precision: 'bf16' | 'fp8';
  readonly borrow: boolean;
  readonly faults: readonly unknown[];
};

export function addStandbyFlags(command: Command): Command {
  return command
    .optionsGroup(groups.standby)
    .option(
      '--standby-mark <share>',
      'Start a standby instance when a request holds this share of its memory (default: 1, when it cannot grow)',
    )
    .option('--start-s <s>', 'Assume that an instance starts loading the model after this time (default: by hardware)')
    .option('--weight-load-gbps <n>', 'Assume that an instance loads weights at this rate (default: by hardware)');
}

/** Time from the decision to start an instance until it serves. */
export function startUs(
  { startS, weightLoadGbps, ...options }: Omit<StandbyOptions, 'standbyMark' | 'borrow' | 'faults'>,
  { start }: HardwareSpec,
): number {
  const bytesPerSecond = weightLoadGbps === undefined ? start.weightBytesPerSecond : (weightLoadGbps * 1e9) / 8;
  const weights = parameters(modelSpec(options.model, options.models)) * (options.precision === 'fp8' ? 1 : 2);
  return Math.round(((startS ?? start.seconds) + weights / bytesPerSecond) * 1e6);
}

/** Lets mixed instances migrate requests that outgrow them. @throws UsageError */
export function withStandby(options: StandbyOptions, instances: readonly InstanceSpec[]): readonly InstanceSpec[] {
  const standbys = instances.filter((spec) => spec.startUs !== undefined);
  if (standbys.length === 0) return instances;
  if (instances.every(({ role }) => role !== 'mixed'))
    throw new UsageError(
      `Cannot use --standby ${standbys.length}: it needs mixed instances, from which requests migrate`,
    );
  if (options.borrow)
    throw new UsageError(
      'Cannot use --standby with --borrow: a request that outgrows its instance either migrates or borrows',
    );
  if (options.faults.length > 0)
    throw new UsageError('Cannot use --standby with --faults: instance starts are not simulated with faults');
  const capacities = standbys.map(
    ({ machine: { cost, blockTokens } }) => cost.kvCapacityTokens - (cost.kvCapacityTokens % blockTokens),
  );
  const capacityTokens = Math.max(...capacities);
  return instances.map((spec) =>
    spec.role === 'mixed'
      ? { ...spec, machine: { ...spec.machine, migration: { mark: options.standbyMark, capacityTokens } } }
      : spec,
  );
}
