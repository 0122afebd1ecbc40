// Limits of memory and CPU that control groups of Linux, version 2 or 1, set for this process.
import { readFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { join } from 'node:path';

export interface GroupLimits {
  /** The lowest limit of the process's groups; undefined: none. */
  readonly memoryBytes: number | undefined;
  /** Memory that is left under the limits of all groups, with page cache that can be freed. */
  readonly availableBytes: number | undefined;
  /** CPU time a second, in cores; undefined: no limit. */
  readonly cores: number | undefined;
}

type ReadFile = (path: string) => string;

const mount = '/sys/fs/cgroup';

export function groupLimits(read: ReadFile = (path) => readFileSync(path, 'utf8')): GroupLimits {
  const text = (path: string): string | undefined => {
    try {
      return read(path);
    } catch {
      return undefined;
    }
  };
  const number = (path: string): number | undefined => {
    const value = Number.parseInt(text(path) ?? '', 10);
    // Version 1 has a huge number for no limit, or -1.
    return Number.isNaN(value) || value < 0 || value >= 2 ** 60 ? undefined : value;
  };
  const reclaimable = (path: string, field: string): number =>
    Number(new RegExp(`^${field} (\\d+)$`, 'm').exec(text(path) ?? '')?.[1] ?? 0);
  let [memoryBytes, availableBytes, cores] = [
    Number.POSITIVE_INFINITY,
    Number.POSITIVE_INFINITY,
    Number.POSITIVE_INFINITY,
  ];
  const addMemory = (limit: number | undefined, used = 0, cache = 0): void => {
    if (limit === undefined) return;
    memoryBytes = Math.min(memoryBytes, limit);
    availableBytes = Math.min(availableBytes, Math.max(0, limit - used + cache));
  };
  for (const line of text('/proc/self/cgroup')?.split('\n') ?? []) {
    const [, controllers = '', path = ''] = /^\d+:([^:]*):(\/.*)$/.exec(line) ?? [];
    if (path === '') continue;
    const names = controllers.split(',');
    if (controllers === '')
      for (const folder of [...ancestors(mount, path), ...ancestors(join(mount, 'unified'), path)]) {
        const used = number(join(folder, 'memory.current'));
        addMemory(number(join(folder, 'memory.max')), used, reclaimable(join(folder, 'memory.stat'), 'inactive_file'));
        const [quota, period] = (text(join(folder, 'cpu.max')) ?? '').split(/\s+/).map(Number);
        if (quota > 0 && period > 0) cores = Math.min(cores, quota / period);
      }
    if (names.includes('memory'))
      for (const folder of ancestors(join(mount, 'memory'), path)) {
        const used = number(join(folder, 'memory.usage_in_bytes'));
        const cache = reclaimable(join(folder, 'memory.stat'), 'total_inactive_file');
        addMemory(number(join(folder, 'memory.limit_in_bytes')), used, cache);
      }
    if (names.includes('cpu'))
      for (const folder of ancestors(join(mount, 'cpu'), path)) {
        const [quota, period] = ['cpu.cfs_quota_us', 'cpu.cfs_period_us'].map((name) => number(join(folder, name)));
        if (quota !== undefined && quota > 0 && period !== undefined && period > 0)
          cores = Math.min(cores, quota / period);
      }
  }
  const finite = (value: number): number | undefined => (Number.isFinite(value) ? value : undefined);
  return { memoryBytes: finite(memoryBytes), availableBytes: finite(availableBytes), cores: finite(cores) };
}

/** The folder of a group and of those above it. Inside a container only the folder of the mount may exist. */
function ancestors(root: string, path: string): readonly string[] {
  const parts = path.split('/').filter((part) => part !== '' && part !== '..');
  return Array.from({ length: parts.length + 1 }, (_, i) => join(root, ...parts.slice(0, parts.length - i)));
}

/** Compute threads that run at once: a thread over the CPU limit would stop the others at every step. */
export function availableThreads({ cores = Number.POSITIVE_INFINITY }: GroupLimits = groupLimits()): number {
  return Math.max(1, Math.min(availableParallelism(), Math.floor(cores)));
}
