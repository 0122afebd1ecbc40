// What a step moves between device and host memory.

import type { BlockCache } from '../kvcache/block-cache.ts';
import type { Batcher } from './batching/batcher.ts';
import type { Sequence } from './batching/sequence.ts';

export class HostTraffic {
  readonly #batcher: Batcher;
  readonly #cache: BlockCache;
  /** Tokens of prefixes whose keys and values the step planned last loads. */
  loadTokens = 0;
  /** Tokens that it computes whose blocks are to be known, and so are copied to host memory. */
  storeTokens = 0;

  constructor(batcher: Batcher, cache: BlockCache) {
    this.#batcher = batcher;
    this.#cache = cache;
  }

  /** Prompts that land fill `tokens` tokens' worth of host memory, of `ofTokens` that all keys and values there may: cached ones give way. */
  lands(tokens: number, ofTokens: number): void {
    const { lower, blockTokens } = this.#cache;
    if (lower === undefined) return;
    const left = Math.floor((ofTokens - tokens) / blockTokens);
    lower.host.reserve(Math.max(0, lower.host.capacity - left));
  }

  /** What has been taken from host memory is on its way. */
  flush(): void {
    this.#cache.flushLoads();
  }

  /** A step begins: it reads what is on its way. */
  begins(): void {
    this.flush();
    this.#cache.lower?.readStarted();
  }

  planned(sequences: readonly Sequence[]): this {
    const { lower, blockTokens } = this.#cache;
    if (lower === undefined) return this;
    this.loadTokens = lower.takeReads() * blockTokens;
    this.storeTokens = 0;
    const { rows, decodeRows } = this.#batcher.shape;
    if (rows === decodeRows) return this;
    for (const { computed, planned, chain } of sequences) {
      const named = chain.blocks * blockTokens;
      if (computed < named) this.storeTokens += Math.min(computed + planned, named) - computed;
    }
    return this;
  }
}

export const nothingMoved = { loadTokens: 0, storeTokens: 0 };
