// Options of chunked pipeline prefill for `serve`.
import type { Command } from 'commander';
import { z } from 'zod';
import type { PipelineSettings } from '../../core/router/placement/placer.ts';
import { groups } from '../terminal/help.ts';
import { UsageError } from '../usage-error.ts';
import { numeric } from './schema-parts.ts';

/** The options of `simulate`, with a smaller default for live prompts. */
export const liveCppFields = {
  cppGroup: numeric(z.number().int().min(2)).optional(),
  cppTokens: numeric(z.number().int().min(0)).default(2048),
};

interface CppOptions {
  readonly cppGroup?: number | undefined;
  readonly cppTokens: number;
  readonly instances?: readonly { readonly role: string }[] | undefined;
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
  const { cppGroup: members, cppTokens: tokensOver, instances = [], nats } = options;
  if (members === undefined) return undefined;
  const prefill = instances.filter(({ role }) => role === 'prefill').length;
  // More prefill instances may join over NATS.
  const isEnough = prefill >= members || (nats !== undefined && options.instances === undefined);
  if (!isEnough) {
    const there = `there ${prefill === 1 ? 'is' : 'are'} ${prefill}`;
    throw new UsageError(`Cannot use --cpp-group ${members}: it needs this number of prefill instances: ${there}`);
  }
  return { members, tokensOver };
}
