// Gauges and counters with values that are read on each scrape.
import { Counter, Gauge, type Registry } from 'prom-client';
import type { InstanceSnapshot } from '../../core/protocol/ports.ts';

export type Labels = Readonly<Record<string, string | number>>;

interface PulledMetric {
  readonly name: string;
  /** Name in an earlier version, exported as well. */
  readonly alias?: string | undefined;
  readonly help: string;
  readonly kind: 'gauge' | 'counter';
  readonly labelNames?: readonly string[];
  readonly read: () => Iterable<readonly [Labels, number]>;
}

export function addPulled(registry: Registry, { alias, ...metric }: PulledMetric): void {
  register(registry, metric);
  if (alias === undefined) return;
  register(registry, { ...metric, name: alias, help: `Alias of ${metric.name}, removed in the next version.` });
}

function register(registry: Registry, { name, help, kind, labelNames = [], read }: PulledMetric): void {
  const settings = { name, help, labelNames: [...labelNames], registers: [registry] };
  if (kind === 'gauge') {
    new Gauge({
      ...settings,
      collect() {
        this.reset();
        for (const [labels, value] of read()) this.set(labels, value);
      },
    });
    return;
  }
  new Counter({
    ...settings,
    collect() {
      this.reset();
      for (const [labels, value] of read()) this.inc(labels, value);
    },
  });
}

/** A figure of an instance, and the name of an earlier version if it had another. */
export type InstanceMetric = readonly [
  name: string,
  help: string,
  read: (snapshot: InstanceSnapshot) => number,
  alias?: string,
];

/** The label of an instance: its name, or its number where it has none. Prometheus gives `instance` a meaning of its own. */
export function workerOf(instances: readonly InstanceSnapshot[], instance: number): string {
  return instances[instance]?.name ?? String(instance);
}

/** The instances that are shown, with their labels. */
export function workersOf(instances: readonly InstanceSnapshot[]) {
  return instances.flatMap((snapshot, i) =>
    snapshot.departed === true ? [] : [{ worker: workerOf(instances, i), snapshot }],
  );
}

/** One value per instance. */
export function addPerInstance(
  registry: Registry,
  kind: PulledMetric['kind'],
  metrics: readonly InstanceMetric[],
  instances: () => readonly InstanceSnapshot[],
): void {
  for (const [name, help, read, alias] of metrics)
    addPulled(registry, {
      ...{ name, alias, help, kind, labelNames: ['worker'] },
      read: () => workersOf(instances()).map(({ worker, snapshot }) => [{ worker }, read(snapshot)] as const),
    });
}
