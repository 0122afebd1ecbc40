// Options of faults in a simulated cluster.
import type { Command } from 'commander';
import { z } from 'zod';
import { defaultFaultTimes, type Fault, type FaultPlan, faultKinds, parseFault } from '../../sim/faults/fault-plan.ts';
import { groups, olderName } from '../terminal/help.ts';
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
  attempts: numeric(z.number().int().min(1)).default(defaultFaultTimes.attemptsMax),
  heartbeatTimeoutMs: positive.default(defaultFaultTimes.silentUs / 1000),
  requestTimeout: positive.default(defaultFaultTimes.timeoutUs / 1e6),
};

const faultSchema = z.object(faultFields);

export function addFaultFlags(command: Command): Command {
  return command
    .optionsGroup(groups.faults)
    .option(
      '--faults <fault...>',
      `Inject ${faultKinds.join(', ')}; for example crash:instance=2,at=60s,for=30s or loss:ratio=0.01`,
    )
    .option('--attempts <n>', 'With --faults, place a request at most this number of times (default: 5)')
    .addOption(olderName('--tries <n>'))
    .option(
      '--heartbeat-timeout-ms <ms>',
      'With --faults, declare an instance failed when it sends nothing for this time (default: 3000)',
    )
    .addOption(olderName('--silent-ms <ms>'))
    .option('--request-timeout <s>', 'With --faults, fail a request that has not ended after this time (default: 600)');
}

/** Undefined without faults. @throws UsageError */
export function faultPlan(
  {
    faults,
    attempts,
    heartbeatTimeoutMs,
    requestTimeout,
    seed,
    borrow,
    dop,
  }: z.infer<typeof faultSchema> & { seed: number; borrow: boolean; dop?: string | undefined },
  instances: number,
): FaultPlan | undefined {
  if (faults.length === 0) return undefined;
  for (const { kind, instances: named } of faults) {
    if (kind === 'gmanager' && !borrow) throw new UsageError('Cannot inject gmanager: it needs --borrow');
    if (kind === 'worker' && dop === undefined)
      throw new UsageError('Cannot inject worker, the loss of an attention worker: it needs --dop');
    for (const index of named ?? [])
      if (index >= instances)
        throw new UsageError(
          `Cannot inject ${kind}: there is no instance ${index}: the ${instances} instances are numbered from 0`,
        );
  }
  const silentUs = Math.round(heartbeatTimeoutMs * 1000);
  const times = {
    reportUs: Math.ceil(silentUs / 6),
    silentUs,
    timeoutUs: Math.round(requestTimeout * 1e6),
    attemptsMax: attempts,
  };
  return { seed, faults, times };
}
