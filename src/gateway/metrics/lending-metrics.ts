// Metrics of memory lending by instance and by link: blocks lent and moved, and remote attention.
import type { Registry } from 'prom-client';
import type { InstanceSnapshot, LendingLink, LendingSnapshot } from '../../core/protocol/ports.ts';
import { addPulled, type InstanceMetric, workerOf, workersOf } from './pulled-metric.ts';

const of =
  (read: (lending: LendingSnapshot) => number) =>
  ({ lending }: InstanceSnapshot): number =>
    lending === undefined ? 0 : read(lending);

export const lendingGauges: readonly InstanceMetric[] = [
  ['kvasir_instance_lent_blocks', 'Blocks lent to other instances.', of((l) => l.lentBlocks)],
  ['kvasir_instance_borrowed_blocks', 'Blocks borrowed from other instances.', of((l) => l.borrowedBlocks)],
  [
    'kvasir_instance_gmanager',
    '1 if the process of the instance runs the gManager of the cluster, else 0.',
    of((l) => Number(l.isManager === true)),
  ],
  [
    'kvasir_instance_remote_blocks',
    'Borrowed blocks that hold keys and values of running sequences.',
    of((l) => l.remoteBlocks),
  ],
  [
    'kvasir_instance_remote_cached_blocks',
    'Borrowed blocks of finished requests that remain as prefix cache.',
    of((l) => l.remoteCachedBlocks),
    'kvasir_instance_kept_blocks',
  ],
];

export const lendingCounters: readonly InstanceMetric[] = [
  ['kvasir_instance_moved_out_blocks_total', 'Blocks moved to creditors.', of((l) => l.movedBlocks)],
  [
    'kvasir_instance_moved_bytes_total',
    'Bytes of blocks copied to creditors and back to debtors.',
    of((l) => l.copiedBytes),
  ],
  [
    'kvasir_instance_moved_overlapped_bytes_total',
    'Bytes of moved blocks that were copied while a step was running.',
    of((l) => l.overlappedBytes),
    'kvasir_instance_moved_early_bytes_total',
  ],
  [
    'kvasir_instance_recalled_blocks_total',
    'Blocks moved back because creditors recalled their loans.',
    of((l) => l.vacatedBlocks),
    'kvasir_instance_called_back_blocks_total',
  ],
  [
    'kvasir_instance_settlements_total',
    'Settlements of debt cycles in which the instance returned blocks.',
    of((l) => l.settlements ?? 0),
  ],
  [
    'kvasir_instance_settled_blocks_total',
    'Blocks whose contents settlements of debt cycles brought home.',
    of((l) => l.settledBlocks),
  ],
  ['kvasir_instance_lost_blocks_total', 'Blocks lost with failed creditors.', of((l) => l.lostBlocks)],
  ['kvasir_instance_memory_stalls_total', 'Times that a sequence waited for borrowed memory.', of((l) => l.stalls)],
  [
    'kvasir_instance_remote_attention_served_queries_total',
    'Remote attention queries answered for other instances.',
    of((l) => l.servedAttention.queries),
    'kvasir_instance_guest_queries_total',
  ],
  [
    'kvasir_instance_remote_attention_refused_queries_total',
    'Remote attention queries of other instances that were refused.',
    of((l) => l.servedAttention.refused),
    'kvasir_instance_guest_refusals_total',
  ],
  [
    'kvasir_instance_remote_attention_served_seconds_total',
    'Core time spent on remote attention for other instances.',
    of((l) => l.servedAttention.seconds),
    'kvasir_instance_guest_seconds_total',
  ],
  [
    'kvasir_instance_remote_attention_throttled_seconds_total',
    'Time that remote attention queries waited because their share of the step was used up.',
    of((l) => l.servedAttention.restSeconds),
    'kvasir_instance_guest_rest_seconds_total',
  ],
  [
    'kvasir_instance_remote_queries_total',
    'Remote attention queries sent to other instances.',
    of((l) => l.remoteAttention.queries),
  ],
  ['kvasir_instance_remote_query_bytes_total', 'Bytes of query rows sent.', of((l) => l.remoteAttention.bytesOut)],
  [
    'kvasir_instance_remote_partial_bytes_total',
    'Bytes of partial attention received.',
    of((l) => l.remoteAttention.bytesIn),
  ],
  [
    'kvasir_instance_remote_key_bytes_total',
    'Bytes of keys and values that steps read at creditors instead of sending query rows.',
    of((l) => l.remoteAttention.keyBytes ?? 0),
  ],
  [
    'kvasir_instance_remote_wait_seconds_total',
    'Time that steps waited for partial attention of other instances.',
    of((l) => l.remoteAttention.waitSeconds),
  ],
];

type Read = (link: LendingLink) => number;

/** Figures of a link that its debtor reports, and those that its creditor reports. */
const ofDebtors: readonly (readonly [name: string, help: string, read: Read])[] = [
  ['kvasir_link_loan_refusals_total', 'Loans refused by a creditor.', (l) => l.refusals],
];
const ofCreditors: readonly (readonly [name: string, help: string, read: Read])[] = [
  ['kvasir_link_queries_total', 'Remote attention queries answered by a creditor.', (l) => l.queries],
  ['kvasir_link_query_refusals_total', 'Remote attention queries refused by a creditor.', (l) => l.refusedQueries],
  ['kvasir_link_query_bytes_total', 'Bytes of query rows sent to a creditor.', (l) => l.queryBytes],
  ['kvasir_link_partial_bytes_total', 'Bytes of partial attention returned by a creditor.', (l) => l.partialBytes],
];

interface LabelledLink {
  readonly worker: string;
  readonly creditor: string;
  readonly link: LendingLink;
}

/** Links name instances by their places among the lending instances. @param reporter the side that reports the figures */
function labelled(instances: readonly InstanceSnapshot[], reporter: 'debtor' | 'creditor'): readonly LabelledLink[] {
  const at = new Map(instances.map(({ lending }, instance) => [lending?.lenderNumber, instance]));
  return workersOf(instances).flatMap(({ worker: own, snapshot: { lending } }) =>
    (lending?.links ?? []).flatMap((link) => {
      const place = at.get(link.peer);
      if (place === undefined) return [];
      const peer = workerOf(instances, place);
      return reporter === 'debtor' ? [{ worker: own, creditor: peer, link }] : [{ worker: peer, creditor: own, link }];
    }),
  );
}

/** Measured figures of a link, which its debtor reports; a link without one has no sample. */
const measured: readonly (readonly [name: string, help: string, read: (link: LendingLink) => number | undefined])[] = [
  [
    'kvasir_link_round_trip_seconds',
    'Least round trip to a creditor in the last minute.',
    ({ roundTripUs }) => roundTripUs && roundTripUs / 1e6,
  ],
  [
    'kvasir_link_bytes_per_second',
    'Rate of copies to a creditor in the last minute.',
    ({ bytesPerSecond }) => bytesPerSecond,
  ],
  [
    'kvasir_link_distance',
    'Distance to a creditor: log2 of the microseconds of a round trip and 1 MiB.',
    ({ distance }) => distance,
  ],
];

/** Metrics by debtor and creditor. */
export function addLendingLinkMetrics(registry: Registry, instances: () => readonly InstanceSnapshot[]): void {
  const labelNames = ['worker', 'creditor'];
  const readLinks = (reporter: 'debtor' | 'creditor', read: Read) => () =>
    labelled(instances(), reporter).map(({ link, ...labels }) => [labels, read(link)] as const);
  addPulled(registry, {
    ...{ name: 'kvasir_link_borrowed_blocks', help: 'Blocks borrowed from a creditor.', kind: 'gauge', labelNames },
    read: readLinks('debtor', ({ borrowedBlocks }) => borrowedBlocks),
  });
  for (const [name, help, read] of measured)
    addPulled(registry, {
      ...{ name, help, kind: 'gauge', labelNames },
      read: () =>
        labelled(instances(), 'debtor').flatMap(({ link, ...labels }) => {
          const value = read(link);
          return value === undefined ? [] : [[labels, value] as const];
        }),
    });
  addPulled(registry, {
    ...{ name: 'kvasir_link_moved_bytes_total', help: 'Bytes of blocks moved to a creditor or back.', kind: 'counter' },
    labelNames: [...labelNames, 'transport'],
    read: () =>
      labelled(instances(), 'debtor').map(
        ({ link: { transport = 'none', movedBytes }, ...labels }) => [{ ...labels, transport }, movedBytes] as const,
      ),
  });
  for (const [reporter, metrics] of [['debtor', ofDebtors] as const, ['creditor', ofCreditors] as const])
    for (const [name, help, read] of metrics)
      addPulled(registry, { name, help, kind: 'counter', labelNames, read: readLinks(reporter, read) });
}
