// The block cache of an instance: where blocks have contents, its decisions become effects.

import { BlockCache } from '../kvcache/block-cache.ts';
import type { InstanceConfig } from './instance-config.ts';
import type { EffectSink } from './step-in-flight.ts';

export function createCache(config: InstanceConfig, sink: EffectSink): BlockCache {
  const { tiers, contents } = config;
  const mover = contents && {
    copy: (from: Int32Array, to: Int32Array) => sink.emit({ kind: 'copyPages', from, to }),
    load: (from: Int32Array, to: Int32Array) => sink.emit({ kind: 'loadPages', from, to }),
    erase: (slot: number) => sink.emit({ kind: 'eraseSsd', slot }),
  };
  return new BlockCache({ ...config, tiers: tiers && { ...tiers, mover } });
}
