// Metrics under vLLM's names, which routers and dashboards of other projects read.
import type { Registry } from 'prom-client';
import type { InstanceSnapshot } from '../../core/protocol/ports.ts';
import type { ModelFigures } from '../models/served-models.ts';
import { addBlockAges, sourcesOf } from './block-metrics.ts';
import { addPulled, type Labels } from './pulled-metric.ts';

const labelNames = ['model_name', 'engine'];

/** Adds them with vLLM's labels; all instances of a model together are one engine. */
export function addVllmMetrics(registry: Registry, models: () => readonly ModelFigures[]): void {
  const engines = (): (readonly [labels: Labels, snapshot: InstanceSnapshot])[] =>
    models().map(({ model, snapshot }) => [{ model_name: model, engine: '0' }, snapshot]);
  const gauge = (name: string, help: string, read: (snapshot: InstanceSnapshot) => number): void =>
    addPulled(registry, {
      ...{ name, help, kind: 'gauge', labelNames },
      read: () => engines().map(([labels, snapshot]) => [labels, read(snapshot)]),
    });
  gauge('vllm:num_requests_waiting', 'Requests accepted and not yet running.', (s) => s.waiting);
  gauge('vllm:num_requests_running', 'Requests in the running batches.', (s) => s.running);
  // Routers that read vLLM before 0.9 use the earlier of the two names.
  for (const name of ['vllm:kv_cache_usage_perc', 'vllm:gpu_cache_usage_perc'])
    gauge(name, 'Share of the KV pages held by requests: 1 is all.', ({ pages }) =>
      pages.total === 0 ? 0 : pages.used / pages.total,
    );
  addPulled(registry, {
    name: 'vllm:cache_config_info',
    help: 'The value 1, with the tokens of a block and the number of blocks of all instances as labels.',
    kind: 'gauge',
    labelNames: [...labelNames, 'block_size', 'num_gpu_blocks'],
    read: () =>
      engines().flatMap(([labels, { blocks }]) =>
        blocks === undefined
          ? []
          : [[{ ...labels, block_size: blocks.tokens, num_gpu_blocks: blocks.total }, 1] as const],
      ),
  });
  addPulled(registry, {
    name: 'vllm:prompt_tokens_by_source_total',
    help: 'Prompt tokens by source: local_compute, local_cache_hit (device) or external_kv_transfer (everything else).',
    kind: 'counter',
    labelNames: [...labelNames, 'source'],
    read: () =>
      engines().flatMap(([labels, snapshot]) => {
        const { computed, device, ...external } = sourcesOf(snapshot);
        const transferred = Object.values(external).reduce((sum, tokens) => sum + tokens, 0);
        return [
          [{ ...labels, source: 'local_compute' }, computed],
          [{ ...labels, source: 'local_cache_hit' }, device],
          [{ ...labels, source: 'external_kv_transfer' }, transferred],
        ] as const;
      }),
  });
  addBlockAges(registry, 'vllm:', labelNames, engines);
}
