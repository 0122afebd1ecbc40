// Offers of prefixes and the fetches of stores, with late, duplicate and lost messages.
import { describe, expect, it } from 'vitest';
import { BlockCache } from '../../../src/core/kvcache/block-cache.ts';
import type { InstanceEffect } from '../../../src/core/protocol/effects.ts';
import type { BlockChain } from '../../../src/core/protocol/kv-events.ts';
import { Sequence } from '../../../src/core/scheduler/batching/sequence.ts';
import { PrefixOffers } from '../../../src/core/transfer/prefix-fetch/prefix-offers.ts';
import { ReplicationWorth } from '../../../src/core/transfer/prefix-fetch/replication-worth.ts';
import { prefixContext, prefixFetches } from './prefix-context.ts';

/** Chains of one name are prefixes of one another. */
function chainOf(name: number, blocks: number): BlockChain {
  const words = Uint32Array.from({ length: 4 * blocks }, (_, i) => (i % 4 === 0 ? name * 1000 + i + 1 : 0));
  return { blocks, words };
}

const offer = (name: number, blocks: number) =>
  ({ kind: 'offer', id: `r${name}`, chain: chainOf(name, blocks) }) as const;

interface SentMessage {
  readonly to: number;
  readonly kind: string;
  readonly name: string;
  readonly from?: number;
  readonly blocks?: number;
}

function world(hostBlocks: number) {
  const cache = new BlockCache({
    ...{ pages: 0, groups: [{ layers: 1, window: undefined }], eviction: 'lru', blockTokens: 8 },
    tiers: { hostBlocks, ssdBlocks: 0 },
  });
  let effects: InstanceEffect<never, never>[] = [];
  const { clock, prefixes, handle, receive } = prefixFetches(
    cache,
    (effect) => effects.push(effect),
    { isStore: true },
    3,
  );
  /** The next fetch: its source, its name, its first block and its end. */
  const fetches = () => {
    prefixes.advance();
    prefixes.check();
    cache.check();
    const sent = effects;
    effects = [];
    return sent.flatMap((effect): readonly SentMessage[] => {
      if (effect.kind !== 'send') return [];
      const { message, to } = effect;
      if (message.kind !== 'fetch') return [{ to, kind: message.kind, name: message.id }];
      return [{ to, kind: message.kind, name: message.id, from: message.from, blocks: message.chain.blocks }];
    });
  };
  const arrived = (name: string, to: number) => handle({ kind: 'loaded', id: name, source: 1, to });
  return { cache, clock, prefixes, fetches, arrived, handle, receive };
}

describe('a store', () => {
  it('fetches the blocks that it lacks of an offer once, and keeps them', () => {
    const { cache, prefixes, fetches, arrived, handle, receive } = world(64);
    expect(receive(1, offer(1, 4))).toBeUndefined();
    expect(fetches()).toEqual([{ to: 1, kind: 'fetch', name: 'fetch 3.1', from: 0, blocks: 4 }]);
    // Another instance has more of it: the rest is fetched after the first blocks have arrived.
    expect(receive(2, offer(1, 6))).toBeUndefined();
    expect(fetches()).toEqual([]);
    expect(arrived('fetch 3.1', 4)).toBeUndefined();
    expect(fetches()).toEqual([{ to: 2, kind: 'fetch', name: 'fetch 3.2', from: 4, blocks: 6 }]);
    expect(arrived('fetch 3.2', 6)).toMatch('does not wait for it');
    expect(handle({ kind: 'loaded', id: 'fetch 3.2', source: 2, to: 6 })).toBeUndefined();
    expect(receive(1, offer(1, 6))).toBeUndefined();
    expect(fetches()).toEqual([]);
    expect(cache.lower?.inHost(chainOf(1, 6), 0, 6)).toBe(6);
    expect(prefixes.storeSnapshot).toEqual({ takenBlocks: 6, sentBlocks: 0, declinedOffers: 0 });
    expect(receive(5, { kind: 'fetch', id: 'x', chain: chainOf(1, 6), from: 2 })).toBeUndefined();
    expect(handle({ kind: 'prefixSent', id: 'x', to: 5 })).toBeUndefined();
    expect(prefixes.storeSnapshot?.sentBlocks).toBe(4);
  });

  it('keeps the blocks that arrived of a fetch whose sender fails, or has no more', () => {
    const { cache, prefixes, fetches, arrived, receive } = world(64);
    receive(1, offer(1, 6));
    fetches();
    expect(arrived('fetch 3.1', 2)).toBeUndefined();
    expect(fetches()).toEqual([]);
    expect(cache.lower?.inHost(chainOf(1, 6), 0, 6)).toBe(2);
    receive(1, offer(1, 6));
    expect(fetches()).toEqual([{ to: 1, kind: 'fetch', name: 'fetch 3.2', from: 2, blocks: 6 }]);
    expect(receive(1, { kind: 'prefixMissing', id: 'fetch 3.2' })).toBeUndefined();
    expect(prefixes.inProgress).toBe(0);
    expect(cache.lower?.host.arriving).toBe(0);
  });

  it('cancels a fetch that does not arrive, and waits longer for the next', () => {
    const { clock, prefixes, fetches, receive } = world(64);
    receive(1, offer(1, 4));
    fetches();
    clock.nowUs = prefixes.nextUs;
    expect(clock.nowUs).toBe(10_000_000);
    expect(fetches()).toEqual([{ to: 1, kind: 'cancelPrefix', name: 'fetch 3.1' }]);
    receive(1, offer(1, 4));
    expect(fetches()).toHaveLength(1);
    expect(prefixes.nextUs - clock.nowUs).toBe(20_000_000);
    expect(prefixes.storeSnapshot?.declinedOffers).toBe(1);
  });

  it('fetches a long prefix in parts, as far as memory allows', () => {
    const { cache, prefixes, fetches, arrived, receive } = world(16);
    receive(1, offer(1, 40));
    let parts = 0;
    for (let [next] = fetches(); next !== undefined; [next] = fetches()) {
      const { name, from = 0, blocks = 0 } = next;
      expect(blocks - from).toBe(2);
      arrived(name, blocks);
      if (++parts > 40) throw new Error('the fetches do not end');
    }
    expect(parts).toBeGreaterThanOrEqual(8);
    expect(cache.lower?.host.held).toBe(16);
    expect(prefixes.inProgress).toBe(0);
  });

  it('limits the fetches at once, and the offers that wait', () => {
    const { prefixes, fetches, arrived, receive } = world(1000);
    for (let name = 0; name < 64; name++) expect(receive(1, offer(name, 2))).toBeUndefined();
    expect(receive(1, offer(64, 2))).toBe('64 offers wait');
    const first = fetches();
    expect(first).toHaveLength(4);
    arrived(first[0]?.name ?? '', 2);
    expect(fetches()).toHaveLength(1);
    expect(prefixes.storeSnapshot?.declinedOffers).toBe(1);
  });
});

describe('an instance', () => {
  const sequenceOf = (name: number, computed: number) => {
    const chain = chainOf(name, 10);
    const content = { length: 90, chain, digest: () => {} };
    const spec = { content, promptLength: 80, groups: 1, priority: 0, arrival: 0, samples: true };
    const sequence = new Sequence(spec);
    sequence.computed = computed;
    return {
      id: `r${name}`,
      sequence,
      tbtUsMax: 0,
      started: true,
      cancelled: false,
      reportedOutputs: 0,
      received: undefined,
      relay: undefined,
    };
  };
  const cacheOf = (window: number | undefined) =>
    new BlockCache({ pages: 4, blockTokens: 8, groups: [{ layers: 1, window }], eviction: 'lru' });
  function offering(window?: number) {
    const offered: { to: number; blocks: number }[] = [];
    const sends = { size: 0 };
    const emit = (effect: InstanceEffect<never, never>) => {
      if (effect.kind === 'send' && effect.message.kind === 'offer')
        offered.push({ to: effect.to, blocks: effect.message.chain.blocks });
    };
    const { context } = prefixContext(cacheOf(window), emit, { blockTokens: 8, stepUs: ({ rows }) => 10 * rows });
    const offers = new PrefixOffers(context, sends, []);
    return { offers, offered, sends };
  }

  it('offers nothing if only a window of its prefixes is left', () => {
    const { offers, offered } = offering(16);
    offers.stores = [{ instance: 7, key: 1 }];
    offers.offer(sequenceOf(1, 80));
    expect(offered).toEqual([]);
  });

  it('fetches an offered prefix to its pool, once, and counts it apart from prefixes of requests', () => {
    const cache = new BlockCache({
      ...{ pages: 16, groups: [{ layers: 1, window: undefined }], eviction: 'lru', blockTokens: 8 },
    });
    const sent: string[] = [];
    const emit = (effect: InstanceEffect<never, never>) => {
      if (effect.kind === 'send') sent.push(`${effect.message.kind} ${effect.to}`);
    };
    const { clock, prefixes, handle, receive } = prefixFetches(cache, emit, {});
    receive(1, offer(1, 2));
    receive(1, offer(1, 2));
    prefixes.advance();
    expect(handle({ kind: 'loaded', id: 'fetch 0.1', source: 1, to: 2 })).toBeUndefined();
    prefixes.advance();
    expect(handle({ kind: 'loaded', id: 'fetch 0.1', source: 1, to: 2 })).toMatch('does not wait for it');
    receive(1, offer(1, 2));
    prefixes.advance();
    expect([sent, cache.match(chainOf(1, 2), 2)]).toEqual([['fetch 1'], 2]);
    expect(prefixes.snapshot()).toEqual({ prefixCopies: { fetchedBlocks: 0, proactiveBlocks: 2 } });
    // The holder is gone: the fetch ends with its patience, and its blocks are free again.
    receive(2, offer(2, 2));
    prefixes.advance();
    clock.nowUs = prefixes.nextUs;
    prefixes.advance();
    expect([sent.at(-1), prefixes.inProgress]).toEqual(['cancelPrefix 2', 0]);
    cache.check();
  });

  it('cancels a fetch after a second if a request waits for the memory that it holds', () => {
    const cache = cacheOf(undefined);
    const { clock, scheduler, prefixes, receive } = prefixFetches(cache, () => {}, {});
    receive(1, offer(1, 4));
    prefixes.advance();
    expect([prefixes.nextUs, cache.pages.free]).toEqual([10_000_000, 3]);
    clock.nowUs = 400_000;
    scheduler.isBlockedByMemory = true;
    prefixes.advance();
    expect([prefixes.nextUs, prefixes.inProgress]).toEqual([1_000_000, 1]);
    clock.nowUs = prefixes.nextUs;
    prefixes.advance();
    expect([prefixes.inProgress, cache.pages.free]).toEqual([0, 4]);
    // The fetch was not slow: the next one has the same patience.
    scheduler.isBlockedByMemory = false;
    receive(1, offer(1, 4));
    prefixes.advance();
    expect(prefixes.nextUs - clock.nowUs).toBe(10_000_000);
  });

  it('offers the blocks that the conductor names, unless many prefixes are being sent', () => {
    const { offers, offered, sends } = offering();
    offers.offerTo(sequenceOf(1, 0), { to: 5, blocks: 4 });
    offers.offerTo(sequenceOf(1, 0), { to: 5, blocks: 40 });
    sends.size = 4;
    offers.offerTo(sequenceOf(1, 0), { to: 5, blocks: 4 });
    expect(offered).toEqual([
      { to: 5, blocks: 4 },
      { to: 5, blocks: 10 },
    ]);
  });

  it('offers new computed prefixes to the same store as all instances, while few prefixes are being sent', () => {
    const { offers, offered, sends } = offering();
    offers.offer(sequenceOf(1, 80));
    expect(offered).toEqual([]);
    offers.stores = [
      { instance: 7, key: 1 },
      { instance: 8, key: 2 },
    ];
    const running = sequenceOf(1, 30);
    offers.offer(running);
    offers.offer(running);
    running.sequence.computed = 90;
    sends.size = 4;
    offers.offer(running);
    expect(offered.map(({ blocks }) => blocks)).toEqual([3]);
    sends.size = 3;
    offers.offer(running);
    expect(offered.map(({ blocks }) => blocks)).toEqual([3, 10]);
    expect(new Set(offered.map(({ to }) => to)).size).toBe(1);
    for (let name = 2; name < 20; name++) offers.offer(sequenceOf(name, 80));
    expect(new Set(offered.map(({ to }) => to))).toEqual(new Set([7, 8]));
  });

  it('learns the time of copies, and occasionally tries a prefix that is not worth it', () => {
    const worth = new ReplicationWorth();
    expect(worth.isWorth(10, 1)).toBe(true);
    worth.copied(10, 1000);
    worth.copied(0, 1e9);
    expect([worth.isWorth(10, 1001), worth.isWorth(10, 1000)]).toEqual([true, false]);
    expect(Array.from({ length: 32 }, () => worth.isWorth(10, 1)).filter((is) => is)).toHaveLength(2);
    for (let i = 0; i < 20; i++) worth.copied(10, 10);
    expect(worth.isWorth(10, 20)).toBe(true);
  });
});
