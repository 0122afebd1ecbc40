// Layer groups in one cache: blocks behind windows, reusable prefixes, and the number of pages.
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { BlockCache, LastMatch } from '../../../src/core/kvcache/block-cache.ts';
import { HashChain, rootDigest } from '../../../src/core/kvcache/block-hash.ts';
import { BlockTable } from '../../../src/core/kvcache/block-table.ts';
import { evictionKinds } from '../../../src/core/kvcache/eviction.ts';
import {
  blockPages,
  blocksAttendedMax,
  capacityTokens,
  firstBlockAttended,
} from '../../../src/core/kvcache/layer-groups.ts';
import { type LayerGroup, pageTokens } from '../../../src/util/step.ts';

const root = rootDigest(
  { modelFingerprint: 'm', weightForm: 'q8', inputForm: 'bf16', kvType: 'bf16', rope: '10000' },
  '',
  new Uint32Array(4),
);

/** One letter a block. */
function chainOf(text: string): HashChain {
  const tokens = Int32Array.from({ length: text.length * pageTokens }, (_, i) =>
    text.charCodeAt(Math.floor(i / pageTokens)),
  );
  const chain = new HashChain(root);
  chain.extend(tokens, tokens.length);
  return chain;
}

const whole = (layers: number): LayerGroup => ({ layers, window: undefined });
const windowed = (layers: number, window: number): LayerGroup => ({ layers, window });

const arbitraryGroups = fc.array(
  fc.record({
    layers: fc.integer({ min: 1, max: 3 }),
    window: fc.option(fc.integer({ min: 1, max: 130 }), { nil: undefined }),
  }),
  { minLength: 1, maxLength: 3 },
);

/** A sequence that is computed block by block. */
class Runner {
  readonly #cache: BlockCache;
  readonly chain: HashChain;
  readonly table: BlockTable;
  blocks: number;

  constructor(cache: BlockCache, text: string) {
    this.#cache = cache;
    this.chain = chainOf(text);
    this.table = new BlockTable(cache.groups.length);
    this.blocks = cache.share(this.chain, text.length, this.table);
  }

  /** Computes `chunk` further blocks in one step; false without free pages, or at the end of the text. */
  grow(chunk = 1): boolean {
    const to = Math.min(this.chain.blocks, this.blocks + chunk);
    while (this.table.length < to) if (!this.#cache.allocate(this.table)) return false;
    this.#cache.cacheBlocks(this.chain, this.blocks, to, this.table);
    this.#cache.releaseBehindWindow(this.table, to * pageTokens);
    const grown = to > this.blocks;
    this.blocks = to;
    return grown;
  }

  end(): void {
    this.#cache.release(this.table);
  }
}

test('a row attends to the blocks from its first key to its own, never more than the bound', () => {
  fc.assert(
    fc.property(fc.integer({ min: 1, max: 200 }), fc.nat(500), fc.integer({ min: 1, max: 100 }), (window, at, rows) => {
      const keys = Array.from({ length: at + rows }, (_, key) => key).filter((key) => at - key < window);
      const seen = new Set(keys.map((key) => Math.floor(key / pageTokens)));
      expect(firstBlockAttended(window, at, pageTokens)).toBe(Math.min(...seen));
      expect(seen.size).toBeLessThanOrEqual(blocksAttendedMax(window, rows, pageTokens));
    }),
  );
  expect(blocksAttendedMax(64, 1, pageTokens)).toBe(3);
  expect(blocksAttendedMax(1, 1, pageTokens)).toBe(1);
});

test('the capacity is the length at which a sequence that is computed block by block runs out of pages', () => {
  const text = 'x'.repeat(60);
  fc.assert(
    fc.property(arbitraryGroups, fc.integer({ min: 1, max: 60 }), (groups, pages) => {
      const cache = new BlockCache({ pages, groups, eviction: 'lru', blockTokens: pageTokens });
      const runner = new Runner(cache, text);
      while (runner.grow()) cache.check();
      expect(runner.blocks).toBe(Math.min(text.length, capacityTokens(groups, pages, pageTokens) / pageTokens));
    }),
  );
});

test('the reusable prefix matches its definition after any starts, ends and evictions', () => {
  const text = fc.string({ unit: fc.constantFrom('a', 'a', 'a', 'b'), minLength: 1, maxLength: 9 });
  const action = fc.record({ text, chunk: fc.integer({ min: 1, max: 9 }), leaves: fc.nat(4) });
  const eviction = fc.constantFrom(...evictionKinds);
  let partly = 0;
  fc.assert(
    fc.property(
      arbitraryGroups,
      fc.integer({ min: 9, max: 30 }),
      eviction,
      fc.array(action),
      (groups, blocks, kind, actions) => {
        const cache = new BlockCache({
          pages: blocks * blockPages(groups),
          groups,
          eviction: kind,
          blockTokens: pageTokens,
        });
        const running: Runner[] = [];
        const lookups = actions.map(({ text }) => ({ text, last: new LastMatch() }));
        for (const { text, chunk, leaves } of actions) {
          // A repeated lookup returns the same as a first one.
          for (const { text: other, last } of lookups) {
            const [chain, most] = [chainOf(other), other.length - (chunk % 2)];
            expect(cache.match(chain, most, last)).toBe(cache.match(chain, most));
          }
          const chain = chainOf(text);
          const isKnown = (length: number): boolean =>
            cache.groups.every((group) =>
              Array.from({ length }, (_, i) => i)
                .slice(group.firstAttended(length * pageTokens))
                .every((i) => group.find(chain, i) !== undefined),
            );
          const lengths = Array.from({ length: text.length + 1 }, (_, length) => length).filter(isKnown);
          expect(cache.match(chain, text.length)).toBe(Math.max(...lengths));
          partly += lengths.length < Math.max(...lengths) + 1 ? 1 : 0;
          const runner = new Runner(cache, text);
          while (runner.grow(chunk)) cache.check();
          running.push(runner);
          const [gone] = running.splice(leaves, 1);
          gone?.end();
          cache.check();
        }
        for (const runner of running) runner.end();
        cache.check();
        expect([cache.usedPages, cache.availablePages]).toEqual([0, cache.pages.total]);
      },
    ),
  );
  expect(partly).toBeGreaterThan(0);
});

describe('a model with and without windows', () => {
  const groups = [windowed(3, 40), whole(1)];

  test('keeps every block of one group and the window of the other', () => {
    const cache = new BlockCache({ pages: 400, groups, eviction: 'lru', blockTokens: pageTokens });
    const runner = new Runner(cache, 'abcdefghij');
    runner.grow(10);
    // After 320 tokens the next row attends to keys 281..319: blocks 8 and 9.
    expect(runner.table.groups.map(({ first, blocks }) => [first, blocks.length])).toEqual([
      [8, 2],
      [0, 10],
    ]);
    expect([cache.usedPages, cache.cachedPages]).toEqual([2 * 3 + 10, 8 * 3]);
    cache.check();
  });

  test('evicts blocks behind windows first, and then reuses only prefixes with a complete window', () => {
    const cache = new BlockCache({ pages: 40, groups, eviction: 'lru', blockTokens: pageTokens });
    const first = new Runner(cache, 'abcdefghij');
    first.grow(10);
    first.end();
    expect(cache.match(chainOf('abcdxx'), 6)).toBe(4);
    const second = new Runner(cache, 'rstuvw');
    second.grow(6);
    expect(cache.evicted).toBe(8);
    // The window blocks at 'j' are cached; those at 'd' are not.
    expect(cache.match(chainOf('abcdefghijk'), 11)).toBe(10);
    expect(cache.match(chainOf('abcdxx'), 6)).toBe(0);
    cache.check();
  });

  test('drops a window block together with the block of the same digest', () => {
    const cache = new BlockCache({
      pages: 41,
      groups: [whole(3), windowed(1, 40)],
      eviction: 'lru',
      blockTokens: pageTokens,
    });
    const runner = new Runner(cache, 'ab');
    runner.grow(2);
    runner.end();
    const other = new Runner(cache, 'rstuvwxyz');
    other.grow(9);
    cache.check();
    // The three pages of one block would suffice; the first block of the prefix remains, in both groups.
    expect([cache.evicted, cache.pages.free, cache.match(chainOf('ab'), 2)]).toEqual([2, 1, 1]);
  });

  test('drops the blocks of a failed sequence behind its window as well', () => {
    const cache = new BlockCache({ pages: 40, groups: [windowed(2, 40)], eviction: 'lru', blockTokens: pageTokens });
    const failed = new Runner(cache, 'abcdef');
    failed.grow(6);
    expect(cache.match(failed.chain, 6)).toBe(6);
    failed.end();
    cache.invalidate(failed.chain, failed.blocks);
    expect([cache.match(failed.chain, 6), cache.pages.free]).toEqual([0, 40]);
    cache.check();
  });
});
