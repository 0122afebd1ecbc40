// Tiers below device memory: slots against a brute-force oracle, and the KV events of all tiers against their contents.
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { BlockCache, LastMatch } from '../../../src/core/kvcache/block-cache.ts';
import { BlockTable } from '../../../src/core/kvcache/block-table.ts';
import { KvEventLog } from '../../../src/core/kvcache/events/kv-event-log.ts';
import { PrefixIndex, PrefixMatches } from '../../../src/core/kvcache/events/prefix-index.ts';
import { type EvictionKind, evictionKinds } from '../../../src/core/kvcache/eviction.ts';
import { BlockTier } from '../../../src/core/kvcache/tiers/block-tier.ts';
import type { BlockChain } from '../../../src/core/protocol/kv-events.ts';
import { scramble } from '../../../src/util/scramble.ts';

const blockTokens = 4;

function wordsOf(name: number): Uint32Array {
  return Uint32Array.of(scramble(name), name, 0, 0);
}

/** A path's blocks, each named by the path so far: 'ab' is block 'a', then block 'ab'. */
function chainOf(path: string): BlockChain {
  const words = new Uint32Array(4 * path.length);
  let name = 0;
  for (let i = 0; i < path.length; i++) {
    name = name * 8 + path.charCodeAt(i) - 96;
    words.set(wordsOf(name), 4 * i);
  }
  return { blocks: path.length, words };
}

interface Entry {
  readonly name: number;
  readonly depth: number;
  readonly since: number;
  uses: number;
  lastUse: number;
  pins: number;
}

const firsts: Readonly<Record<EvictionKind, (a: Entry, b: Entry) => number>> = {
  lru: (a, b) => a.lastUse - b.lastUse || b.depth - a.depth,
  lfu: (a, b) => a.uses - b.uses || a.lastUse - b.lastUse || b.depth - a.depth,
  'length-aware': (a, b) => a.uses - b.uses || b.depth - a.depth || a.lastUse - b.lastUse,
  fifo: (a, b) => a.since - b.since || b.depth - a.depth,
};

const actions = fc.array(
  fc.record({
    what: fc.constantFrom('use', 'use', 'use', 'pin', 'unpin', 'reserve'),
    name: fc.integer({ min: 1, max: 14 }),
  }),
  { maxLength: 80 },
);

describe.each(evictionKinds)('a tier that evicts by %s', (kind) => {
  test('holds the same blocks as a plain list, pinned ones included', () => {
    fc.assert(
      fc.property(actions, fc.integer({ min: 1, max: 8 }), (history, capacity) => {
        const gone: number[] = [];
        const tier = new BlockTier(capacity, kind, (words, at) => gone.push(words[at + 1] as number));
        const entries = new Map<number, Entry>();
        const expected: number[] = [];
        let reserved = 0;
        let clock = 0;
        const evict = (): boolean => {
          const [first] = [...entries.values()].filter(({ pins }) => pins === 0).sort(firsts[kind]);
          if (first === undefined) return false;
          entries.delete(first.name);
          expected.push(first.name);
          return true;
        };
        for (const { what, name } of history) {
          clock++;
          tier.tick();
          const words = wordsOf(name);
          const slot = tier.find(words, 0);
          const entry = entries.get(name);
          expect(slot !== undefined).toBe(entry !== undefined);
          if (what === 'reserve') {
            reserved = Math.min(capacity, name % 4);
            tier.setReserved(reserved);
            while (entries.size > capacity - reserved && evict());
          } else if (what === 'use' && slot !== undefined && entry !== undefined) {
            tier.touch(slot);
            entry.uses++;
            entry.lastUse = clock;
          } else if (what === 'use') {
            const full = entries.size >= capacity - reserved;
            // Every block has its own depth, so that the order is unique.
            tier.put(words, 0, name);
            if (!full || evict())
              entries.set(name, { name, depth: name, since: clock, uses: 1, lastUse: clock, pins: 0 });
          } else if (what === 'pin' && slot !== undefined && entry !== undefined) {
            tier.pin(slot);
            entry.pins++;
          } else if (what === 'unpin' && slot !== undefined && entry !== undefined && entry.pins > 0) {
            tier.unpin(slot);
            entry.pins--;
            if (entry.pins === 0) entry.lastUse = clock;
            // Blocks that were pinned when slots were reserved are evicted now.
            while (entries.size > capacity - reserved && evict());
          }
          tier.check();
          expect(gone).toEqual(expected);
          expect(tier.held).toBe(entries.size);
        }
      }),
    );
  });
});

test('a slot with contents in transit is not found and not evicted, and can be dropped', () => {
  const tier = new BlockTier(2, 'lru', () => undefined);
  const a = tier.allocate(wordsOf(1), 0, 1) as number;
  const b = tier.allocate(wordsOf(2), 0, 2) as number;
  expect(tier.find(wordsOf(1), 0)).toBeUndefined();
  expect(tier.contains(wordsOf(1), 0)).toBe(true);
  expect(tier.allocate(wordsOf(3), 0, 1)).toBeUndefined();
  expect(() => tier.pin(a)).toThrow('Cannot pin a slot: it holds nothing');
  tier.arrived(a);
  expect(() => tier.arrived(a)).toThrow('Cannot fill a slot: nothing is expected');
  tier.drop(b);
  tier.put(wordsOf(3), 0, 1);
  tier.check();
  expect([tier.find(wordsOf(1), 0), tier.find(wordsOf(2), 0), tier.held, tier.arriving]).toEqual([a, undefined, 2, 0]);
});

interface World {
  readonly cache: BlockCache;
  readonly log: KvEventLog;
  readonly index: PrefixIndex;
}

function worldOf(device: number, hostBlocks: number, ssdBlocks: number, eviction: EvictionKind): World {
  const cache = new BlockCache({
    pages: device,
    groups: [{ layers: 1, window: undefined }],
    eviction,
    blockTokens,
    tiers: { hostBlocks, ssdBlocks },
  });
  const log = new KvEventLog(0);
  cache.setListener(log);
  return { cache, log, index: new PrefixIndex({ instances: 1, blocks: 64, remembered: 0 }) };
}

/** Runs a sequence: it reuses cached blocks of all tiers, computes the rest, and ends. Returns the hits by tier. */
function serve({ cache }: World, path: string): readonly [device: number, host: number] | undefined {
  const chain = chainOf(path);
  const table = new BlockTable(1, path.length + 1);
  const device = cache.match(chain, path.length);
  const loaded = cache.loadPrefix(chain, path.length, table, { known: new LastMatch(), resumed: false });
  while (table.length < path.length && cache.allocate(table));
  const fits = table.length === path.length;
  if (fits) cache.cacheBlocks(chain, loaded, path.length, table);
  cache.lower?.readStarted();
  cache.lower?.readEnded();
  cache.release(table);
  return fits ? [device, loaded - device] : undefined;
}

/** The names of blocks that a tier holds. */
function heldBy({ cache }: World, names: readonly number[]): readonly number[] {
  const { lower } = cache;
  return names.filter((name) => {
    const words = wordsOf(name);
    return (
      cache.match({ blocks: 1, words }, 1) === 1 ||
      lower?.host.contains(words, 0) === true ||
      lower?.ssd?.contains(words, 0) === true
    );
  });
}

/** True if only SSD holds the block. */
function isSsdOnly({ cache }: World, name: number): boolean {
  const words = wordsOf(name);
  const inMemory = cache.match({ blocks: 1, words }, 1) === 1 || cache.lower?.host.find(words, 0) !== undefined;
  return !inMemory && cache.lower?.ssd?.contains(words, 0) === true;
}

function onSsd(index: PrefixIndex, name: number): boolean {
  const matches = new PrefixMatches(1);
  index.match({ blocks: 1, words: wordsOf(name) }, 1, matches);
  return matches.onSsd[0] === 1;
}

const paths = fc.string({ unit: fc.constantFrom('a', 'b', 'c'), minLength: 1, maxLength: 4 });
/** All blocks that paths of up to four letters have. */
const allNames = ['a', 'b', 'c'].flatMap(function longer(path: string): number[] {
  const words = chainOf(path).words;
  const own = words[4 * (path.length - 1) + 1] as number;
  return path.length === 4 ? [own] : [own, ...['a', 'b', 'c'].flatMap((next) => longer(path + next))];
});

describe.each(evictionKinds)('tiers that evict by %s', (kind) => {
  test('report a block when the first tier stores it and when the last one loses it, whatever moves between them', () => {
    const sizes = fc.tuple(fc.integer({ min: 4, max: 7 }), fc.integer({ min: 1, max: 9 }), fc.nat(12));
    let ssdOnly = 0;
    fc.assert(
      fc.property(fc.array(fc.tuple(paths, fc.nat(3)), { maxLength: 40 }), sizes, (history, [device, host, ssd]) => {
        const world = worldOf(device, host, ssd, kind);
        const { cache, log, index } = world;
        for (const [path, writesEnd] of history) {
          serve(world, path);
          cache.lower?.takeSsdWrites();
          if (writesEnd > 0) cache.lower?.written(Math.min(writesEnd, cache.lower.ssd?.arriving ?? 0));
          cache.check();
          if (log.changes > 0) expect(index.apply(0, log.take())).toBe('applied');
          const held = heldBy(world, allNames);
          expect(index.blocksOf(0)).toBe(held.length);
          for (const name of held) expect(index.replicaState({ blocks: 1, words: wordsOf(name) }, 0)).toBe('held');
          // A snapshot gives the same index.
          const snapshot = new PrefixIndex({ instances: 1, blocks: 64, remembered: 0 });
          snapshot.restore(0, { ...log.snapshot(cache.indexedDigests(), cache.lower?.ssdOnlyBlocks), number: 1 });
          expect(snapshot.blocksOf(0)).toBe(held.length);
          for (const name of held) {
            ssdOnly += Number(isSsdOnly(world, name));
            for (const each of [index, snapshot]) expect(onSsd(each, name)).toBe(isSsdOnly(world, name));
          }
        }
      }),
    );
    expect(ssdOnly).toBeGreaterThan(0);
  });
});

describe('host memory', () => {
  test('holds blocks evicted from the device, and loads them back behind the prefix on the device', () => {
    const world = worldOf(4, 12, 0, 'lru');
    expect(serve(world, 'aaaa')).toEqual([0, 0]);
    expect(serve(world, 'bbbb')).toEqual([0, 0]);
    expect(serve(world, 'aaab')).toEqual([0, 3]);
    expect(serve(world, 'aaab')).toEqual([4, 0]);
    expect(world.cache.lower?.reads).toEqual({ host: 3, ssd: 0, instance: 0 });
  });

  test('loads only as many blocks as fit on the device', () => {
    const world = worldOf(4, 12, 0, 'lru');
    serve(world, 'aaaa');
    serve(world, 'bbbb');
    const table = new BlockTable(1, 4);
    // A running sequence uses two of four blocks.
    const other = new BlockTable(1, 4);
    for (let i = 0; i < 2; i++) expect(world.cache.allocate(other)).toBe(true);
    expect(world.cache.loadPrefix(chainOf('aaaa'), 4, table, { known: new LastMatch(), resumed: false })).toBe(2);
    world.cache.lower?.readStarted();
    world.cache.lower?.readEnded();
    world.cache.release(table);
    world.cache.release(other);
    world.cache.check();
  });

  test('evicts blocks when slots are reserved for another use', () => {
    const world = worldOf(4, 8, 0, 'lru');
    serve(world, 'aaaa');
    serve(world, 'bbbb');
    world.cache.lower?.host.setReserved(6);
    world.cache.check();
    // The start of the prefix used last remains.
    expect(world.cache.lower?.inHost(chainOf('bbbb'), 0, 4)).toBe(2);
    expect(world.cache.lower?.inHost(chainOf('aaaa'), 0, 4)).toBe(0);
  });

  test('drops blocks with suspect contents', () => {
    const world = worldOf(4, 8, 4, 'lru');
    serve(world, 'aaaa');
    world.cache.invalidate(chainOf('aaaa'), 4);
    world.cache.check();
    expect(heldBy(world, allNames)).toEqual([]);
    expect(serve(world, 'aaaa')).toEqual([0, 0]);
  });
});

describe('SSD', () => {
  test('holds blocks evicted from host memory once they are written, also after they are loaded again', () => {
    const world = worldOf(4, 4, 8, 'lru');
    const { lower } = world.cache;
    serve(world, 'aaaa');
    serve(world, 'bbbb');
    const onSsd = () => lower?.inHostOrOnSsd(chainOf('aaaa'), 0, 4);
    expect(onSsd()).toBe(0);
    expect(lower?.takeSsdWrites().count).toBe(4);
    expect(lower?.takeSsdWrites().count).toBe(0);
    lower?.written(3);
    // The deepest was written first: the first block is not written yet.
    expect(onSsd()).toBe(0);
    lower?.written(1);
    expect(onSsd()).toBe(4);
    const read = lower?.readSsd(chainOf('aaaa'), 0, 4, { slot: () => undefined, inPool: false }).blocks ?? [];
    expect(read).toHaveLength(4);
    serve(world, 'cccc');
    expect(lower?.takeSsdWrites().count).toBe(4);
    lower?.written(4);
    // Full: the next block evicts one without readers.
    serve(world, 'dddd');
    lower?.takeSsdWrites();
    world.cache.check();
    expect(onSsd()).toBe(4);
    lower?.ssdReadEnded(read);
    world.cache.check();
  });
});
