// Traffic between the pool, host memory and SSD: the tokens that each step loads and stores, and the writes to SSD.

import type { BlockCache } from '../kvcache/block-cache.ts';
import type { ComputedBlocks } from '../kvcache/tiers/computed-stores.ts';
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

  /** A step is launched: it reads blocks whose loads have been started, and computes rows of these sequences. */
  stepLaunched(requests: readonly { readonly sequence: Sequence }[]): void {
    this.flush();
    this.#cache.lower?.readStarted();
    if (this.#cache.lower?.moves !== undefined)
      this.#cache.lower.stepComputes(requests.flatMap(({ sequence }) => this.#completedBy(sequence)));
  }

  /** The blocks that the planned rows of the sequence complete. */
  #completedBy({ computed, planned, chain, table, readsPart, content }: Sequence): ComputedBlocks[] {
    const { blockTokens, all } = this.#cache;
    const from = Math.floor(computed / blockTokens);
    const end = Math.floor((computed + planned) / blockTokens);
    if (end === from || readsPart) return [];
    content.digest(computed + planned);
    return [{ chain, from, to: Math.min(end, chain.blocks), idsOf: (index) => all.heldIds(table, index) }];
  }

  stepEnded(): void {
    this.#cache.lower?.readEnded();
  }

  /** The results of the step that has ended are committed. */
  resultsCommitted(): void {
    this.#cache.lower?.computedRecorded();
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
