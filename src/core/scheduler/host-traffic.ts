// Traffic between the pool, host memory and SSD: the tokens that each step loads and stores, and the writes to SSD.

import type { BlockCache } from '../kvcache/block-cache.ts';
import type { InstanceEvent } from '../protocol/events.ts';
import type { Batcher } from './batching/batcher.ts';
import type { Sequence } from './batching/sequence.ts';
import type { EffectSink } from './step-in-flight.ts';

export class HostTraffic {
  readonly #scheduler: Batcher;
  readonly #cache: BlockCache;
  /** Tokens of cached prefixes that the last planned step loads. */
  loadTokens = 0;
  /** Tokens that it computes and that are copied to host memory, because their blocks have digests. */
  storeTokens = 0;

  constructor(scheduler: Batcher, cache: BlockCache) {
    this.#scheduler = scheduler;
    this.#cache = cache;
  }

  /** Starts the queued loads of blocks from host memory. */
  flush(): void {
    this.#cache.flushLoads();
  }

  /** A step is launched: it reads blocks whose loads have been started. */
  stepLaunched(): void {
    this.flush();
    this.#cache.lower?.readStarted();
  }

  stepEnded(): void {
    this.#cache.lower?.readEnded();
  }

  planned(sequences: readonly Sequence[]): this {
    const { lower, blockTokens } = this.#cache;
    if (lower === undefined) return this;
    this.loadTokens = lower.takeReads() * blockTokens;
    this.storeTokens = 0;
    const { rows, decodeRows } = this.#scheduler.shape;
    if (rows === decodeRows) return this;
    for (let i = 0; i < sequences.length; i++) {
      const { computed, planned, chain } = sequences[i];
      const hashed = chain.blocks * blockTokens;
      if (computed < hashed) this.storeTokens += Math.min(computed + planned, hashed) - computed;
    }
    return this;
  }

  /** Emits the writes of blocks that were evicted from host memory since the last call. */
  writeSsd(sink: EffectSink): void {
    const writes = this.#cache.lower?.takeSsdWrites();
    if (writes === undefined || writes.count === 0) return;
    sink.emit({ kind: 'writeSsd', blocks: writes.count, ...(writes.blocks && { what: writes.blocks }) });
  }

  ssdWritten({ blocks, failed }: Extract<InstanceEvent<never, never>, { kind: 'ssdWritten' }>): void {
    this.#cache.lower?.written(blocks, failed);
  }
}

/** Of a step without traffic. */
export const noTraffic = { loadTokens: 0, storeTokens: 0 };
