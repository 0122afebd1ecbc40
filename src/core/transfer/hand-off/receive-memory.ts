// Receive buffers for prompts computed elsewhere: host memory counted in tokens, or pages of the pool.

import type { BlockCache } from '../../kvcache/block-cache.ts';
import type { KvCaches } from '../../kvcache/kv-caches.ts';
import { type ReceivedPrompt, ReceiveLayout } from '../../kvcache/receive-pages.ts';
import type { SlotLayout } from '../../kvcache/sparsity/slot-pages.ts';
import type { RequestId } from '../../protocol/ids.ts';
import type { EffectSink } from '../../scheduler/step-in-flight.ts';

export interface ReceiveMemory {
  /** True if so many tokens fit into the empty memory. @param slots of a prompt with a KV budget */
  fits(tokens: number, slots?: SlotLayout): boolean;
  /** False when memory is short now. */
  allocate(id: RequestId, tokens: number, slots?: SlotLayout): boolean;
  /** @param tokens as when it was allocated */
  free(id: RequestId, tokens: number): void;
  /** Pages of the pool that hold a prompt; undefined: it is in host memory. */
  pagesOf(id: RequestId): ReceivedPrompt | undefined;
  /** Throws unless the memory in use is that of `tokens` granted tokens. */
  check(tokens: number): void;
}

/** Host memory: prompts are copied when they are loaded. Cached blocks of the host tier are evicted for them. */
export class HostReceiveMemory implements ReceiveMemory {
  readonly #cache: BlockCache;
  readonly #capacityTokens: number;
  #usedTokens = 0;

  constructor(cache: BlockCache, capacityTokens: number) {
    this.#cache = cache;
    this.#capacityTokens = capacityTokens;
  }

  fits(tokens: number): boolean {
    return tokens <= this.#capacityTokens;
  }

  allocate(_id: RequestId, tokens: number): boolean {
    if (this.#usedTokens + tokens > this.#capacityTokens) return false;
    this.#use(tokens);
    return true;
  }

  free(_id: RequestId, tokens: number): void {
    this.#use(-tokens);
  }

  pagesOf(): undefined {}

  check(tokens: number): void {
    if (tokens === this.#usedTokens && tokens <= this.#capacityTokens) return;
    throw new Error(
      `Receive memory broken: ${this.#usedTokens} tokens are counted, ${tokens} granted of ${this.#capacityTokens}`,
    );
  }

  #use(tokens: number): void {
    this.#usedTokens += tokens;
    const { lower, blockTokens } = this.#cache;
    if (lower === undefined) return;
    const left = Math.floor((this.#capacityTokens - this.#usedTokens) / blockTokens);
    lower.host.setReserved(Math.max(0, lower.host.capacity - left));
  }
}

/** Reserved pages of the pool: block tables adopt them without a copy. The driver opens and closes them to the sender. */
export class PageReceiveMemory implements ReceiveMemory {
  readonly #sink: EffectSink;
  readonly #caches: KvCaches;
  readonly #place: (fits: (worker: number) => boolean) => number | undefined;
  readonly #prompts = new Map<RequestId, ReceivedPrompt>();

  /** @param place chooses one of the caches that fit; undefined: none can take the prompt now */
  constructor(sink: EffectSink, caches: KvCaches, place: (fits: (worker: number) => boolean) => number | undefined) {
    this.#sink = sink;
    this.#caches = caches;
    this.#place = place;
  }

  fits(tokens: number, slots?: SlotLayout): boolean {
    return this.#layout(tokens, slots).pageCount <= this.#caches.first.receivePages.total;
  }

  allocate(id: RequestId, tokens: number, slots?: SlotLayout): boolean {
    const layout = this.#layout(tokens, slots);
    const { all } = this.#caches;
    const worker = this.#place((each) => all[each].receivePages.free >= layout.pageCount);
    const prompt = worker === undefined ? undefined : all[worker].receivePages.allocate(layout, worker);
    if (prompt === undefined) return false;
    this.#prompts.set(id, prompt);
    this.#sink.emit({ kind: 'openReceiveBuffer', id, pages: prompt.pages });
    return true;
  }

  free(id: RequestId): void {
    const prompt = this.#prompts.get(id);
    if (prompt === undefined) return;
    this.#prompts.delete(id);
    this.#caches.of(prompt).receivePages.release(prompt);
    this.#sink.emit({ kind: 'closeReceiveBuffer', id });
  }

  pagesOf(id: RequestId): ReceivedPrompt | undefined {
    return this.#prompts.get(id);
  }

  check(): void {
    // The block cache accounts for every page.
  }

  #layout(tokens: number, slots: SlotLayout | undefined): ReceiveLayout {
    const { first } = this.#caches;
    const groups = first.groups.map(({ layers, window, isSparse }) => ({ layers, window, sparse: isSparse }));
    return new ReceiveLayout(groups, tokens, first.blockTokens, slots);
  }
}
