// Metrics of attention workers, which hold the KV pages of an instance.
import type { Registry } from 'prom-client';
import type { AttentionWorkerSnapshot, InstanceSnapshot } from '../../core/protocol/ports.ts';
import { addPulled, workersOf } from './pulled-metric.ts';

type Metric = readonly [
  kind: 'gauge' | 'counter',
  name: string,
  help: string,
  read: (worker: AttentionWorkerSnapshot) => number,
];

const metrics: readonly Metric[] = [
  [
    'gauge',
    'kvasir_attention_worker_up',
    '1 if the attention worker answers steps, else 0.',
    ({ ready }) => Number(ready),
  ],
  [
    'counter',
    'kvasir_attention_worker_losses_total',
    'Times that the pages of the attention worker were lost.',
    ({ losses }) => losses,
  ],
  [
    'gauge',
    'kvasir_attention_worker_sequences',
    'Running sequences with their blocks at the attention worker; with a partition by heads, none.',
    ({ sequences = 0 }) => sequences,
  ],
  [
    'gauge',
    'kvasir_attention_worker_held_tokens',
    'Tokens of these sequences with keys and values at the attention worker.',
    ({ heldTokens = 0 }) => heldTokens,
  ],
  [
    'counter',
    'kvasir_attention_worker_calls_total',
    'Attention calls sent to the attention worker: one for each layer of each step.',
    ({ calls = 0 }) => calls,
  ],
  [
    'counter',
    'kvasir_attention_worker_sent_bytes_total',
    'Bytes of block lists, query rows, keys and values sent to the attention worker.',
    ({ bytesOut = 0 }) => bytesOut,
  ],
  [
    'counter',
    'kvasir_attention_worker_received_bytes_total',
    'Bytes of attention results received from the attention worker.',
    ({ bytesIn = 0 }) => bytesIn,
  ],
  [
    'counter',
    'kvasir_attention_worker_early_seconds_total',
    'Time that the attention worker computed before the keys and values of a step arrived.',
    ({ earlySeconds = 0 }) => earlySeconds,
  ],
  [
    'counter',
    'kvasir_attention_worker_late_seconds_total',
    'Time that the attention worker computed after the keys and values of a step arrived.',
    ({ lateSeconds = 0 }) => lateSeconds,
  ],
  [
    'counter',
    'kvasir_attention_worker_wait_seconds_total',
    'Time that steps waited for results of the attention worker after their own part.',
    ({ waitSeconds = 0 }) => waitSeconds,
  ],
  [
    'counter',
    'kvasir_attention_worker_pulled_pages_total',
    'Pages of prompts that the attention worker pulled from prefill instances: its shard of each page.',
    ({ pulledPages = 0 }) => pulledPages,
  ],
  [
    'counter',
    'kvasir_attention_worker_pulled_bytes_total',
    'Bytes of these pages.',
    ({ pulledBytes = 0 }) => pulledBytes,
  ],
];

/** By instance and attention worker. */
export function addAttentionWorkerMetrics(registry: Registry, instances: () => readonly InstanceSnapshot[]): void {
  for (const [kind, name, help, read] of metrics)
    addPulled(registry, {
      ...{ name, help, kind, labelNames: ['worker', 'attention_worker'] },
      read: () =>
        workersOf(instances()).flatMap(({ worker, snapshot: { attentionWorkers = [] } }) =>
          attentionWorkers.map((each, number) => [{ worker, attention_worker: number }, read(each)] as const),
        ),
    });
}
