// What prefix fetch uses of an instance, without an instance: a cache, a clock and a list of effects.
import type { BlockCache } from '../../../src/core/kvcache/block-cache.ts';
import type { InstanceEffect } from '../../../src/core/protocol/effects.ts';
import type { InstanceEvent, PrefixMessage } from '../../../src/core/protocol/events.ts';
import type { InstanceContext } from '../../../src/core/scheduler/component.ts';
import { type PrefixFetchConfig, PrefixFetches } from '../../../src/core/transfer/prefix-fetch/prefix-fetches.ts';

type Effect = InstanceEffect<never, never>;

export interface PrefixContextOptions {
  readonly blockTokens: number;
  readonly stepUs?: (shape: { readonly rows: number }) => number;
  readonly incarnation?: number;
}

/** No sequence waits or runs, and the pool can spare every page. */
export function prefixContext(
  kvCache: BlockCache | undefined,
  emit: (effect: Effect) => void,
  { blockTokens, stepUs = () => 0, incarnation }: PrefixContextOptions,
) {
  const clock = { nowUs: 0 };
  const scheduler = {
    waiting: [],
    isBlockedByMemory: false,
    canSpare: () => true,
    arrived: () => {},
    recompute: () => {},
  };
  const ignored: string[] = [];
  const parts = {
    ...{ kvCache, emit, scheduler },
    ignore: (_: unknown, why: string) => void ignored.push(why),
    config: { blockTokens, contents: undefined, incarnation, cost: { predictUs: stepUs } },
    get nowUs() {
      return clock.nowUs;
    },
  };
  return { clock, scheduler, ignored, context: parts as unknown as InstanceContext<never, never> };
}

/** Prefix fetch over a cache. `handle` and `receive` return why an event or a message was ignored. */
export function prefixFetches(
  cache: BlockCache,
  emit: (effect: Effect) => void,
  config: PrefixFetchConfig,
  incarnation?: number,
) {
  const { blockTokens } = cache;
  const options = incarnation === undefined ? { blockTokens } : { blockTokens, incarnation };
  const { clock, scheduler, ignored, context } = prefixContext(cache, emit, options);
  const prefixes = new PrefixFetches<never, never>(context, config);
  const handle = (event: InstanceEvent<never, never>) => {
    ignored.length = 0;
    prefixes.handle(event);
    return ignored[0];
  };
  const receive = (from: number, message: PrefixMessage) => handle({ kind: 'peer', from, message });
  return { clock, scheduler, prefixes, handle, receive };
}
