// Flags of `serve` for long prompts that groups of instances compute together (chunked pipeline prefill).
import type { Command } from 'commander';
import { z } from 'zod';
import type { PipelineSettings } from '../../core/router/placement/placer.ts';
import { groups } from '../terminal/help.ts';
import { UsageError } from '../usage-error.ts';
import type { InstanceOptions } from './options.ts';
import { numeric } from './schema-parts.ts';

/** As of `simulate`; prompts of live instances are shorter. */
export const liveCppFields = {
  cppGroup: numeric(z.number().int().min(2)).optional(),
  cppTokens: numeric(z.number().int().min(0)).default(2048),
};

interface CppOptions {
  readonly cppGroup?: number | undefined;
  readonly cppTokens: number;
  readonly instances?: readonly InstanceOptions[] | undefined;
  readonly borrow: boolean;
  readonly nats?: string | undefined;
}

export function addLiveCppFlags(command: Command): Command {
  return command
    .optionsGroup(groups.pipeline)
    .option(
      '--cpp-group <n>',
      'Compute a long prompt as a pipeline of chunks on this number of prefill instances (default: off)',
    )
    .option(
      '--cpp-tokens <n>',
      'Use the pipeline for prompts with more uncached tokens than this, if it is faster (default: 2048)',
    );
}

/** Undefined: every prompt is computed by one instance. @throws UsageError */
export function servedPipeline(options: CppOptions): PipelineSettings | undefined {
  const { cppGroup: members, cppTokens: tokensOver, instances = [], borrow, nats } = options;
  if (members === undefined) return undefined;
  const prefill = instances.filter(({ role }) => role === 'prefill').length;
  // Over a bus others may join.
  const isEnough = prefill >= members || (nats !== undefined && options.instances === undefined);
  const why = borrow
    ? 'groups keep no borrowed memory: take it or --borrow'
    : isEnough
      ? undefined
      : `it needs so many instances of role prefill: there ${prefill === 1 ? 'is' : 'are'} ${prefill}`;
  if (why !== undefined) throw new UsageError(`Cannot use --cpp-group ${members}: ${why}`);
  return { members, tokensOver };
}
