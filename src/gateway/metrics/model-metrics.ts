// Metrics of models that load on demand, by model.
import type { Registry } from 'prom-client';
import type { ModelFigures, ModelLoads } from '../models/served-models.ts';
import { addPulled } from './pulled-metric.ts';

const metrics: readonly (readonly [name: string, help: string, read: (loads: ModelLoads) => number])[] = [
  ['kvasir_model_loaded', '1 if the model is loaded, else 0; of models that load on demand.', isLoaded],
  ['kvasir_model_memory_bytes', 'Memory reserved for a model that loads on demand.', ({ bytes }) => bytes],
  ['kvasir_model_loads_total', 'Loads of a model that loads on demand.', ({ loads }) => loads],
  ['kvasir_model_unloads_total', 'Times that the model was unloaded.', ({ unloads }) => unloads],
  [
    'kvasir_model_failures_total',
    'Failed loads of the model, and losses of all its instances.',
    ({ failures }) => failures,
  ],
  ['kvasir_model_load_seconds_total', 'Time spent loading the model.', ({ loadSeconds }) => loadSeconds],
];

export function addModelMetrics(registry: Registry, models: () => readonly ModelFigures[]): void {
  for (const [name, help, read] of metrics)
    addPulled(registry, {
      ...{ name, help, kind: name.endsWith('_total') ? 'counter' : 'gauge', labelNames: ['model'] },
      read: () =>
        models().flatMap(({ model, loads }) => (loads === undefined ? [] : [[{ model }, read(loads)] as const])),
    });
}

function isLoaded({ state }: ModelLoads): number {
  return Number(state === 'loaded');
}
