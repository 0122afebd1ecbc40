// Metrics of prompts that groups of instances compute together.
import { Counter, Gauge, type Registry } from 'prom-client';
import type { InstanceSnapshot } from '../../core/protocol/ports.ts';

/** Chunks by instance and place in its groups, rows by instance and link. */
export function addStageMetrics(registry: Registry, instances: () => readonly InstanceSnapshot[]): void {
  new Counter({
    name: 'kvasir_instance_stage_chunks_total',
    help: 'Chunks of prompts that an instance ran as the first (0), second... of a group, each a range of the layers',
    labelNames: ['instance', 'stage'],
    registers: [registry],
    collect() {
      this.reset();
      for (const [instance, { stageChunks = [] }] of instances().entries())
        for (const [stage, chunks] of stageChunks.entries()) this.inc({ instance, stage }, chunks);
    },
  });
  const links = () =>
    instances().flatMap(({ rowLinks = [] }, from) =>
      rowLinks.map(({ to, transport = 'none', ...of }) => ({ labels: { from, to, transport }, ...of })),
    );
  new Counter({
    name: 'kvasir_instance_rows_sent_bytes_total',
    help: 'Bytes of rows (residual streams) that an instance has passed on to other members of groups',
    labelNames: ['instance'],
    registers: [registry],
    collect() {
      this.reset();
      for (const { labels, bytes } of links()) this.inc({ instance: labels.from }, bytes);
    },
  });
  new Counter({
    name: 'kvasir_link_rows_sent_bytes_total',
    help: 'Bytes of rows put on the way from one member of a group to the next',
    labelNames: ['from', 'to', 'transport'],
    registers: [registry],
    collect() {
      this.reset();
      for (const { labels, bytes } of links()) this.inc(labels, bytes);
    },
  });
  new Gauge({
    name: 'kvasir_link_rows_backlog_bytes',
    help: 'Of them, those that are not known to have arrived',
    labelNames: ['from', 'to', 'transport'],
    registers: [registry],
    collect() {
      this.reset();
      for (const { labels, backlogBytes } of links()) this.set(labels, backlogBytes);
    },
  });
}
