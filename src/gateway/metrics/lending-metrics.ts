// Metrics of memory that instances lend to one another: what is lent, what was moved, and what queries cost, by instance and by link.
import { Counter, Gauge, type Registry } from 'prom-client';
import type { InstanceSnapshot, LendingLink, LendingSnapshot } from '../../core/protocol/ports.ts';

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
  ['kvasir_instance_kept_blocks', 'Of those, blocks of ended requests, kept as cache', of((l) => l.keptBlocks)],
];

export const lendingCounters: readonly InstanceMetric[] = [
  ['kvasir_instance_moved_out_blocks_total', 'Blocks moved to creditors', of((l) => l.movedBlocks)],
  [
    'kvasir_instance_moved_bytes_total',
    'Bytes of blocks copied to creditors, and for debtors',
    of((l) => l.copiedBytes),
  ],
  ['kvasir_instance_moved_early_bytes_total', 'Of those, bytes that left while a step ran', of((l) => l.earlyBytes)],
  ['kvasir_instance_called_back_blocks_total', 'Blocks moved because creditors called', of((l) => l.vacatedBlocks)],
  ['kvasir_instance_settled_blocks_total', 'Blocks that came home by settlements', of((l) => l.homeBlocks)],
  ['kvasir_instance_lost_blocks_total', 'Blocks lost with their creditors', of((l) => l.lostBlocks)],
  ['kvasir_instance_memory_stalls_total', 'Sequences that waited for memory on its way', of((l) => l.stalls)],
  ['kvasir_instance_guest_queries_total', 'Queries answered for other instances', of((l) => l.guests.queries)],
  ['kvasir_instance_guest_refusals_total', 'Queries refused', of((l) => l.guests.refused)],
  ['kvasir_instance_guest_seconds_total', 'Core time computed for others', of((l) => l.guests.seconds)],
  [
    'kvasir_instance_guest_rest_seconds_total',
    'Time that queries waited so that guests keep to their share',
    of((l) => l.guests.restSeconds),
  ],
  ['kvasir_instance_remote_queries_total', 'Queries asked of other instances', of((l) => l.remote.queries)],
  ['kvasir_instance_remote_query_bytes_total', 'Bytes of query rows sent', of((l) => l.remote.bytesOut)],
  ['kvasir_instance_remote_partial_bytes_total', 'Bytes of partial attention received', of((l) => l.remote.bytesIn)],
  ['kvasir_instance_remote_wait_seconds_total', 'Time that steps waited for them', of((l) => l.remote.waitSeconds)],
];

type Read = (link: LendingLink) => number;

/** What the debtor says of its creditors, and what the creditor says of its debtors. */
const ofDebtors: readonly (readonly [name: string, help: string, read: Read])[] = [
  ['kvasir_link_loan_refusals_total', 'Loans that a creditor refused', (l) => l.refusals],
];
const ofCreditors: readonly (readonly [name: string, help: string, read: Read])[] = [
  ['kvasir_link_queries_total', 'Queries that a creditor answered', (l) => l.queries],
  ['kvasir_link_query_refusals_total', 'Queries that a creditor refused', (l) => l.refusedQueries],
  ['kvasir_link_query_bytes_total', 'Bytes of query rows sent there', (l) => l.queryBytes],
  ['kvasir_link_partial_bytes_total', 'Bytes of partial attention that came back', (l) => l.partialBytes],
];

interface Labelled {
  readonly instance: number;
  readonly creditor: number;
  readonly link: LendingLink;
}

/** Links name instances by their places among those that lend. @param says whose word it is */
function labelled(instances: readonly InstanceSnapshot[], says: 'debtor' | 'creditor'): readonly Labelled[] {
  const at = new Map(instances.map(({ lending }, instance) => [lending?.place, instance]));
  return instances.flatMap(({ lending }, teller) =>
    (lending?.links ?? []).flatMap((link) => {
      const peer = at.get(link.peer);
      if (peer === undefined) return [];
      return says === 'debtor'
        ? [{ instance: teller, creditor: peer, link }]
        : [{ instance: peer, creditor: teller, link }];
    }),
  );
}

/** By debtor and creditor. */
export function addLinkMetrics(registry: Registry, instances: () => readonly InstanceSnapshot[]): void {
  const labels = { labelNames: ['instance', 'creditor'], registers: [registry] };
  new Gauge({
    ...labels,
    name: 'kvasir_link_borrowed_blocks',
    help: 'Blocks that an instance holds from a creditor',
    collect() {
      this.reset();
      for (const { link, ...of } of labelled(instances(), 'debtor')) this.set(of, link.borrowedBlocks);
    },
  });
  new Counter({
    ...{ labelNames: ['instance', 'creditor', 'transport'], registers: [registry] },
    ...{ name: 'kvasir_link_moved_bytes_total', help: 'Bytes of blocks moved to a creditor, or from there' },
    collect() {
      this.reset();
      for (const { link, ...of } of labelled(instances(), 'debtor'))
        this.inc({ ...of, transport: link.transport ?? 'none' }, link.movedBytes);
    },
  });
  for (const [says, metrics] of [['debtor', ofDebtors] as const, ['creditor', ofCreditors] as const])
    for (const [name, help, read] of metrics)
      new Counter({
        ...{ ...labels, name, help },
        collect() {
          this.reset();
          for (const { link, ...of } of labelled(instances(), says)) this.inc(of, read(link));
        },
      });
}
