// An instance's block cache: where its blocks have contents, what the cache decides about them becomes effects.
import { BlockCache } from '../kvcache/block-cache.ts';
import type { InstanceEffect } from '../protocol/effects.ts';
import type { InstanceConfig } from './instance-config.ts';

export function createCache(config: InstanceConfig, push: (effect: InstanceEffect<never, never>) => void): BlockCache {
  const { tiers, contents, borrowing } = config;
  const { hostBlocks: blocks = 0, hostFirstPage: firstPage } = borrowing ?? {};
  const mover = contents && {
    copy: (from: Int32Array, to: Int32Array) => push({ kind: 'copyPages', from, to }),
    load: (from: Int32Array, to: Int32Array) => push({ kind: 'loadPages', from, to }),
    erase: (slot: number) => push({ kind: 'eraseSsd', slot }),
  };
  return new BlockCache({
    ...config,
    receivePages: config.handOff?.landingPages,
    stagingBlocks: borrowing?.stagingBlocks,
    hostRows: firstPage === undefined ? undefined : { blocks, firstPage },
    tiers: tiers && { ...tiers, mover },
  });
}
