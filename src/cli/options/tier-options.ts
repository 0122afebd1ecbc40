// The tiers of simulated instances below device memory: capacities of host memory and SSD.
import type { Command } from 'commander';
import { z } from 'zod';
import { HostLink } from '../../core/cost/host-link.ts';
import { assumedEfficiency } from '../../core/cost/roofline.ts';
import { groups } from '../terminal/help.ts';
import { UsageError } from '../usage-error.ts';
import { numeric } from './schema-parts.ts';
import type { HardwareSpec } from './specs.ts';

const blocks = numeric(z.number().int().min(0)).optional();

export const tierFields = {
  hostCacheBlocks: blocks,
  ssdCacheBlocks: blocks,
  lendHost: numeric(z.number().min(0).max(1)).default(0),
};

/** Share of host memory for KV: cached blocks, and received prompts, which take precedence. */
const hostKvShare = 0.5;

export function addTierFlags(command: Command): Command {
  return command
    .optionsGroup(groups.tiers)
    .option('--host-cache-blocks <n>', 'Cache this number of KV blocks in host memory (default: half of host memory)')
    .option('--ssd-cache-blocks <n>', 'Cache this number of KV blocks on SSD when host memory is full (default: 0)')
    .option(
      '--lend-host <share>',
      'With --borrow, use this share of host KV memory for blocks of sequences, local and borrowed (default: 0)',
    );
}

interface InstanceTiersOptions {
  readonly options: {
    readonly hostCacheBlocks?: number | undefined;
    readonly ssdCacheBlocks?: number | undefined;
    readonly lendHost: number;
    readonly hardware: string;
    readonly blockTokens: number;
    readonly stream: boolean;
  };
  readonly hardware: HardwareSpec;
  /** Machines of the instance; less than 1 for a part of one. */
  readonly machines: number;
  readonly kvBytesPerToken: number;
  readonly layers: number;
}

/** Capacities and rates of the tiers of an instance. @throws UsageError if the hardware has no such memory */
export function instanceTiers({ options, hardware, machines, kvBytesPerToken, layers }: InstanceTiersOptions) {
  const { devices, hostMemoryBytes, hostLinkBytesPerSecond, ssd } = hardware;
  const blockBytes = options.blockTokens * kvBytesPerToken;
  const { lendHost, blockTokens } = options;
  const hostTokens = Math.floor((hostMemoryBytes * machines * hostKvShare) / kvBytesPerToken);
  const lentBlocks = Math.floor((hostTokens / blockTokens) * lendHost);
  const receiveTokens = hostTokens - lentBlocks * blockTokens;
  const capacity = Math.floor(receiveTokens / blockTokens);
  const hostBlocks = options.hostCacheBlocks ?? (hostLinkBytesPerSecond === undefined ? 0 : capacity);
  const ssdBlocks = options.ssdCacheBlocks ?? 0;
  const cannot = (flag: string, n: number, why: string) => new UsageError(`Cannot use ${flag} ${n}: ${why}`);
  if (hostBlocks > 0 && hostLinkBytesPerSecond === undefined)
    throw cannot('--host-cache-blocks', hostBlocks, `${options.hardware} has no separate host memory`);
  if (lendHost > 0 && hostLinkBytesPerSecond === undefined)
    throw cannot('--lend-host', lendHost, `${options.hardware} has no separate host memory`);
  if (hostBlocks > capacity)
    throw cannot(
      '--host-cache-blocks',
      hostBlocks,
      `half of the host memory of ${options.hardware} holds ${capacity}${lendHost > 0 ? ' besides lent blocks' : ''}`,
    );
  if (ssdBlocks > 0 && hostBlocks === 0)
    throw cannot('--ssd-cache-blocks', ssdBlocks, 'SSD needs host memory above it, and there is none');
  const ssdCapacity = Math.floor(((ssd?.bytes ?? 0) * machines) / blockBytes);
  if (ssdBlocks > ssdCapacity)
    throw cannot('--ssd-cache-blocks', ssdBlocks, `the SSDs of ${options.hardware} hold ${ssdCapacity}`);
  const bytesPerSecond = (hostLinkBytesPerSecond ?? 0) * devices * machines * assumedEfficiency.link;
  const lent = { blocks: lentBlocks, tokenUs: (kvBytesPerToken * 1e6) / bytesPerSecond };
  const hostMemory = lentBlocks === 0 ? undefined : lent;
  if (hostBlocks === 0) return { receiveTokens, hostMemory, tiers: undefined, ssd: undefined };
  return {
    ...{ receiveTokens, hostMemory },
    tiers: { hostBlocks, ssdBlocks },
    ssd: ssd && {
      readBytesPerSecond: ssd.readBytesPerSecond * machines,
      writeBytesPerSecond: ssd.writeBytesPerSecond * machines,
    },
    hostLink: new HostLink({ bytesPerSecond, kvBytesPerToken, layers, layerWise: options.stream }),
  };
}
