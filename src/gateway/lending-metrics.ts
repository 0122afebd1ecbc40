// Metrics of memory that instances lend to one another: what is lent, what was moved, and what queries cost, by instance and by link.
import { Counter, Gauge, type Registry } from 'prom-client';
import type { InstanceSnapshot, LendingSnapshot } from '../cluster/ports.ts';

type InstanceMetric = readonly [name: string, help: string, read: (s: InstanceSnapshot) => number];

const of =
  (read: (lending: LendingSnapshot) => number) =>
  ({ lending }: InstanceSnapshot): number =>
    lending === undefined ? 0 : read(lending);

export const lendingGauges: readonly InstanceMetric[] = [
  ['kvasir_instance_lent_blocks', 'Blocks lent to other instances', of((l) => l.lentBlocks)],
  ['kvasir_instance_borrowed_blocks', 'Blocks held from other instances', of((l) => l.borrowedBlocks)],
  [
    'kvasir_instance_gmanager',
    'Across processes: 1 if its process is gManager',
    of((l) => Number(l.isManager === true)),
  ],
  ['kvasir_instance_remote_blocks', 'Of those, blocks that hold keys of sequences', of((l) => l.remoteBlocks)],
];

export const lendingCounters: readonly InstanceMetric[] = [
  ['kvasir_instance_moved_out_blocks_total', 'Blocks moved to creditors', of((l) => l.movedBlocks)],
  ['kvasir_instance_called_back_blocks_total', 'Blocks moved because creditors called', of((l) => l.vacatedBlocks)],
  ['kvasir_instance_settled_blocks_total', 'Blocks that came home by settlements', of((l) => l.homeBlocks)],
  ['kvasir_instance_lost_blocks_total', 'Blocks lost with their creditors', of((l) => l.lostBlocks)],
  ['kvasir_instance_memory_stalls_total', 'Sequences that waited for memory on its way', of((l) => l.stalls)],
  ['kvasir_instance_guest_queries_total', 'Queries answered for other instances', of((l) => l.guests.queries)],
  ['kvasir_instance_guest_refusals_total', 'Queries refused', of((l) => l.guests.refused)],
  ['kvasir_instance_guest_seconds_total', 'Core time computed for others', of((l) => l.guests.seconds)],
  ['kvasir_instance_remote_queries_total', 'Queries asked of other instances', of((l) => l.remote.queries)],
  ['kvasir_instance_remote_query_bytes_total', 'Bytes of query rows sent', of((l) => l.remote.bytesOut)],
  ['kvasir_instance_remote_partial_bytes_total', 'Bytes of partial attention received', of((l) => l.remote.bytesIn)],
  ['kvasir_instance_remote_wait_seconds_total', 'Time that steps waited for them', of((l) => l.remote.waitSeconds)],
];

/** By debtor and creditor. */
export function addLinkMetrics(registry: Registry, instances: () => readonly InstanceSnapshot[]): void {
  const labelled = { labelNames: ['instance', 'creditor'], registers: [registry] };
  const links = () =>
    instances().flatMap(({ lending }, instance) =>
      (lending?.links ?? []).flatMap((link, creditor) => (creditor === instance ? [] : [{ instance, creditor, link }])),
    );
  new Gauge({
    ...labelled,
    name: 'kvasir_link_borrowed_blocks',
    help: 'Blocks that an instance holds from a creditor',
    collect() {
      for (const { instance, creditor, link } of links()) this.set({ instance, creditor }, link.borrowedBlocks);
    },
  });
  new Counter({
    ...labelled,
    name: 'kvasir_link_moved_bytes_total',
    help: 'Bytes of blocks that an instance moved to a creditor, or had moved from there',
    collect() {
      this.reset();
      for (const { instance, creditor, link } of links()) this.inc({ instance, creditor }, link.movedBytes);
    },
  });
}
