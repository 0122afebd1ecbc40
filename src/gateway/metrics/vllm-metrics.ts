// Metrics under vLLM's names, which routers and dashboards of other projects read.
import type { Registry } from 'prom-client';
import type { InstanceSnapshot } from '../../core/protocol/ports.ts';
import { addBlockAges, sourcesOf } from './block-metrics.ts';
import { addPulled } from './pulled-metric.ts';

/** Adds them with vLLM's labels; all instances together are one engine. */
export function addVllmMetrics(registry: Registry, modelName: string, snapshot: () => InstanceSnapshot): void {
  const labels = { model_name: modelName, engine: '0' };
  const labelNames = Object.keys(labels);
  const gauge = (name: string, help: string, read: (snapshot: InstanceSnapshot) => number): void =>
    addPulled(registry, { name, help, kind: 'gauge', labelNames, read: () => [[labels, read(snapshot())]] });
  gauge('vllm:num_requests_waiting', 'Requests accepted and not yet running.', (s) => s.waiting);
  gauge('vllm:num_requests_running', 'Requests in the running batches.', (s) => s.running);
  gauge('vllm:kv_cache_usage_perc', 'Share of the KV pages held by requests: 1 is all.', ({ pages }) =>
    pages.total === 0 ? 0 : pages.used / pages.total,
  );
  addPulled(registry, {
    name: 'vllm:cache_config_info',
    help: 'The value 1, with the tokens of a block and the number of blocks of all instances as labels.',
    kind: 'gauge',
    labelNames: [...labelNames, 'block_size', 'num_gpu_blocks'],
    read: () => {
      const { blocks } = snapshot();
      return blocks === undefined ? [] : [[{ ...labels, block_size: blocks.tokens, num_gpu_blocks: blocks.total }, 1]];
    },
  });
  addPulled(registry, {
    name: 'vllm:prompt_tokens_by_source_total',
    help: 'Prompt tokens by source: local_compute, local_cache_hit (device) or external_kv_transfer (everything else).',
    kind: 'counter',
    labelNames: [...labelNames, 'source'],
    read: () => {
      const { computed, device, ...external } = sourcesOf(snapshot());
      const transferred = Object.values(external).reduce((sum, tokens) => sum + tokens, 0);
      return [
        [{ ...labels, source: 'local_compute' }, computed],
        [{ ...labels, source: 'local_cache_hit' }, device],
        [{ ...labels, source: 'external_kv_transfer' }, transferred],
      ] as const;
    },
  });
  addBlockAges(registry, 'vllm:', labels, snapshot);
}
