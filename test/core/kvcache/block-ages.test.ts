// Ages of blocks: what a cache counts when blocks are stored, reused and evicted.
import { expect, it } from 'vitest';
import { BlockCache } from '../../../src/core/kvcache/block-cache.ts';
import { HashChain, rootDigest } from '../../../src/core/kvcache/block-hash.ts';
import { BlockTable } from '../../../src/core/kvcache/block-table.ts';
import { blockAgeBoundsS } from '../../../src/core/protocol/ports.ts';
import { pageTokens } from '../../../src/util/step.ts';

const root = { modelFingerprint: 'm', weightForm: 'q8', inputForm: 'bf16', kvType: 'bf16', rope: '10000' };

/** Observations up to a bound. */
function upTo(boundS: number, counts: readonly number[]): number {
  const buckets = blockAgeBoundsS.filter((bound) => bound <= boundS).length;
  return counts.slice(0, buckets).reduce((sum, count) => sum + count, 0);
}

it('count the gap before each reuse, and the lifetime of evicted blocks', () => {
  const cache = new BlockCache({
    pages: 4,
    blockTokens: pageTokens,
    groups: [{ layers: 1, window: undefined }],
    eviction: 'lru',
  });
  const chain = new HashChain(rootDigest(root, '', new Uint32Array(4)));
  chain.extend(new Int32Array(2 * pageTokens), 2 * pageTokens);
  const table = new BlockTable(1);
  for (let i = 0; i < 2; i++) cache.allocate(table);
  cache.ages.nowUs = 1_000_000;
  cache.cacheBlocks(chain, 0, 2, table);
  cache.release(table);
  cache.ages.nowUs = 1_500_000;
  expect(cache.share(chain, 2, table)).toBe(2);
  cache.release(table);
  cache.ages.nowUs = 5_500_000;
  expect(cache.share(chain, 1, table)).toBe(1);
  cache.release(table);
  cache.ages.nowUs = 61_000_000;
  cache.forget();
  const { lifetime, reuseGap } = cache.ages.snapshot;
  expect([0.2, 0.5, 2, 5, 1800].map((bound) => upTo(bound, reuseGap.counts))).toEqual([0, 2, 2, 3, 3]);
  expect(reuseGap.sum).toBeCloseTo(5, 9);
  expect([30, 60].map((bound) => upTo(bound, lifetime.counts))).toEqual([0, 2]);
  expect(lifetime.sum).toBeCloseTo(120, 9);
});
