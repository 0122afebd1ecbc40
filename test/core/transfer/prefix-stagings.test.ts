// A prefix on SSD alone that another instance fetches.
import { expect, test } from 'vitest';
import { BlockCache, LastMatch } from '../../../src/core/kvcache/block-cache.ts';
import { BlockTable } from '../../../src/core/kvcache/block-table.ts';
import type { InstanceEffect } from '../../../src/core/protocol/effects.ts';
import type { BlockChain } from '../../../src/core/protocol/kv-events.ts';
import { prefixFetches } from './prefix-context.ts';

function chainOf(name: number): BlockChain {
  return { blocks: 4, words: Uint32Array.from({ length: 16 }, (_, i) => (i % 4 === 0 ? name * 1000 + i : 0)) };
}

function serve(cache: BlockCache, chain: BlockChain): void {
  const table = new BlockTable(1, 4);
  const known = cache.loadPrefix(chain, 4, table, { known: new LastMatch(), resumed: false });
  while (table.length < 4) expect(cache.allocate(table)).toBe(true);
  cache.cacheBlocks(chain, known, 4, table);
  cache.lower?.readStarted();
  cache.lower?.readEnded();
  cache.release(table);
}

/** The first of two prompts is on SSD alone. */
function world() {
  const cache = new BlockCache({
    pages: 4,
    groups: [{ layers: 1, window: undefined }],
    eviction: 'lru',
    blockTokens: 8,
    tiers: { hostBlocks: 4, ssdBlocks: 12 },
  });
  const effects: InstanceEffect<never, never>[] = [];
  const { handle, receive } = prefixFetches(cache, (effect) => effects.push(effect), {});
  serve(cache, chainOf(1));
  serve(cache, chainOf(2));
  expect(cache.lower?.takeSsdWrites().count).toBe(4);
  cache.lower?.written(4);
  return { cache, effects, handle, receive };
}

const fetch = { kind: 'fetch', id: 'r', chain: chainOf(1), from: 1 } as const;

test('is read into host memory, then sent from there', () => {
  const { cache, effects, handle, receive } = world();
  expect(receive(3, fetch)).toBeUndefined();
  // A duplicate fetch reads it once.
  expect(receive(3, fetch)).toBeUndefined();
  expect(effects).toEqual([{ kind: 'readSsd', id: '3 r', blocks: 3, to: 4 }]);
  cache.check();
  expect(handle({ kind: 'loaded', id: '3 r', source: 'ssd', to: 4 })).toBeUndefined();
  expect(effects.at(-1)).toEqual({ kind: 'streamPrefix', id: 'r', to: 3, tokens: 24, blocks: 4 });
  expect(handle({ kind: 'prefixSent', id: 'r', to: 3 })).toBeUndefined();
  cache.check();
  // Nothing is pinned: all blocks can be evicted.
  cache.lower?.host.setReserved(4);
  expect(cache.lower?.host.held).toBe(0);
  cache.check();
});

test('is cancelled when the receiver does not need it any more', () => {
  const { cache, effects, handle, receive } = world();
  receive(3, fetch);
  expect(receive(3, { kind: 'cancelPrefix', id: 'r' })).toBeUndefined();
  cache.check();
  expect(handle({ kind: 'loaded', id: '3 r', source: 'ssd', to: 4 })).toContain('does not wait for it');
  expect(effects.map(({ kind }) => kind)).toEqual(['readSsd']);
  cache.lower?.host.setReserved(4);
  expect(cache.lower?.host.held).toBe(0);
});
