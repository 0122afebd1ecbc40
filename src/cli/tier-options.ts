// Where cached keys and values are kept below device memory: how much of host memory and SSD, from flags and hardware.
import type { Command } from 'commander';
import { z } from 'zod';
import { HostLink } from '../policy/cost/host-link.ts';
import { statedEfficiency } from '../policy/cost/roofline.ts';
import { numeric } from './schema-parts.ts';
import type { HardwareSpec } from './specs.ts';
import { UsageError } from './usage-error.ts';

const blocks = numeric(z.number().int().min(0)).optional();

export const tierFields = { hostCacheBlocks: blocks, ssdCacheBlocks: blocks };

/** Of an instance's host memory, what holds keys and values: cached ones, and prompts that come from other instances, which go first. */
const hostKvShare = 0.5;

export function addTierFlags(command: Command): Command {
  return command
    .option('--host-cache-blocks <n>', 'blocks of KV kept in host memory; 0: none (default: half of host memory)')
    .option('--ssd-cache-blocks <n>', 'blocks of KV kept on SSD when host memory has no room for them (default: 0)');
}

interface InstanceTiersOptions {
  readonly options: {
    readonly hostCacheBlocks?: number | undefined;
    readonly ssdCacheBlocks?: number | undefined;
    readonly hardware: string;
    readonly blockTokens: number;
    readonly stream: boolean;
  };
  readonly hardware: HardwareSpec;
  /** Of a machine, or how many. */
  readonly machines: number;
  readonly kvBytesPerToken: number;
  readonly layers: number;
}

/** @throws UsageError when the hardware has no such memory */
export function instanceTiers({ options, hardware, machines, kvBytesPerToken, layers }: InstanceTiersOptions) {
  const { devices, hostMemoryBytes, hostLinkBytesPerSecond, ssd } = hardware;
  const blockBytes = options.blockTokens * kvBytesPerToken;
  const landingTokens = Math.floor((hostMemoryBytes * machines * hostKvShare) / kvBytesPerToken);
  const room = Math.floor(landingTokens / options.blockTokens);
  const hostBlocks = options.hostCacheBlocks ?? (hostLinkBytesPerSecond === undefined ? 0 : room);
  const ssdBlocks = options.ssdCacheBlocks ?? 0;
  const cannot = (flag: string, n: number, why: string) => new UsageError(`Cannot use ${flag} ${n}: ${why}`);
  if (hostBlocks > 0 && hostLinkBytesPerSecond === undefined)
    throw cannot('--host-cache-blocks', hostBlocks, `${options.hardware} has no host memory beside its own`);
  if (hostBlocks > room)
    throw cannot('--host-cache-blocks', hostBlocks, `half of the host memory of ${options.hardware} holds ${room}`);
  if (ssdBlocks > 0 && hostBlocks === 0)
    throw cannot('--ssd-cache-blocks', ssdBlocks, 'SSD takes what host memory has no room for, which there is none of');
  const ssdRoom = Math.floor(((ssd?.bytes ?? 0) * machines) / blockBytes);
  if (ssdBlocks > ssdRoom)
    throw cannot('--ssd-cache-blocks', ssdBlocks, `the SSDs of ${options.hardware} hold ${ssdRoom}`);
  if (hostBlocks === 0 || hostLinkBytesPerSecond === undefined) return { landingTokens, ssd: undefined };
  const bytesPerSecond = hostLinkBytesPerSecond * devices * machines * statedEfficiency.link;
  return {
    landingTokens,
    tiers: { hostBlocks, ssdBlocks },
    ssd: ssd && {
      readBytesPerSecond: ssd.readBytesPerSecond * machines,
      writeBytesPerSecond: ssd.writeBytesPerSecond * machines,
    },
    hostLink: new HostLink({ bytesPerSecond, kvBytesPerToken, layers, layerWise: options.stream }),
  };
}
