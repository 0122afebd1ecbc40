// Metrics of prompts that groups of instances compute together.
import { Counter, type Registry } from 'prom-client';
import type { InstanceSnapshot } from '../cluster/ports.ts';

/** By instance and place in its groups. */
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
}
