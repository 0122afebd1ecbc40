// What a store has no use for, since it computes nothing, and what it needs: refused in one line.
import type { TierOptions } from '../serve/instance-tiers.ts';
import { UsageError } from '../usage-error.ts';
import { toFlag } from './options.ts';

/** Of instances that compute. */
const ofComputing = ['threads', 'kvMemory', 'recheck', 'pinMemory', 'borrow', 'roleSwitch'] as const;

/** @param given what was said of it, by name @param tiers what it has, for all that is said of it or of all instances @throws UsageError */
export function refuseIdleStore(given: Readonly<Record<string, unknown>>, tiers: TierOptions): void {
  const idle = ofComputing.find((name) => given[name] !== undefined);
  if (idle !== undefined) throw new UsageError(`Cannot use --${toFlag(idle)} for a store: it computes nothing`);
  if (tiers.hostMemory === undefined && tiers.ssd === undefined)
    throw new UsageError('Cannot keep blocks in a store: it needs --host-memory or --ssd');
}
