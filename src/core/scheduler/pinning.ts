// The pins of an instance: prefixes that clients keep in its cache for a time. Missing prefixes are computed first.

import { Pins } from '../kvcache/pins.ts';
import type { InstanceEvent } from '../protocol/events.ts';
import type { PinId, RequestId } from '../protocol/ids.ts';
import type { PinOrder, PinState } from '../protocol/pin-order.ts';
import type { GenerationEvent } from '../protocol/ports.ts';
import { type Handled, type Identified, InstanceComponent, type InstanceContext } from './component.ts';
import type { RunningRequest } from './executor/executor.ts';

interface Computing<S> {
  readonly id: PinId;
  readonly running: S;
  readonly ttlUs: number;
}

/** A repeated order renews its pin. Unpinning a prefix while it is computed cancels the computation. */
export class Pinning<Request extends Identified, S extends RunningRequest> extends InstanceComponent<Request, S> {
  readonly #context: InstanceContext<Request, S>;
  readonly #pins: Pins;
  /** Prefixes in computation, by the requests that compute them. */
  readonly #computing = new Map<RequestId, Computing<S>>();
  /** Prompt tokens that requests found in pinned blocks. */
  hitTokens = 0;

  constructor(context: InstanceContext<Request, S>) {
    super();
    this.#context = context;
    this.#pins = new Pins(context.kvCache, context.config.pinShare ?? 0);
  }

  override get nextUs(): number {
    return this.#pins.nextUs;
  }

  override handle(event: InstanceEvent<Request, unknown>): Handled {
    switch (event.kind) {
      case 'pin':
        this.#pin(this.#context.nowUs, event);
        return 'replan';
      case 'unpin':
        if (!this.#unpin(event.id)) this.#context.ignore(event, `${event.id} is not pinned`);
        return 'replan';
      case 'wake':
        this.#expire();
        return 'shared';
      default:
        return undefined;
    }
  }

  #pin(nowUs: number, { id, request, ttlUs }: PinOrder<Request>): void {
    const untilUs = this.#pins.untilUs(id);
    if (untilUs !== undefined) {
      this.#pins.extend(id, Math.max(untilUs, nowUs + ttlUs));
      this.#report(id, { kind: 'pinned', tokens: 0, untilUs: Math.max(untilUs, nowUs + ttlUs) });
      return;
    }
    for (const { id: pin } of this.#computing.values()) if (pin === id) return;
    const running = this.#context.create(request);
    const { chain, promptLength } = running.sequence;
    const blocks = Math.min(chain.blocks, Math.floor(promptLength / this.#context.kvCache.blockTokens));
    const refusal = this.#refusal(id, blocks, promptLength);
    if (refusal !== undefined) {
      this.#report(id, refusal);
      return;
    }
    if (this.#context.kvCache.match(chain, blocks) === blocks) {
      this.#hold(nowUs, { id, running, ttlUs });
      return;
    }
    this.#computing.set(running.id, { id, running, ttlUs });
    this.#context.requests.addInternal(running);
  }

  /** Undefined: memory is free, and is reserved. */
  #refusal(id: PinId, blocks: number, tokens: number): PinState | undefined {
    const { blockTokens } = this.#context.kvCache;
    if (blocks === 0)
      return refused('length', `it is shorter than a block: ${tokens} tokens, a block has ${blockTokens}`);
    const fit = this.#context.capacityTokens;
    if (tokens + 1 > fit) return refused('length', `it is longer than the KV memory: ${tokens} tokens, ${fit} fit`);
    if (this.#pins.reserve(id, blocks)) return undefined;
    const { held, max } = this.#pins.blocks;
    if (max === 0) return refused('length', 'no memory is reserved for pins: set --pin-memory');
    if (blocks > max)
      return refused('length', `it exceeds the memory for pins: ${tokens} tokens, ${max * blockTokens} fit`);
    return refused(
      'memory',
      `the memory for pins is full: ${held} blocks are pinned, ${blocks} more are requested, ${max} fit`,
    );
  }

  #hold(nowUs: number, { id, running, ttlUs }: Computing<S>): void {
    const untilUs = nowUs + ttlUs;
    const blocks = this.#pins.fill(id, running.sequence.chain, untilUs);
    this.#report(id, { kind: 'pinned', tokens: blocks * this.#context.kvCache.blockTokens, untilUs });
  }

  /** Holds the blocks of a request that computed them for a pin. */
  override ended(id: RequestId, event: GenerationEvent): void {
    const computing = this.#computing.get(id);
    if (computing === undefined) return;
    this.#computing.delete(id);
    if (event.kind === 'finished') {
      this.#hold(this.#context.nowUs, computing);
      return;
    }
    this.#pins.release(computing.id);
    const message = event.kind === 'failed' ? event.message : 'Cannot pin a prefix: it was not computed';
    this.#report(computing.id, { kind: 'refused', why: 'failed', message });
  }

  #unpin(id: PinId): boolean {
    for (const [request, { id: pin }] of this.#computing) {
      if (pin !== id) continue;
      this.#context.cancel(request);
      this.#computing.delete(request);
    }
    if (!this.#pins.release(id)) return false;
    this.#report(id, { kind: 'unpinned' });
    return true;
  }

  #expire(): void {
    if (this.#pins.size === 0) return;
    for (const id of this.#pins.expire(this.#context.nowUs)) this.#report(id, { kind: 'unpinned' });
  }

  override started({ sequence, received }: S): void {
    const { cachedTokens = 0 } = sequence;
    if (this.#pins.size === 0 || cachedTokens === 0 || received !== undefined) return;
    const { blockTokens } = this.#context.kvCache;
    this.hitTokens += this.#pins.pinnedOf(sequence.table, cachedTokens / blockTokens) * blockTokens;
  }

  #report(id: PinId, state: PinState): void {
    this.#context.emit({ kind: 'pinUpdated', id, state });
  }

  /** Throws unless every prefix in computation has a live request. */
  override check(): void {
    this.#pins.check();
    for (const [request, { id }] of this.#computing)
      if (!this.#context.requests.has(request) || this.#pins.untilUs(id) !== undefined)
        throw new Error(`Pinning broken: request ${request} does not compute pin ${id}`);
  }
}

function refused(why: 'length' | 'memory', figures: string): PinState {
  return { kind: 'refused', why, message: `Cannot pin a prefix: ${figures}` };
}
