// Receive buffers for prompts computed elsewhere: host memory counted in tokens, or pages of the pool.

import type { BlockCache } from '../../kvcache/block-cache.ts';
import type { KvCaches } from '../../kvcache/kv-caches.ts';
import { type ReceivedPrompt, ReceiveLayout } from '../../kvcache/receive-pages.ts';
import { pagesOfLayout, type SlotLayout } from '../../kvcache/sparsity/slot-pages.ts';
import type { RequestId } from '../../protocol/ids.ts';
import type { EffectSink } from '../../scheduler/step-in-flight.ts';

/** What a prompt takes of receive memory. */
export interface PromptSize {
  readonly tokens: number;
  /** Of a prompt with a KV budget. */
  readonly slots?: SlotLayout | undefined;
}

export interface ReceiveMemory {
  /** True if such a prompt fits into the empty memory. */
  fits(size: PromptSize): boolean;
  /** False when memory is short now. */
  allocate(id: RequestId, size: PromptSize): boolean;
  /** @param size as when it was allocated */
  free(id: RequestId, size: PromptSize): void;
  /** Pages of the pool that hold a prompt; undefined: it is in host memory. */
  pagesOf(id: RequestId): ReceivedPrompt | undefined;
  /** Throws unless the memory in use is that of the granted prompts. */
  check(granted: readonly PromptSize[]): void;
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

  fits(size: PromptSize): boolean {
    return this.#tokensOf(size) <= this.#capacityTokens;
  }

  allocate(_id: RequestId, size: PromptSize): boolean {
    const tokens = this.#tokensOf(size);
    if (this.#usedTokens + tokens > this.#capacityTokens) return false;
    this.#use(tokens);
    return true;
  }

  free(_id: RequestId, size: PromptSize): void {
    this.#use(-this.#tokensOf(size));
  }

  pagesOf(): undefined {}

  check(granted: readonly PromptSize[]): void {
    const tokens = granted.reduce((sum, size) => sum + this.#tokensOf(size), 0);
    if (tokens === this.#usedTokens && tokens <= this.#capacityTokens) return;
    throw new Error(
      `Receive memory broken: ${this.#usedTokens} tokens are counted, ${tokens} granted of ${this.#capacityTokens}`,
    );
  }

  /** Tokens of all layers with as many bytes. */
  #tokensOf({ tokens, slots }: PromptSize): number {
    if (slots === undefined) return tokens;
    const { groups, blockTokens } = this.#cache;
    const layers = groups.reduce((sum, group) => sum + group.layers, 0);
    const fullLayers = groups.reduce((sum, group) => sum + (group.isSparse ? 0 : group.layers), 0);
    return Math.ceil((fullLayers * tokens + pagesOfLayout(slots) * blockTokens) / layers);
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

  fits(size: PromptSize): boolean {
    return this.#layout(size).pageCount <= this.#caches.first.receivePages.total;
  }

  allocate(id: RequestId, size: PromptSize): boolean {
    const layout = this.#layout(size);
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

  #layout({ tokens, slots }: PromptSize): ReceiveLayout {
    const { first } = this.#caches;
    const groups = first.groups.map(({ layers, window, isSparse }) => ({ layers, window, sparse: isSparse }));
    return new ReceiveLayout(groups, tokens, first.blockTokens, slots);
  }
}
