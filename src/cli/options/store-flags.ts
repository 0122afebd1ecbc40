// Refuses options that a store does not support, and a store without tiers.
import type { TierOptions } from '../serve/instance-tiers.ts';
import { UsageError } from '../usage-error.ts';
import { toFlag } from './options.ts';

/** Options of instances that compute. */
const computeOptions = ['threads', 'kvMemory', 'recheck', 'pinMemory', 'borrow', 'roleSwitch'] as const;

/** @param given options of the store by name @param tiers its tiers, own or of all instances @throws UsageError */
export function refuseStoreOptions(given: Readonly<Record<string, unknown>>, tiers: TierOptions): void {
  const unsupported = computeOptions.find((name) => given[name] !== undefined);
  if (unsupported !== undefined)
    throw new UsageError(`Cannot use --${toFlag(unsupported)} for a store: it computes nothing`);
  if (tiers.hostMemory === undefined && tiers.ssd === undefined)
    throw new UsageError('Cannot start a store: it needs --host-memory or --ssd');
}
