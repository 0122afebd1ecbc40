// Metrics of the tiers below instances' pools: what they hold, what was found there, and the bytes that were moved.
import type { InstanceSnapshot } from '../../core/protocol/ports.ts';

type InstanceMetric = readonly [name: string, help: string, read: (s: InstanceSnapshot) => number];

export const tierGauges: readonly InstanceMetric[] = [
  ['kvasir_instance_host_memory_blocks', 'Blocks that host memory holds', (s) => s.tiers?.host.blocks ?? 0],
  ['kvasir_instance_ssd_blocks', 'Blocks that SSD holds, or that are being written', (s) => s.tiers?.ssd.blocks ?? 0],
];

export const tierCounters: readonly InstanceMetric[] = [
  [
    'kvasir_instance_host_memory_hit_blocks_total',
    'Blocks of prompts that host memory had',
    (s) => s.tiers?.reads.host ?? 0,
  ],
  ['kvasir_instance_ssd_hit_blocks_total', 'Blocks of prompts that SSD had', (s) => s.tiers?.reads.ssd ?? 0],
  [
    'kvasir_instance_fetched_hit_blocks_total',
    'Blocks of prompts that came from other instances to host memory',
    (s) => s.tiers?.reads.instance ?? 0,
  ],
  [
    'kvasir_instance_host_memory_bytes_total',
    'Bytes copied between the pool and host memory',
    (s) => s.tiers?.moved?.copiedBytes ?? 0,
  ],
  ['kvasir_instance_store_taken_blocks_total', 'Blocks that a store took of others', (s) => s.store?.takenBlocks ?? 0],
  ['kvasir_instance_store_taken_bytes_total', 'Their bytes', (s) => s.store?.takenBytes ?? 0],
  ['kvasir_instance_store_sent_blocks_total', 'Blocks that a store sent to others', (s) => s.store?.sentBlocks ?? 0],
  ['kvasir_instance_store_sent_bytes_total', 'Their bytes', (s) => (s.store === undefined ? 0 : (s.sent?.bytes ?? 0))],
  [
    'kvasir_instance_store_declined_offers_total',
    'Prefixes that a store was offered and did not take: there was no room, or too much else',
    (s) => s.store?.declinedOffers ?? 0,
  ],
  ['kvasir_instance_ssd_read_bytes_total', 'Bytes read of SSD', (s) => s.tiers?.moved?.ssdReadBytes ?? 0],
  ['kvasir_instance_ssd_written_bytes_total', 'Bytes written to SSD', (s) => s.tiers?.moved?.ssdWrittenBytes ?? 0],
  [
    'kvasir_instance_ssd_bad_blocks_total',
    'Blocks that SSD was to have and were not whole: computed anew',
    (s) => s.tiers?.moved?.badBlocks ?? 0,
  ],
];
