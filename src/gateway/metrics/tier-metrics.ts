// Metrics of the tiers below the KV pool (host memory and SSD) and of stores: blocks held, hits, and bytes moved.
import type { InstanceMetric } from './pulled-metric.ts';

export const tierGauges: readonly InstanceMetric[] = [
  ['kvasir_instance_host_memory_blocks', 'Blocks cached in host memory.', (s) => s.tiers?.host.blocks ?? 0],
  ['kvasir_instance_ssd_blocks', 'Blocks on SSD, those being written included.', (s) => s.tiers?.ssd.blocks ?? 0],
];

export const tierCounters: readonly InstanceMetric[] = [
  [
    'kvasir_instance_host_memory_hit_blocks_total',
    'Prompt blocks found in host memory.',
    (s) => s.tiers?.reads.host ?? 0,
  ],
  ['kvasir_instance_ssd_hit_blocks_total', 'Prompt blocks found on SSD.', (s) => s.tiers?.reads.ssd ?? 0],
  [
    'kvasir_instance_fetched_hit_blocks_total',
    'Prompt blocks fetched from other instances into host memory.',
    (s) => s.tiers?.reads.instance ?? 0,
  ],
  [
    'kvasir_instance_host_memory_bytes_total',
    'Bytes copied between the KV pool and host memory.',
    (s) => s.tiers?.moved?.copiedBytes ?? 0,
  ],
  [
    'kvasir_instance_host_memory_early_bytes_total',
    'Bytes copied to host memory while the step that computed them ran.',
    (s) => s.tiers?.moved?.storedEarlyBytes ?? 0,
  ],
  [
    'kvasir_instance_prefix_fetched_blocks_total',
    'Blocks copied from other instances for requests that placement sent here.',
    (s) => s.prefixCopies?.fetchedBlocks ?? 0,
  ],
  [
    'kvasir_instance_prefix_proactive_blocks_total',
    'Blocks of hot prefixes copied from other instances before a prompt fetched them.',
    (s) => s.prefixCopies?.proactiveBlocks ?? 0,
  ],
  [
    'kvasir_instance_store_received_blocks_total',
    'Blocks that a store received from other instances.',
    (s) => s.store?.takenBlocks ?? 0,
    'kvasir_instance_store_taken_blocks_total',
  ],
  [
    'kvasir_instance_store_received_bytes_total',
    'Bytes that a store received from other instances.',
    (s) => s.store?.takenBytes ?? 0,
    'kvasir_instance_store_taken_bytes_total',
  ],
  [
    'kvasir_instance_store_sent_blocks_total',
    'Blocks that a store sent to other instances.',
    (s) => s.store?.sentBlocks ?? 0,
  ],
  [
    'kvasir_instance_store_sent_bytes_total',
    'Bytes that a store sent to other instances.',
    (s) => (s.store === undefined ? 0 : (s.sent?.bytes ?? 0)),
  ],
  [
    'kvasir_instance_store_declined_offers_total',
    'Prefixes offered to a store that it declined for lack of free capacity.',
    (s) => s.store?.declinedOffers ?? 0,
  ],
  ['kvasir_instance_ssd_read_bytes_total', 'Bytes read from SSD.', (s) => s.tiers?.moved?.ssdReadBytes ?? 0],
  ['kvasir_instance_ssd_written_bytes_total', 'Bytes written to SSD.', (s) => s.tiers?.moved?.ssdWrittenBytes ?? 0],
  [
    'kvasir_instance_ssd_corrupt_blocks_total',
    'Blocks on SSD that failed their checksum and were computed again.',
    (s) => s.tiers?.moved?.badBlocks ?? 0,
    'kvasir_instance_ssd_bad_blocks_total',
  ],
];
