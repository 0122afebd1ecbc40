// What goes wrong in a simulated cluster, from flags.
import type { Command } from 'commander';
import { z } from 'zod';
import { defaultFaultTimes, type Fault, type FaultPlan, faultKinds } from '../../sim/faults/faults.ts';
import { parseFault } from '../../sim/faults/parse.ts';
import { UsageError } from '../usage-error.ts';
import { numeric } from './schema-parts.ts';

const fault = z.string().transform((text): Fault => {
  try {
    return parseFault(text);
  } catch (error) {
    throw new UsageError(error instanceof Error ? error.message : String(error));
  }
});

const positive = numeric(z.number().positive());

export const faultFields = {
  faults: z.preprocess((given) => (typeof given === 'string' ? [given] : given), z.array(fault)).default([]),
  tries: numeric(z.number().int().min(1)).default(defaultFaultTimes.triesMax),
  silentMs: positive.default(defaultFaultTimes.silentUs / 1000),
  requestTimeout: positive.default(defaultFaultTimes.timeoutUs / 1e6),
};

const faultSchema = z.object(faultFields);

export function addFaultFlags(command: Command): Command {
  return command
    .option('--faults <fault...>', `${faultKinds.join(', ')}: crash:instance=2,at=60s,for=30s or loss:ratio=0.01`)
    .option('--tries <n>', 'of a request whose instances are lost, with --faults (default: 5)')
    .option('--silent-ms <ms>', 'an instance that says nothing for so long is lost, with --faults (default: 3000)')
    .option('--request-timeout <s>', 'a request that has not ended by then fails, with --faults (default: 600)');
}

/** Undefined where nothing goes wrong. @throws UsageError */
export function faultPlan(
  {
    faults,
    tries,
    silentMs,
    requestTimeout,
    seed,
    borrow,
  }: z.infer<typeof faultSchema> & { seed: number; borrow: boolean },
  instances: number,
): FaultPlan | undefined {
  if (faults.length === 0) return undefined;
  for (const { kind, instances: named } of faults) {
    if (kind === 'gmanager' && !borrow) throw new UsageError('Cannot inject gmanager: there is none without --borrow');
    for (const index of named ?? [])
      if (index >= instances)
        throw new UsageError(`Cannot inject ${kind}: there is no instance ${index}: ${instances} are numbered from 0`);
  }
  const silentUs = Math.round(silentMs * 1000);
  const times = {
    reportUs: Math.ceil(silentUs / 6),
    silentUs,
    timeoutUs: Math.round(requestTimeout * 1e6),
    triesMax: tries,
  };
  return { seed, faults, times };
}
