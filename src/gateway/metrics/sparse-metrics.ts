// Metrics of sparse KV: sequences with a KV budget, and what they keep.
import type { InstanceMetric } from './pulled-metric.ts';

export const sparseGauges: readonly InstanceMetric[] = [
  [
    'kvasir_sparse_requests_running',
    'Running requests that keep only some tokens in sparse layers.',
    (s) => s.sparse?.sequences ?? 0,
  ],
  ['kvasir_sparse_kv_pages_used', 'KV pages of kept tokens and their scores.', (s) => s.sparse?.slotPages ?? 0],
  [
    'kvasir_sparse_kept_tokens',
    'Tokens kept by running requests, counted in each sparse layer.',
    (s) => s.sparse?.slotTokens ?? 0,
  ],
];

export const sparseCounters: readonly InstanceMetric[] = [
  ['kvasir_sparse_selections_total', 'Prompts of which the kept tokens were chosen.', (s) => s.sparse?.selections ?? 0],
  [
    'kvasir_sparse_prompt_tokens_total',
    'Tokens of these prompts, counted in each sparse layer.',
    (s) => s.sparse?.promptTokens ?? 0,
  ],
  [
    'kvasir_sparse_prompt_tokens_kept_total',
    'Tokens kept of these prompts, counted in each sparse layer.',
    (s) => s.sparse?.keptTokens ?? 0,
  ],
];
