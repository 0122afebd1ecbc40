// Tiers with block contents: blocks from the cache hold the contents of their digests, in every order of moves, writes
// and reads.
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { BlockCache, LastMatch } from '../../../src/core/kvcache/block-cache.ts';
import { BlockTable } from '../../../src/core/kvcache/block-table.ts';
import { evictionKinds } from '../../../src/core/kvcache/eviction.ts';
import { type PrefixReceiveBuffer, receivePrefix } from '../../../src/core/kvcache/prefix-transfer.ts';
import type { BlockChain, SsdBlock } from '../../../src/core/protocol/kv-events.ts';
import { scramble } from '../../../src/util/scramble.ts';
import type { LayerGroup } from '../../../src/util/step.ts';

const layers = 2;
const blockTokens = 4;
const [pagesOfPool, hostBlocks, ssdBlocks] = [12, 6, 30];
const oneGroup: readonly LayerGroup[] = [{ layers, window: undefined }];
const fullAndSparse: readonly LayerGroup[] = [
  { layers: 1, window: undefined },
  { layers: 1, window: undefined, sparse: true },
];

/** A path's blocks, each named by the path so far. */
function chainOf(path: string): BlockChain {
  const words = new Uint32Array(4 * path.length);
  let name = 0;
  for (let i = 0; i < path.length; i++) {
    name = name * 4 + path.charCodeAt(i) - 96;
    words.set([scramble(name), name, 0, 0], 4 * i);
  }
  return { blocks: path.length, words };
}

/** The contents of a page of a block. */
const contentOf = (name: number, layer: number): string => `${name}/${layer}`;

interface Read {
  readonly path: string;
  readonly chain: BlockChain;
  readonly buffer: PrefixReceiveBuffer;
  readonly from: number;
  readonly to: number;
  readonly blocks: readonly SsdBlock[];
}

/** Pages and slots with contents, and a cache that moves them. */
class World {
  readonly cache: BlockCache;
  readonly #pages: (string | undefined)[] = [];
  readonly #ssd = new Map<number, readonly [string, string]>();
  readonly #writes: SsdBlock[] = [];
  readonly #reads: Read[] = [];
  /** Copies that run while the step computes. */
  readonly #stores: (() => void)[] = [];
  reused = 0;

  constructor(eviction: (typeof evictionKinds)[number], groups: readonly LayerGroup[]) {
    const copy = (from: Int32Array, to: Int32Array) => {
      for (let i = 0; i < from.length; i++) this.#pages[to[i] ?? 0] = this.#pages[from[i] ?? 0];
    };
    const store = (from: Int32Array, to: Int32Array) => void this.#stores.push(() => copy(from, to));
    const mover = { copy, load: copy, store, erase: (slot: number) => void this.#ssd.delete(slot) };
    const tiers = { hostBlocks, ssdBlocks, mover };
    this.cache = new BlockCache({ pages: pagesOfPool, groups, blockTokens, eviction, tiers });
  }

  /**
   * Runs a sequence: it reuses cached blocks, computes the rest, and ends. @param aborts the step is aborted at
   * first @param dropped sparse layers lose its blocks
   */
  serve(path: string, { aborts = false, dropped = false } = {}): void {
    const { cache } = this;
    const chain = chainOf(path);
    const table = new BlockTable(cache.groups.length);
    const start = cache.loadPrefix(chain, chain.blocks, table, { known: new LastMatch(), resumed: false });
    cache.flushLoads();
    for (let i = 0; i < start; i++) this.#expectContents(chain, i, table);
    this.reused += start;
    while (table.length < chain.blocks && cache.allocate(table));
    for (const aborted of aborts ? [true, false] : [false]) {
      const idsOf = (index: number) => cache.reported.heldIds(table, index);
      cache.lower?.readStarted();
      cache.lower?.stepComputes([{ chain, from: start, to: table.length, idsOf }]);
      for (let i = start; i < table.length; i++) {
        const name = chain.words[4 * i + 1] ?? 0;
        this.#pagesOf(table, i).forEach((page, layer) => {
          this.#pages[page] = aborted ? undefined : contentOf(name, layer);
        });
      }
      for (const store of this.#stores.splice(0)) store();
      cache.lower?.readEnded();
      if (!aborted) cache.cacheBlocks(chain, start, table.length, table);
      cache.lower?.computedRecorded();
    }
    if (dropped) cache.useSlots(table, 0, { ...chain, blocks: table.length });
    cache.release(table);
    this.#begin();
  }

  #pagesOf(table: BlockTable, i: number): number[] {
    return this.cache.groups.flatMap((group, g) => {
      const block = table.groups[g]?.blocks.at(i) ?? 0;
      return [...group.pool.pageTable.slice(block * group.layers, (block + 1) * group.layers)];
    });
  }

  #expectContents(chain: BlockChain, i: number, table: BlockTable): void {
    const name = chain.words[4 * i + 1] ?? 0;
    expect(this.#pagesOf(table, i).map((page) => this.#pages[page])).toEqual([contentOf(name, 0), contentOf(name, 1)]);
  }

  #begin(): void {
    this.#writes.push(...(this.cache.lower?.takeSsdWrites().blocks ?? []));
  }

  /** Checks that host memory has the contents of its blocks. */
  check(): void {
    const { cache } = this;
    const host = cache.lower?.host;
    cache.check();
    host?.forEach((words, at) => {
      const slot = host.find(words, at);
      if (slot === undefined) return;
      const name = words[at + 1] ?? 0;
      const page = cache.pages.ids + slot * layers;
      expect(this.#pages.slice(page, page + layers)).toEqual([contentOf(name, 0), contentOf(name, 1)]);
    });
  }

  /** The oldest write ends: SSD has the contents of its pages at that time. */
  written(failed: boolean): void {
    const block = this.#writes.shift();
    if (block === undefined) return;
    if (!failed) this.#ssd.set(block.slot, [this.#pages[block.page] ?? '', this.#pages[block.page + 1] ?? '']);
    this.cache.lower?.written(1, failed ? [0] : []);
    this.#begin();
  }

  /** Begins to read the blocks of a path that are on SSD. */
  read(path: string): void {
    const { lower } = this.cache;
    const chain = chainOf(path);
    const from = lower?.inHost(chain, 0, chain.blocks) ?? 0;
    const to = lower?.inHostOrOnSsd(chain, from, chain.blocks) ?? 0;
    const buffer = to > from ? receivePrefix(this.cache, chain, from, to, { canSpare: () => true }) : undefined;
    if (buffer === undefined || lower === undefined) return;
    this.#reads.push({ path, chain, buffer, from, ...lower.readSsd(chain, from, to, buffer) });
  }

  /** The oldest read ends; the first `good` blocks are intact, the others are corrupt. */
  arrived(good: number): void {
    const read = this.#reads.shift();
    if (read === undefined) return;
    const { path, blocks, buffer, from, to } = read;
    const bad = blocks.find(({ slot }, i) => i >= good || !this.#ssd.has(slot));
    for (const { slot, page } of blocks.slice(0, bad === undefined ? blocks.length : blocks.indexOf(bad)))
      [this.#pages[page], this.#pages[page + 1]] = this.#ssd.get(slot) ?? [];
    if (bad !== undefined) this.#ssd.delete(bad.slot);
    this.cache.lower?.ssdReadEnded(blocks, bad?.slot);
    buffer.fill(from, bad === undefined ? to : bad.depth - 1, 'ssd');
    buffer.close();
    // The waiting sequence starts.
    this.serve(path);
  }

  /** The blocks of the oldest read are not required any more. */
  stopped(): void {
    const read = this.#reads.shift();
    if (read === undefined) return;
    this.cache.lower?.ssdReadEnded(read.blocks);
    read.buffer.close();
  }
}

const steps = fc.array(
  fc.record({
    what: fc.constantFrom('serve', 'serve', 'serve', 'written', 'written', 'read', 'arrived', 'stopped', 'invalidate'),
    path: fc.stringMatching(/^[ab]{2,5}$/),
    luck: fc.integer({ min: 0, max: 9 }),
  }),
  { minLength: 60, maxLength: 160 },
);

const cases = [...evictionKinds.map((eviction) => [eviction, oneGroup] as const), ['lru', fullAndSparse] as const];

test.each(cases)(
  'blocks keep their contents through all tiers, evicting by %s, of layer groups %j',
  (eviction, groups) => {
    const reused = { all: 0, ssd: 0 };
    const numRuns = groups === oneGroup ? 100 : 20;
    fc.assert(
      fc.property(steps, (history) => {
        const world = new World(eviction, groups);
        for (const { what, path, luck } of history) {
          if (what === 'serve') world.serve(path, { aborts: luck > 7, dropped: luck === 0 });
          else if (what === 'written') world.written(luck === 0);
          else if (what === 'read') world.read(path);
          else if (what === 'arrived') world.arrived(luck > 2 ? 9 : luck);
          else if (what === 'stopped') world.stopped();
          else if (luck < 3) world.cache.invalidate(chainOf(path), path.length);
          world.check();
        }
        reused.all += world.reused;
        reused.ssd += world.cache.lower?.reads.ssd ?? 0;
      }),
      { numRuns },
    );
    expect(reused.all).toBeGreaterThan(5 * numRuns);
    expect(reused.ssd).toBeGreaterThan(numRuns / 10);
  },
);
