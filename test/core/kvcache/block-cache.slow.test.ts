// Blocks, prefixes and eviction: against brute-force oracles, with every invariant checked after every operation.
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { BlockCache } from '../../../src/core/kvcache/block-cache.ts';
import { HashChain, rootDigest } from '../../../src/core/kvcache/block-hash.ts';
import { BlockTable } from '../../../src/core/kvcache/block-table.ts';
import { KvEventLog } from '../../../src/core/kvcache/events/kv-event-log.ts';
import { PrefixIndex } from '../../../src/core/kvcache/events/prefix-index.ts';
import { type EvictionKind, evictionKinds } from '../../../src/core/kvcache/eviction.ts';
import { blocksFor } from '../../../src/core/kvcache/layer-groups.ts';
import { BlockPool } from '../../../src/core/kvcache/pools/block-pool.ts';
import { PagePool } from '../../../src/core/kvcache/pools/page-pool.ts';
import { pageTokens } from '../../../src/util/step.ts';

const root = { modelFingerprint: 'm', weightForm: 'q8', inputForm: 'bf16', kvType: 'bf16', rope: '10000' };
const noKey = new Uint32Array(4);

function chainOf(blocks: readonly number[], digest = rootDigest(root, '', noKey)): HashChain {
  const tokens = Int32Array.from({ length: blocks.length * pageTokens }, (_, i) => {
    return (blocks[Math.floor(i / pageTokens)] as number) * 100 + (i % pageTokens);
  });
  const chain = new HashChain(digest);
  chain.extend(tokens, tokens.length);
  return chain;
}

function digestsOf(chain: HashChain): string[] {
  return Array.from({ length: chain.blocks }, (_, i) => chain.words.subarray(i * 4, i * 4 + 4).join());
}

describe('block identity', () => {
  test('depends on all tokens before and on every field of the root', () => {
    const seen = new Set(digestsOf(chainOf([1, 2, 3])));
    expect(digestsOf(chainOf([1, 2, 4])).filter((digest) => seen.has(digest))).toHaveLength(2);
    expect(digestsOf(chainOf([9, 2, 3])).filter((digest) => seen.has(digest))).toHaveLength(0);
    const roots = [
      ...Object.keys(root).map((field) => rootDigest({ ...root, [field]: 'other' }, '', noKey)),
      rootDigest(root, 'tenant', noKey),
      rootDigest(root, '', Uint32Array.of(1, 0, 0, 0)),
      rootDigest({ ...root, weightForm: 'q8bf', inputForm: '16' }, '', noKey),
    ];
    for (const digest of roots) for (const id of digestsOf(chainOf([1, 2, 3], digest))) seen.add(id);
    expect(seen.size).toBe(3 * (1 + roots.length));
  });

  test('is the same for tokens added at once or one by one, on every machine', () => {
    const tokens = Int32Array.from({ length: 200 }, (_, i) => i * i);
    const atOnce = new HashChain(rootDigest(root, 'salt', noKey));
    atOnce.extend(tokens, tokens.length);
    const growing = new HashChain(rootDigest(root, 'salt', noKey), 1);
    for (let length = 0; length <= tokens.length; length++) growing.extend(tokens, length);
    expect(digestsOf(growing)).toEqual(digestsOf(atOnce));
    expect(atOnce.blocks).toBe(6);
    // Another value makes every cache on disk useless: it may change only with the arithmetic of blocks.
    expect(digestsOf(atOnce).at(-1)).toMatchInlineSnapshot(`"3241353960,2047396092,768646538,29317478"`);
  });
});

describe('pools', () => {
  test('pages freed by a block of one layer group serve another', () => {
    const pages = new PagePool(12);
    const global = new BlockPool(pages, 4);
    const local = new BlockPool(pages, 6);
    const blocks = [global.allocate(), global.allocate(), global.allocate()];
    expect(blocks.every((block) => block !== undefined)).toBe(true);
    expect(local.allocate()).toBeUndefined();
    expect(global.release(blocks[0] as number, false)).toBe(true);
    expect(local.allocate()).toBeUndefined();
    global.release(blocks[2] as number, false);
    expect(local.allocate()).toBe(0);
    expect(pages.free).toBe(2);
    for (const pool of [pages, global, local]) pool.check();
  });

  test('misuse is refused with the state of the block', () => {
    const pool = new BlockPool(new PagePool(4), 2);
    expect(() => pool.retain(0)).toThrow('Cannot retain a block: it is free: block 0 with 0 references');
    const block = pool.allocate() as number;
    pool.release(block, true);
    expect(() => pool.release(block, true)).toThrow('it is cached');
    pool.drop(block);
    expect(() => pool.drop(block)).toThrow('Cannot drop a block: it is free');
    expect(() => new PagePool(2).release(Int32Array.of(1), 0, 1)).toThrow('Cannot free a page');
  });
});

interface Entry {
  readonly path: string;
  readonly depth: number;
  refs: number;
  uses: number;
  lastUse: number;
  since: number;
}

/** The cache as a plain list: the blocks that it should hold, and the ones that it should evict. */
class Oracle {
  readonly entries = new Map<string, Entry>();
  readonly evicted: string[] = [];
  #clock = 0;
  readonly #capacity: number;
  readonly #kind: EvictionKind;

  constructor(capacity: number, kind: EvictionKind) {
    this.#capacity = capacity;
    this.#kind = kind;
  }

  /** Starts a sequence: it reuses cached blocks and computes the rest; false when it does not fit. */
  run(paths: readonly string[]): boolean {
    this.#clock++;
    let hits = 0;
    for (const path of paths) {
      const entry = this.entries.get(path);
      if (entry === undefined) break;
      Object.assign(entry, { refs: entry.refs + 1, uses: entry.uses + 1, lastUse: this.#clock });
      hits++;
    }
    let fresh = 0;
    for (; fresh < paths.length - hits; fresh++) {
      if (this.entries.size + fresh === this.#capacity && !this.#evict()) break;
    }
    const fits = fresh === paths.length - hits;
    this.#clock++;
    for (const path of fits ? paths.slice(hits) : []) {
      this.entries.set(path, { path, depth: path.length, refs: 1, uses: 1, lastUse: this.#clock, since: this.#clock });
    }
    if (!fits) this.end(paths.slice(0, hits));
    return fits;
  }

  end(paths: readonly string[]): void {
    this.#clock++;
    for (const path of paths) {
      const entry = this.entries.get(path) as Entry;
      entry.refs--;
      if (entry.refs === 0) entry.lastUse = this.#clock;
    }
  }

  #evict(): boolean {
    const keys: Readonly<Record<EvictionKind, (e: Entry) => number[]>> = {
      lru: (e) => [e.lastUse, -e.depth],
      lfu: (e) => [e.uses, e.lastUse, -e.depth],
      'length-aware': (e) => [e.uses, -e.depth, e.lastUse],
      fifo: (e) => [e.since, -e.depth],
    };
    const key = keys[this.#kind];
    const leaves = [...this.entries.values()].filter((entry) => {
      return (
        entry.refs === 0 && ![...this.entries.keys()].some((path) => path !== entry.path && path.startsWith(entry.path))
      );
    });
    const before = (a: Entry, b: Entry): number =>
      key(a)
        .map((k, i) => k - (key(b)[i] as number))
        .find((d) => d !== 0) ?? 0;
    const victim = leaves.sort(before)[0];
    if (victim === undefined) return false;
    this.entries.delete(victim.path);
    this.evicted.push(victim.path);
    return true;
  }
}

/** One letter a block: a path is the blocks from the start. */
function pathsOf(text: string): string[] {
  return Array.from({ length: text.length }, (_, i) => text.slice(0, i + 1));
}

describe.each(evictionKinds)('eviction by %s', (kind) => {
  test('holds the same blocks as a brute-force oracle', () => {
    const text = fc.string({ unit: fc.constantFrom('a', 'b', 'c'), minLength: 1, maxLength: 6 });
    const operation = fc.oneof({ weight: 3, arbitrary: text }, { weight: 2, arbitrary: fc.nat(5) });
    fc.assert(
      fc.property(fc.array(operation, { maxLength: 60 }), fc.integer({ min: 6, max: 12 }), (operations, capacity) => {
        const log = new KvEventLog(0);
        const index = new PrefixIndex({ instances: 1, blocks: capacity, remembered: 0 });
        const cache = new BlockCache({
          pages: capacity * 3 + 2,
          groups: [{ layers: 3, window: undefined }],
          eviction: kind,
          blockTokens: pageTokens,
        });
        cache.setListener(log);
        const oracle = new Oracle(capacity, kind);
        const running: { table: BlockTable; text: string }[] = [];
        for (const what of operations) {
          if (typeof what === 'number') {
            const [ended] = running.splice(what, 1);
            if (ended !== undefined) {
              cache.release(ended.table);
              oracle.end(pathsOf(ended.text));
            }
          } else if (start(cache, what, running)) {
            expect(oracle.run(pathsOf(what))).toBe(true);
          } else {
            expect(oracle.run(pathsOf(what))).toBe(false);
          }
          cache.check();
          // The index built from its KV events equals the cache.
          if (log.changes > 0) expect(index.apply(0, log.take())).toBe('applied');
          expect(index.blocksOf(0)).toBe(oracle.entries.size);
          for (const path of oracle.entries.keys())
            expect(index.replicaState(chainOf(blocksOf(path)), path.length - 1)).toBe('held');
          expect(cache.indexedDigests().length).toBe(4 * oracle.entries.size);
          expect(cache.evicted).toBe(oracle.evicted.length);
          expect(cache.usedPages + cache.cachedPages).toBe(3 * oracle.entries.size);
          for (const path of oracle.entries.keys()) {
            expect(cache.match(chainOf(blocksOf(path)), path.length)).toBe(path.length);
          }
        }
        for (const { table } of running) cache.release(table);
        cache.check();
        expect(cache.availablePages).toBe(cache.pages.total);
      }),
    );
  });
});

function blocksOf(text: string): number[] {
  return Array.from(text, (letter) => letter.charCodeAt(0));
}

function start(cache: BlockCache, text: string, running: { table: BlockTable; text: string }[]): boolean {
  const chain = chainOf(blocksOf(text));
  const table = new BlockTable(1);
  const hits = cache.share(chain, text.length, table);
  while (table.length < text.length) {
    if (!cache.allocate(table)) {
      cache.release(table);
      return false;
    }
  }
  cache.cacheBlocks(chain, hits, text.length, table);
  running.push({ table, text });
  return true;
}

describe('sharing', () => {
  test('two sequences that compute the same blocks end with one copy', () => {
    const cache = new BlockCache({
      pages: 20,
      groups: [{ layers: 2, window: undefined }],
      eviction: 'lru',
      blockTokens: pageTokens,
    });
    const chain = chainOf([1, 2, 3]);
    const tables = [new BlockTable(1), new BlockTable(1)] as const;
    for (const table of tables) for (let i = 0; i < 3; i++) cache.allocate(table);
    expect(cache.usedPages).toBe(12);
    for (const table of tables) cache.cacheBlocks(chain, 0, 3, table);
    expect(cache.usedPages).toBe(6);
    expect(tables[1].groups).toEqual(tables[0].groups);
    cache.check();
    cache.release(tables[0]);
    expect([cache.match(chain, 3), cache.usedPages]).toEqual([3, 6]);
    cache.release(tables[1]);
    expect([cache.match(chain, 3), cache.usedPages]).toEqual([3, 0]);
    cache.check();
  });

  test('blocks of a failed sequence are dropped unless another sequence uses them', () => {
    const cache = new BlockCache({
      pages: 20,
      groups: [{ layers: 2, window: undefined }],
      eviction: 'lru',
      blockTokens: pageTokens,
    });
    const failed = new BlockTable(1);
    const chain = chainOf([1, 2, 3]);
    for (let i = 0; i < 3; i++) cache.allocate(failed);
    cache.cacheBlocks(chain, 0, 3, failed);
    const other = new BlockTable(1);
    cache.share(chain, 1, other);
    cache.release(failed);
    cache.invalidate(chain, 3);
    expect([cache.match(chain, 3), cache.usedPages]).toEqual([1, 2]);
    cache.check();
  });

  test('blocks for tokens round up', () => {
    expect([0, 1, 32, 33].map((tokens) => blocksFor(tokens, 32))).toEqual([0, 1, 1, 2]);
    const groups = [{ layers: 2, window: undefined }];
    const cache = new BlockCache({ pages: 20, groups, eviction: 'lru', blockTokens: 16 });
    expect(cache.blocksMissing(new BlockTable(1), 65)).toBe(5);
  });
});
