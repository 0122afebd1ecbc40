// Metrics of prefix reuse: prompt tokens by source, and how long blocks stay in the cache and wait for their next use.
import { Histogram, type Registry } from 'prom-client';
import {
  type BlockAges,
  blockAgeBoundsS,
  type HistogramSnapshot,
  type InstanceSnapshot,
} from '../../core/protocol/ports.ts';
import { addPulled, type Labels } from './pulled-metric.ts';

const noObservations: HistogramSnapshot = { counts: blockAgeBoundsS.map(() => 0), sum: 0 };

interface PulledHistogramSettings {
  readonly name: string;
  readonly help: string;
  readonly bounds: readonly number[];
  readonly labelNames: readonly string[];
  readonly read: () => readonly (readonly [Labels, HistogramSnapshot])[];
}

/** A histogram whose observations are counted elsewhere and read on each scrape. */
class PulledHistogram extends Histogram {
  readonly #settings: PulledHistogramSettings;

  constructor(registry: Registry, settings: PulledHistogramSettings) {
    const { name, help, bounds, labelNames } = settings;
    super({ name, help, buckets: [...bounds], labelNames: [...labelNames], registers: [registry] });
    this.#settings = settings;
  }

  /** What the registry of prom-client writes; `get` derives its result from it. */
  getForPromString(): Promise<object> {
    const { name, help, bounds, read } = this.#settings;
    const values = read().flatMap(([sharedLabels, { counts, sum }]) => {
      let below = 0;
      const buckets = [...bounds, '+Inf'].map((le, i) => {
        below += counts[i] ?? 0;
        return { metricName: `${name}_bucket`, labels: { le }, sharedLabels, value: below };
      });
      return [
        ...buckets,
        { metricName: `${name}_sum`, labels: {}, sharedLabels, value: sum },
        { metricName: `${name}_count`, labels: {}, sharedLabels, value: below },
      ];
    });
    return Promise.resolve({ name, help, type: 'histogram', values, aggregator: 'sum' });
  }
}

/** Tokens of started requests by the place where their keys and values were found. */
export function sourcesOf({ promptTokens, cachedTokens, tiers, blocks }: InstanceSnapshot) {
  const { host, ssd, instance } = tiers?.reads ?? { host: 0, ssd: 0, instance: 0 };
  const tokens = blocks?.tokens ?? 0;
  const device = Math.max(0, cachedTokens - (host + ssd + instance) * tokens);
  return {
    computed: promptTokens - cachedTokens,
    device,
    host_memory: host * tokens,
    ssd: ssd * tokens,
    instance: instance * tokens,
  };
}

export function addBlockMetrics(registry: Registry, snapshot: () => InstanceSnapshot): void {
  addPulled(registry, {
    name: 'kvasir_prompt_tokens_by_source_total',
    help: 'Prompt tokens of started requests by source: computed, or cached in device, host_memory, ssd or another instance.',
    kind: 'counter',
    labelNames: ['source'],
    read: () => Object.entries(sourcesOf(snapshot())).map(([source, tokens]) => [{ source }, tokens] as const),
  });
  addBlockAges(registry, 'kvasir_', [], () => [[{}, snapshot()]]);
}

export function addBlockAges(
  registry: Registry,
  prefix: string,
  labelNames: readonly string[],
  read: () => readonly (readonly [Labels, InstanceSnapshot])[],
): void {
  const agesOf = (kind: keyof BlockAges) => () =>
    read().map(([labels, { blockAges }]) => [labels, blockAges?.[kind] ?? noObservations] as const);
  const bounds = blockAgeBoundsS;
  new PulledHistogram(registry, {
    ...{ bounds, labelNames },
    name: `${prefix}kv_block_lifetime_seconds`,
    help: 'Time from the entry of a block into the prefix cache to its eviction.',
    read: agesOf('lifetime'),
  });
  new PulledHistogram(registry, {
    ...{ bounds, labelNames },
    name: `${prefix}kv_block_reuse_gap_seconds`,
    help: 'Time from a use of a cached block to its next use by another request.',
    read: agesOf('reuseGap'),
  });
}
