// Traffic between the pool, host memory and SSD: what each step loads and stores, and what SSD is to write.

import type { BlockCache } from '../kvcache/block-cache.ts';
import type { InstanceEvent } from '../protocol/events.ts';
import type { Batcher } from './batching/batcher.ts';
import type { Sequence } from './batching/sequence.ts';
import type { EffectSink } from './step-in-flight.ts';

export class HostTraffic {
  readonly #scheduler: Batcher;
  readonly #cache: BlockCache;
  /** Tokens of prefixes whose keys and values the step planned last loads. */
  loadTokens = 0;
  /** Tokens that it computes and that are copied to host memory, because their blocks have names. */
  storeTokens = 0;

  constructor(scheduler: Batcher, cache: BlockCache) {
    this.#scheduler = scheduler;
    this.#cache = cache;
  }

  /** Starts the loads of blocks that were taken from host memory. */
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
    for (const { computed, planned, chain } of sequences) {
      const named = chain.blocks * blockTokens;
      if (computed < named) this.storeTokens += Math.min(computed + planned, named) - computed;
    }
    return this;
  }

  /** Emits what host memory has had no room for since the last call. */
  writeSsd(sink: EffectSink): void {
    const writes = this.#cache.lower?.takeSsdWrites();
    if (writes === undefined || writes.count === 0) return;
    sink.emit({ kind: 'writeSsd', blocks: writes.count, ...(writes.blocks && { what: writes.blocks }) });
  }

  ssdWritten({ blocks, failed }: Extract<InstanceEvent<never, never>, { kind: 'ssdWritten' }>): void {
    this.#cache.lower?.written(blocks, failed);
  }
}

export const nothingMoved = { loadTokens: 0, storeTokens: 0 };
