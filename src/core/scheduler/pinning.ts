// The pins of an instance: prefixes that clients have kept there for a time, computed first where they are not there yet.
import type { BlockCache } from '../kvcache/block-cache.ts';
import { Pins } from '../kvcache/pins.ts';
import type { InstanceEffect } from '../protocol/effects.ts';
import type { InstanceEvent } from '../protocol/events.ts';
import type { PinId, RequestId } from '../protocol/ids.ts';
import type { PinOrder, PinState } from '../protocol/pin-order.ts';
import type { GenerationEvent } from '../protocol/ports.ts';
import type { RunningRequest } from './executor/executor.ts';

/** The instance, as its pins see it. */
interface Owner<Request, S> {
  readonly push: (effect: InstanceEffect<never, Request>) => void;
  readonly serve: (request: Request) => S;
  /** Compute its prompt: `ended` says when it is there. */
  readonly start: (served: S) => void;
  readonly stop: (id: RequestId) => void;
  /** Tokens of the longest sequence that fits. */
  readonly capacityTokens: () => number;
}

interface Computing<S> {
  readonly id: PinId;
  readonly served: S;
  readonly ttlUs: number;
}

/** Doubled orders renew a pin; one that is taken back while it is computed is not computed further. */
export class Pinning<Request extends { readonly id: RequestId }, S extends RunningRequest> {
  readonly #cache: BlockCache;
  readonly #pins: Pins;
  readonly #owner: Owner<Request, S>;
  /** By the name of the request that computes it. */
  readonly #computing = new Map<RequestId, Computing<S>>();
  /** Tokens that requests found in pinned blocks. */
  hitTokens = 0;

  /** @param share of the pages that pins may hold */
  constructor(cache: BlockCache, share: number, owner: Owner<Request, S>) {
    this.#cache = cache;
    this.#pins = new Pins(cache, share);
    this.#owner = owner;
  }

  get nextUs(): number {
    return this.#pins.nextUs;
  }

  /** Does this request compute a prefix, so that nobody else hears of it? */
  computes(id: RequestId): boolean {
    return this.#computing.size > 0 && this.#computing.has(id);
  }

  /** Of those who are here, the ones that somebody waits for. */
  without(live: Iterable<S>): Iterable<S> {
    return this.#computing.size === 0 ? live : [...live].filter(({ id }) => !this.#computing.has(id));
  }

  hear(nowUs: number, event: Extract<InstanceEvent<Request>, { kind: 'pin' | 'unpin' | 'wake' }>): void {
    if (event.kind === 'pin') this.#pin(nowUs, event);
    else if (event.kind === 'wake') this.#advance(nowUs);
    else if (!this.#unpin(event.id))
      this.#owner.push({ kind: 'ignored', message: `Ignored unpin: ${event.id} is not pinned` });
  }

  #pin(nowUs: number, { id, request, ttlUs }: PinOrder<Request>): void {
    const untilUs = this.#pins.untilUs(id);
    if (untilUs !== undefined) {
      this.#pins.extend(id, Math.max(untilUs, nowUs + ttlUs));
      this.#tell(id, { kind: 'pinned', tokens: 0, untilUs: Math.max(untilUs, nowUs + ttlUs) });
      return;
    }
    for (const { id: known } of this.#computing.values()) if (known === id) return;
    const served = this.#owner.serve(request);
    const { chain, promptLength } = served.sequence;
    const blocks = Math.min(chain.blocks, Math.floor(promptLength / this.#cache.blockTokens));
    const refusal = this.#refusal(id, blocks, promptLength);
    if (refusal !== undefined) {
      this.#tell(id, refusal);
      return;
    }
    if (this.#cache.match(chain, blocks) === blocks) {
      this.#hold(nowUs, { id, served, ttlUs });
      return;
    }
    this.#computing.set(served.id, { id, served, ttlUs });
    this.#owner.start(served);
  }

  /** Undefined: there is room, and it is kept. */
  #refusal(id: PinId, blocks: number, tokens: number): PinState | undefined {
    const { blockTokens } = this.#cache;
    if (blocks === 0) return refused('length', `it is shorter than a block: ${tokens} tokens, ${blockTokens} are one`);
    const fit = this.#owner.capacityTokens();
    if (tokens + 1 > fit) return refused('length', `it is longer than the KV memory: ${tokens} tokens, ${fit} fit`);
    if (this.#pins.reserve(id, blocks)) return undefined;
    const { held, max } = this.#pins.blocks;
    if (max === 0) return refused('length', 'no memory is set aside for that: --pin-memory says how much');
    if (blocks > max)
      return refused('length', `it is longer than what may be pinned: ${tokens} tokens, ${max * blockTokens} may be`);
    return refused('memory', `too much is pinned: ${held} blocks and ${blocks} more, ${max} may be`);
  }

  #hold(nowUs: number, { id, served, ttlUs }: Computing<S>): void {
    const untilUs = nowUs + ttlUs;
    const blocks = this.#pins.fill(id, served.sequence.chain, untilUs);
    this.#tell(id, { kind: 'pinned', tokens: blocks * this.#cache.blockTokens, untilUs });
  }

  /** A request has ended and its blocks are cache: holds them, if it computed them for a pin. */
  ended(nowUs: number, id: RequestId, event: GenerationEvent): void {
    const computing = this.#computing.get(id);
    if (computing === undefined) return;
    this.#computing.delete(id);
    if (event.kind === 'finished') {
      this.#hold(nowUs, computing);
      return;
    }
    this.#pins.release(computing.id);
    const message = event.kind === 'failed' ? event.message : 'Cannot pin a prefix: it was not computed';
    this.#tell(computing.id, { kind: 'refused', why: 'failed', message });
  }

  #unpin(id: PinId): boolean {
    for (const [name, { id: known }] of this.#computing) {
      if (known !== id) continue;
      this.#owner.stop(name);
      this.#computing.delete(name);
    }
    if (!this.#pins.release(id)) return false;
    this.#tell(id, { kind: 'unpinned' });
    return true;
  }

  /** Those whose time has passed go. */
  #advance(nowUs: number): void {
    if (this.#pins.size === 0) return;
    for (const id of this.#pins.expire(nowUs)) this.#tell(id, { kind: 'unpinned' });
  }

  /** A request starts with so many tokens from the cache. */
  started({ sequence }: S, cachedTokens: number): void {
    if (this.#pins.size === 0 || cachedTokens === 0) return;
    const { blockTokens } = this.#cache;
    this.hitTokens += this.#pins.pinnedOf(sequence.table, cachedTokens / blockTokens) * blockTokens;
  }

  #tell(id: PinId, state: PinState): void {
    this.#owner.push({ kind: 'pinUpdated', id, state });
  }

  /** @param isLive is a request at the instance? */
  check(isLive: (id: RequestId) => boolean): void {
    this.#pins.check();
    for (const [name, { id }] of this.#computing)
      if (!isLive(name) || this.#pins.untilUs(id) !== undefined)
        throw new Error(`Pinning broken: nobody computes ${name} for pin ${id}`);
  }
}

function refused(why: 'length' | 'memory', figures: string): PinState {
  return { kind: 'refused', why, message: `Cannot pin a prefix: ${figures}` };
}
