// The option of attention workers for `serve`: the degree of parallelism of model workers and attention workers.
import type { Command } from 'commander';
import { z } from 'zod';
import { groups } from '../terminal/help.ts';
import { UsageError } from '../usage-error.ts';

export const dopFields = {
  dop: z
    .string()
    .regex(/^[1-9]\d?,[1-9]\d?$/, 'write MODEL,ATTENTION, for example 1,2')
    .optional(),
};

interface DopOptions {
  readonly dop?: string | undefined;
  readonly nats?: string | undefined;
  readonly instances?: readonly unknown[] | undefined;
  readonly borrow: boolean;
  readonly hostMemory?: number | undefined;
  readonly ssd?: string | undefined;
  readonly pinMemory: number;
}

export function addDopFlag(command: Command): Command {
  return command
    .optionsGroup(groups.cluster)
    .option(
      '--dop <model,attention>',
      'Keep KV pages at this number of attention workers, apart from the model worker: 1,2 (default: off)',
    );
}

/** Attention workers of the instance; undefined: it computes attention itself. @throws UsageError */
export function servedAttentionWorkers(options: DopOptions): number | undefined {
  const { dop, instances = [] } = options;
  if (dop === undefined) return undefined;
  const [modelWorkers, attentionWorkers] = dop.split(',').map(Number);
  const conflicts: readonly (readonly [boolean, string])[] = [
    [modelWorkers > 1, `it has ${modelWorkers} model workers, and 1 is supported`],
    [options.nats !== undefined, 'attention workers are threads of this process: remove --nats'],
    [instances.length > 1, `there are ${instances.length} instances, and their pages cannot move between them`],
    [options.borrow, 'pages at attention workers cannot be lent: remove --borrow'],
    [options.hostMemory !== undefined, 'pages at attention workers have no lower tier: remove --host-memory'],
    [options.ssd !== undefined, 'pages at attention workers have no lower tier: remove --ssd'],
    [options.pinMemory > 0, 'prefixes at attention workers cannot be pinned: remove --pin-memory'],
  ];
  const conflict = conflicts.find(([applies]) => applies);
  if (conflict !== undefined) throw new UsageError(`Cannot use --dop ${dop}: ${conflict[1]}`);
  return attentionWorkers;
}
