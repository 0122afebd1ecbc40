// Options that require another option, and those that a store does not support.

import type { TierOptions } from '../serve/instance-tiers.ts';
import { UsageError } from '../usage-error.ts';
import { toFlag } from './options.ts';

const loanOptions = [
  'lendShare',
  'lendHost',
  'lowWater',
  'remoteAttentionShare',
  'remoteAttention',
  'lookAheadMs',
  'leaseMs',
  'settleMs',
  'settleMin',
  'remoteCacheMs',
];
const borrowOptions = [...loanOptions, 'borrowAhead', 'settle'];
const forecastOptions = ['forecast', 'td', 'refusalProbabilityMax'];

/**
 * Refuses options without effect.
 * @param given options of flags and config file
 * @throws UsageError
 */
export function refuseIneffective(
  given: Readonly<Record<string, unknown>>,
  {
    borrow,
    admission,
    roleSwitch,
    cppGroup,
  }: {
    readonly borrow: boolean;
    readonly admission: string;
    readonly roleSwitch: boolean;
    readonly cppGroup?: number | undefined;
  },
): void {
  const rules = [
    [borrow, borrowOptions, '--borrow'],
    [admission === 'predictive', forecastOptions, '--admission predictive'],
    [roleSwitch, ['roleDwell'], '--role-switch'],
    [cppGroup !== undefined, ['cppTokens'], '--cpp-group'],
  ] as const;
  for (const [inUse, names, needed] of rules) {
    const ineffective = inUse ? undefined : names.find((name) => given[name] !== undefined);
    if (ineffective !== undefined) throw new UsageError(`Cannot use --${flagFor(ineffective)}: it needs ${needed}`);
  }
}

function flagFor(name: string): string {
  return name === 'settle' || name === 'borrowAhead' ? `no-${toFlag(name)}` : toFlag(name);
}

/** Options of instances that compute. */
const computeOptions = ['threads', 'kvMemory', 'pinMemory', 'borrow', 'roleSwitch'] as const;

/** @param given options of the store by name @param tiers its tiers, own or of all instances @throws UsageError */
export function refuseStoreOptions(given: Readonly<Record<string, unknown>>, tiers: TierOptions): void {
  const unsupported = computeOptions.find((name) => given[name] !== undefined);
  if (unsupported !== undefined)
    throw new UsageError(`Cannot use --${toFlag(unsupported)} for a store: it computes nothing`);
  if (tiers.hostMemory === undefined && tiers.ssd === undefined)
    throw new UsageError('Cannot start a store: it needs --host-memory or --ssd');
}
