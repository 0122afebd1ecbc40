// Where prompts computed elsewhere land until they are loaded: counted in tokens, or in pages of the pool.
import type { BlockCache } from '../../kvcache/block-cache.ts';
import { type ReceivedPrompt, ReceiveLayout } from '../../kvcache/receive-pages.ts';
import type { InstanceEffect } from '../../protocol/effects.ts';
import type { RequestId } from '../../protocol/ids.ts';
import type { HandOffConfig } from './hand-offs.ts';

type LandingEffect = Extract<InstanceEffect, { kind: 'openLanding' | 'closeLanding' }>;

/** Who hears of what lands. */
interface Landed {
  readonly push: (effect: LandingEffect) => void;
  /** So many tokens' worth of landing memory is in use now. */
  readonly lands: (tokens: number, capacityTokens: number) => void;
}

/** @param config undefined where there is no other instance */
export function createReceiveMemory(
  config: Pick<HandOffConfig, 'landingPages' | 'landingTokens'> | undefined,
  cache: BlockCache,
  { push, lands }: Landed,
): ReceiveMemory {
  if (config?.landingPages !== undefined) return new PageLanding(cache, push);
  const capacityTokens = config?.landingTokens ?? 0;
  return new TokenLanding(capacityTokens, (tokens) => lands(tokens, capacityTokens));
}

export interface ReceiveMemory {
  /** Could so many tokens ever land? */
  fits(tokens: number): boolean;
  /** False when there is no room now. */
  take(id: RequestId, tokens: number): boolean;
  /** It has room no more; `tokens` as when it was taken. */
  give(id: RequestId, tokens: number): void;
  /** The pages that a prompt has landed in, where they are of the pool. */
  landed(id: RequestId): ReceivedPrompt | undefined;
  /** Throws unless what is in use is what `tokens` were granted. */
  check(tokens: number): void;
}

/** Memory of its own (the host's): what is loaded from it is copied. */
class TokenLanding implements ReceiveMemory {
  readonly #capacityTokens: number;
  readonly #uses: (tokens: number) => void;
  #usedTokens = 0;

  /** @param uses hears how many tokens' worth of the memory is in use */
  constructor(capacityTokens: number, uses: (tokens: number) => void) {
    this.#capacityTokens = capacityTokens;
    this.#uses = uses;
  }

  fits(tokens: number): boolean {
    return tokens <= this.#capacityTokens;
  }

  take(_id: RequestId, tokens: number): boolean {
    if (this.#usedTokens + tokens > this.#capacityTokens) return false;
    this.#use(tokens);
    return true;
  }

  give(_id: RequestId, tokens: number): void {
    this.#use(-tokens);
  }

  landed(): undefined {}

  check(tokens: number): void {
    if (tokens === this.#usedTokens && tokens <= this.#capacityTokens) return;
    throw new Error(
      `Arrivals broken: ${this.#usedTokens} tokens are counted, ${tokens} granted of ${this.#capacityTokens}`,
    );
  }

  #use(tokens: number): void {
    this.#usedTokens += tokens;
    this.#uses(this.#usedTokens);
  }
}

/** Pages of the pool, set aside: blocks take in what has landed without a copy. The driver opens them to the sender, and closes them. */
class PageLanding implements ReceiveMemory {
  readonly #cache: BlockCache;
  readonly #push: (effect: LandingEffect) => void;
  readonly #prompts = new Map<RequestId, ReceivedPrompt>();

  constructor(cache: BlockCache, push: (effect: LandingEffect) => void) {
    this.#cache = cache;
    this.#push = push;
  }

  fits(tokens: number): boolean {
    return this.#layout(tokens).pageCount <= this.#cache.receivePages.total;
  }

  take(id: RequestId, tokens: number): boolean {
    const prompt = this.#cache.receivePages.allocate(this.#layout(tokens));
    if (prompt === undefined) return false;
    this.#prompts.set(id, prompt);
    this.#push({ kind: 'openLanding', id, pages: prompt.pages });
    return true;
  }

  give(id: RequestId): void {
    const prompt = this.#prompts.get(id);
    if (prompt === undefined) return;
    this.#prompts.delete(id);
    this.#cache.receivePages.release(prompt);
    this.#push({ kind: 'closeLanding', id });
  }

  landed(id: RequestId): ReceivedPrompt | undefined {
    return this.#prompts.get(id);
  }

  check(): void {
    // The block cache accounts for every page.
  }

  #layout(tokens: number): ReceiveLayout {
    return new ReceiveLayout(this.#cache.groups, tokens, this.#cache.blockTokens);
  }
}
