// The caches of an instance: one, or equal parts of its pages, of which each sequence has its blocks in one.
import { digestWords } from '../../util/blake2s.ts';
import { DigestTable } from '../../util/digest-table.ts';
import type { BlockId } from '../protocol/ids.ts';
import { type BlockAges, pageAgeBoundsS } from '../protocol/ports.ts';
import { sumOfAges } from './block-ages.ts';
import { BlockCache, type BlockCacheConfig } from './block-cache.ts';

/** A sequence, and the cache with its blocks. */
export interface Placed {
  /** Index of the cache, which is that of its attention worker. */
  readonly worker: number;
}

/** Blocks of one cache are no hits for sequences of another. Page ids and rows of the page tables are consecutive. */
export class KvCaches {
  readonly all: readonly BlockCache[];
  /** (layer groups): page tables of all caches; undefined: the one cache has its own. */
  readonly pageTables: readonly Int32Array[] | undefined;

  /** @param config of all pages, which the parts share equally; each has its receive pages @param parts undefined: one cache */
  constructor(config: BlockCacheConfig, parts: number | undefined) {
    if (parts === undefined) {
      this.all = [new BlockCache(config)];
      return;
    }
    const pages = Math.floor(config.pages / parts);
    const entries = config.groups.map(({ layers }) => Math.floor(pages / layers) * layers);
    const tables = entries.map((count) => new Int32Array(count * parts));
    this.pageTables = tables;
    this.all = Array.from(
      { length: parts },
      (_, part) =>
        new BlockCache({
          ...config,
          pages,
          firstPage: part * (pages + (config.receivePages ?? 0)),
          pageTables: tables.map((table, g) => table.subarray(part * entries[g], (part + 1) * entries[g])),
        }),
    );
  }

  get first(): BlockCache {
    return this.all[0];
  }

  /** The time of all events until the next change. */
  get nowUs(): number {
    return this.first.ages.nowUs;
  }

  of({ worker }: Placed): BlockCache {
    return this.all[worker];
  }

  /** Pages of all caches. */
  get pages(): { readonly total: number; readonly used: number; readonly cached: number; readonly free: number } {
    const sum = { total: 0, used: 0, cached: 0, free: 0 };
    for (const { pages, usedPages, cachedPages } of this.all) {
      sum.total += pages.total;
      sum.used += usedPages;
      sum.cached += cachedPages;
      sum.free += pages.free;
    }
    return sum;
  }

  /** Blocks of all groups that the pages hold, and the tokens of one. */
  get blocks(): { readonly total: number; readonly tokens: number } {
    const { blockPages, blockTokens } = this.first;
    return { total: Math.floor(this.pages.total / blockPages), tokens: blockTokens };
  }

  get blockAges(): BlockAges {
    return this.all.map(({ ages }) => ages.snapshot).reduce(sumOfAges);
  }

  /** Cached pages that no request uses, by the time since their last use. Visits all blocks. */
  get cachedPagesByAge(): readonly number[] {
    const counts = [...pageAgeBoundsS, Number.POSITIVE_INFINITY].map(() => 0);
    for (const { ages, groups } of this.all) {
      for (const { pool, offset, layers } of groups) {
        for (let block = 0; block < pool.total && pool.cached > 0; block++) {
          if (pool.state(block as BlockId) !== 'cached') continue;
          const seconds = ages.unusedS(offset + block);
          let bucket = 0;
          while (bucket < pageAgeBoundsS.length && seconds > pageAgeBoundsS[bucket]) bucket++;
          counts[bucket] = counts[bucket] + layers;
        }
      }
    }
    return counts;
  }

  /** The time of all changes until the next call. */
  enter(nowUs: number): void {
    for (let i = 0; i < this.all.length; i++) this.all[i].enter(nowUs);
  }

  get usedPages(): number {
    let pages = 0;
    for (let i = 0; i < this.all.length; i++) pages += this.all[i].usedPages;
    return pages;
  }

  /** True if a cache holds the block of the digest at `words[at..at+4]`. */
  holds(words: Uint32Array, at: number): boolean {
    return this.all.some((cache) => cache.holds(words, at));
  }

  /** (blocks, 4 words): digests of the stored blocks of all caches, each once. */
  indexedDigests(): Uint32Array {
    if (this.all.length === 1) return this.first.indexedDigests();
    const seen = new DigestTable();
    const words: number[] = [];
    for (const cache of this.all) {
      const own = cache.indexedDigests();
      for (let at = 0; at < own.length; at += digestWords)
        if (seen.getOrSet(own, at, 0) === undefined) words.push(...own.subarray(at, at + digestWords));
    }
    return Uint32Array.from(words);
  }

  /** Pinned blocks: those of the first cache, since instances with several have none. */
  get pinned(): BlockCache['pinned'] {
    return this.first.pinned;
  }

  get evicted(): number {
    return this.all.reduce((sum, { evicted }) => sum + evicted, 0);
  }
}
