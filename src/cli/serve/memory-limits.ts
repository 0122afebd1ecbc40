// Compares the configured memory of instances with the available memory of the machine.
import { loadNative } from '../../kernel/native/addon.ts';
import { computes, type InstanceOptions } from '../options/options.ts';
import { UsageError } from '../usage-error.ts';
import { type GroupLimits, groupLimits } from './host/cgroup.ts';

interface GivenMemory {
  readonly kvMemory?: number | undefined;
  readonly hostMemory?: number | undefined;
}

/** Pages use memory only after their first use: without this check, a process would be killed long after its start. @throws UsageError */
export function refuseTooMuchMemory(
  all: GivenMemory,
  instances: readonly InstanceOptions[],
  group: GroupLimits = groupLimits(),
): void {
  const ofMachine = loadNative()?.memoryInfo().availableBytes ?? Number.POSITIVE_INFINITY;
  const ofGroup = group.availableBytes ?? Number.POSITIVE_INFINITY;
  const bytes = instances.reduce((sum, own) => sum + bytesOf(all, own), 0);
  const availableBytes = Math.min(ofMachine, ofGroup);
  if (bytes <= availableBytes) return;
  const given = instances.length === 1 ? '' : `${instances.length} instances are given `;
  throw new UsageError(
    `Cannot reserve --kv-memory and --host-memory: ${given}${mebibytes(bytes)}, ${mebibytes(availableBytes)} are available${ofGroup < ofMachine ? ` in the control group of ${mebibytes(group.memoryBytes ?? 0)}` : ''}`,
  );
}

function bytesOf(all: GivenMemory, own: InstanceOptions): number {
  const { kvMemory = 0, hostMemory = 0 } = {
    kvMemory: own.kvMemory ?? all.kvMemory,
    hostMemory: own.hostMemory ?? all.hostMemory,
  };
  return hostMemory + (computes(own) ? kvMemory : 0);
}

function mebibytes(bytes: number): string {
  return `${Math.floor(bytes / 2 ** 20)} MiB`;
}
