// Limits of control groups: their files in both versions, and what follows for threads and memory.
import { availableParallelism } from 'node:os';
import { expect, test } from 'vitest';
import { defaultInstance } from '../../../src/cli/options/options.ts';
import { availableThreads, groupLimits } from '../../../src/cli/serve/host/cgroup.ts';
import { refuseTooMuchMemory } from '../../../src/cli/serve/memory-limits.ts';

const mebi = 2 ** 20;
const limitsOf = (files: Readonly<Record<string, string>>) =>
  groupLimits((path) => {
    const text = files[path];
    if (text === undefined) throw new Error('ENOENT');
    return text;
  });

test('version 2: the lowest limit of a group and of those above it applies', () => {
  const limits = limitsOf({
    '/proc/self/cgroup': '0::/serving/one\n',
    '/sys/fs/cgroup/serving/one/memory.max': 'max\n',
    '/sys/fs/cgroup/serving/one/cpu.max': '150000 100000\n',
    '/sys/fs/cgroup/serving/memory.max': `${400 * mebi}\n`,
    '/sys/fs/cgroup/serving/memory.current': `${100 * mebi}\n`,
    '/sys/fs/cgroup/serving/memory.stat': `anon 5\ninactive_file ${30 * mebi}\n`,
    '/sys/fs/cgroup/serving/cpu.max': 'max 100000\n',
  });
  expect(limits).toEqual({ memoryBytes: 400 * mebi, availableBytes: 330 * mebi, cores: 1.5 });
  expect(() => refuseTooMuchMemory({ kvMemory: 2048 * mebi }, [defaultInstance], limits)).toThrow(
    'Cannot reserve --kv-memory and --host-memory: 2048 MiB, 330 MiB are available in the control group of 400 MiB',
  );
  expect(() => refuseTooMuchMemory({ kvMemory: 300 * mebi }, [defaultInstance], limits)).not.toThrow();
});

test('version 1: each controller has a folder of its own, and inside a container that of the mount', () => {
  const limits = limitsOf({
    '/proc/self/cgroup': '4:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc\n0::/\n',
    '/sys/fs/cgroup/memory/memory.limit_in_bytes': `${400 * mebi}\n`,
    '/sys/fs/cgroup/memory/memory.usage_in_bytes': `${50 * mebi}\n`,
    '/sys/fs/cgroup/cpu/cpu.cfs_quota_us': '50000\n',
    '/sys/fs/cgroup/cpu/cpu.cfs_period_us': '100000\n',
  });
  expect(limits).toEqual({ memoryBytes: 400 * mebi, availableBytes: 350 * mebi, cores: 0.5 });
  expect(availableThreads(limits)).toBe(1);
});

test('without limits, or without control groups, the machine counts', () => {
  const none = { memoryBytes: undefined, availableBytes: undefined, cores: undefined };
  expect(limitsOf({})).toEqual(none);
  const unlimited = limitsOf({
    '/proc/self/cgroup': '4:memory:/\n2:cpu:/\n',
    '/sys/fs/cgroup/memory/memory.limit_in_bytes': '9223372036854771712\n',
    '/sys/fs/cgroup/cpu/cpu.cfs_quota_us': '-1\n',
    '/sys/fs/cgroup/cpu/cpu.cfs_period_us': '100000\n',
  });
  expect(unlimited).toEqual(none);
  expect(availableThreads(none)).toBe(availableParallelism());
});
