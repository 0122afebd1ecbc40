// Metrics of the process and its instances: the build, memory and CPU time, and the role of each instance.
import type { Registry } from 'prom-client';
import type { InstanceRole } from '../../core/protocol/instance-report.ts';
import type { InstanceSnapshot } from '../../core/protocol/ports.ts';
import { addPulled, workerOf } from './pulled-metric.ts';

/** Instances, as a gateway or an instance itself shows them. */
export interface Workers {
  /** Of the release. */
  readonly version: string;
  readonly instances: () => readonly InstanceSnapshot[];
  readonly roles: () => readonly InstanceRole[];
}

export function addProcessMetrics(registry: Registry, { version, instances, roles }: Workers): void {
  addPulled(registry, {
    ...{ name: 'kvasir_build_info', help: '1, with the version of the release and of Node.', kind: 'gauge' },
    labelNames: ['version', 'node'],
    read: () => [[{ version, node: process.version }, 1]],
  });
  addPulled(registry, {
    ...{ name: 'kvasir_worker_info', help: '1, with the role of an instance.', kind: 'gauge' },
    labelNames: ['worker', 'role'],
    read: () => {
      const [all, current] = [instances(), roles()];
      return all.flatMap(({ departed }, i) =>
        departed === true ? [] : [[{ worker: workerOf(all, i), role: current[i] ?? 'mixed' }, 1] as const],
      );
    },
  });
  addPulled(registry, {
    ...{ name: 'process_resident_memory_bytes', help: 'Resident memory of the process.', kind: 'gauge' },
    read: () => [[{}, process.memoryUsage.rss()]],
  });
  addPulled(registry, {
    ...{ name: 'process_cpu_seconds_total', help: 'CPU time of all threads of the process.', kind: 'counter' },
    read: () => {
      const { user, system } = process.cpuUsage();
      return [[{}, (user + system) / 1e6]];
    },
  });
  addPulled(registry, {
    ...{ name: 'process_start_time_seconds', help: 'Start of the process, in seconds since 1970.', kind: 'gauge' },
    read: () => [[{}, Math.round(performance.timeOrigin) / 1000]],
  });
}
