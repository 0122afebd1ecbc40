// Metrics of pipeline groups, which compute long prompts together.
import type { Registry } from 'prom-client';
import type { InstanceSnapshot } from '../../core/protocol/ports.ts';
import { addPulled, workerOf, workersOf } from './pulled-metric.ts';

/** Chunks by instance and stage, activations by instance and by link. */
export function addPipelineMetrics(registry: Registry, instances: () => readonly InstanceSnapshot[]): void {
  const links = () =>
    workersOf(instances()).flatMap(({ worker: from, snapshot: { activationLinks = [] } }) =>
      activationLinks.map(({ to, transport = 'none', ...figures }) => ({
        labels: { from, to: workerOf(instances(), to), transport },
        ...figures,
      })),
    );
  addPulled(registry, {
    name: 'kvasir_instance_pipeline_chunks_total',
    alias: 'kvasir_instance_stage_chunks_total',
    help: 'Prompt chunks that an instance computed as a stage of a pipeline group; each stage has a range of the layers.',
    kind: 'counter',
    labelNames: ['worker', 'stage'],
    read: () =>
      workersOf(instances()).flatMap(({ worker, snapshot: { pipelineChunks = [] } }) =>
        pipelineChunks.map((chunks, stage) => [{ worker, stage }, chunks] as const),
      ),
  });
  addPulled(registry, {
    name: 'kvasir_instance_activation_sent_bytes_total',
    alias: 'kvasir_instance_rows_sent_bytes_total',
    help: 'Bytes of activations that an instance sent to the next stages of its groups.',
    kind: 'counter',
    labelNames: ['worker'],
    read: () => links().map(({ labels, bytes }) => [{ worker: labels.from }, bytes] as const),
  });
  const labelNames = ['from', 'to', 'transport'];
  addPulled(registry, {
    name: 'kvasir_link_activation_sent_bytes_total',
    alias: 'kvasir_link_rows_sent_bytes_total',
    help: 'Bytes of activations sent from one stage of a group to the next.',
    kind: 'counter',
    labelNames,
    read: () => links().map(({ labels, bytes }) => [labels, bytes] as const),
  });
  addPulled(registry, {
    name: 'kvasir_link_activation_backlog_bytes',
    alias: 'kvasir_link_rows_backlog_bytes',
    help: 'Bytes of activations sent but not yet acknowledged.',
    kind: 'gauge',
    labelNames,
    read: () => links().map(({ labels, backlogBytes }) => [labels, backlogBytes] as const),
  });
}
