// Prefix fetch with reordered, late, duplicate and lost messages: no request is lost, and no block stays pinned.
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { createLengthInstance, type LengthInstance } from '../../../src/core/instance/length-instance.ts';
import type { InstanceEffect } from '../../../src/core/protocol/effects.ts';
import type { InstanceEvent, LoadSource } from '../../../src/core/protocol/events.ts';
import { Float64Pool } from '../../../src/core/scheduler/executor/float64-pool.ts';
import type { LengthResult } from '../../../src/core/scheduler/executor/length-executor.ts';
import { LengthRequest } from '../../../src/core/scheduler/executor/length-request.ts';
import type { PendingBlocks } from '../../../src/core/transfer/prefix-fetch/prefix-loads.ts';
import { blockTokens, cost } from '../scheduler/small-cost.ts';

type Event = InstanceEvent<LengthRequest, LengthResult>;
type Effect = InstanceEffect<undefined, LengthRequest>;

interface RequestSpec {
  readonly at: number;
  readonly family: number;
  /** Blocks of the prompt, all but the last shared in the family. */
  readonly blocks: number;
  readonly output: number;
  /** The reported holder, and the number of blocks that it reports. */
  readonly from: number;
  readonly reportedBlocks: number;
}

const instances = 3;

/** Instances that prefill and decode. Messages are delivered and steps end when the test says so. */
class PrefixWorld {
  readonly instances: readonly LengthInstance[];
  readonly received = new Map<string, string[]>();
  readonly requests: LengthRequest[] = [];
  readonly messages: { readonly to: number; readonly event: Event }[] = [];
  readonly steps = new Map<number, number>();
  readonly ignored: string[] = [];
  /** Tokens that were sent, by request. */
  readonly sent = new Map<string, number>();
  /** Blocks reported in KV events, stored minus removed, by instance. */
  readonly kvEventBlocks = new Int32Array(instances);
  nowUs = 0;
  readonly #patienceUs: number;

  /** What the step in flight of each instance waited for when it began. */
  readonly #pending = new Map<number, readonly PendingBlocks[]>();
  /** Reported loads: instance, request and source. */
  readonly #loadedSources = new Set<string>();
  /** Requests that started ahead of blocks that arrived in time. */
  arrivedAhead = 0;
  /** Requests that started ahead of blocks that did not. */
  missedAhead = 0;

  /** @param blocks of each instance @param aheadOfUse requests start while their prefixes arrive */
  constructor(blocks = 30, patienceUs = 1e9, aheadOfUse = false) {
    this.#patienceUs = patienceUs;
    const limits = { tokensMax: 64, logitRowsMax: 9, sequencesMax: 8, stepUsDecoding: 5_000, stepUsPrefill: 5_000 };
    const config = {
      cost,
      blockTokens,
      blocks,
      eviction: 'lru',
      limits,
      coalesce: false,
      queueMax: 1_000,
      aheadOfUse,
    } as const;
    this.instances = Array.from({ length: instances }, () => createLengthInstance(config));
  }

  submit({ at, family, blocks, output, from, reportedBlocks }: RequestSpec): void {
    const index = this.requests.length;
    const ids = Int32Array.from({ length: blocks }, (_, i) =>
      i < blocks - 1 ? 1000 * family + i : 1_000_000 + 100 * index + i,
    );
    const inputTokens = blocks * blockTokens;
    const trace = { index, arrivalUs: this.nowUs, inputTokens, outputTokens: output, blocks: ids };
    const request = new LengthRequest(trace, blockTokens, new Float64Pool());
    this.requests.push(request);
    this.received.set(request.id, []);
    const prefix =
      from === at || reportedBlocks === 0 ? undefined : { from, blocks: reportedBlocks, patienceUs: this.#patienceUs };
    this.messages.push({ to: at, event: { kind: 'submit', request, prefix } });
  }

  cancel(id: string): void {
    for (let to = 0; to < instances; to++) this.messages.push({ to, event: { kind: 'cancel', id } });
  }

  /** Delivers a message or ends a step; false if there is none. */
  advance(choice: number, doubled = false, lost = false): boolean {
    const options = this.messages.length + this.steps.size;
    if (options === 0) return false;
    const picked = choice % options;
    // In most cases `loaded` arrives only after a running step has ended.
    const waits = this.messages[picked]?.event.kind === 'loaded' && this.steps.size > 0 && choice % 7 > 0;
    const at = waits ? this.messages.length : picked;
    if (at < this.messages.length) {
      const message = this.messages[at];
      const kind = message?.event.kind;
      // Submits come from the conductor, and `prefixSent` from the instance itself: neither is lost or doubled.
      const local = kind === 'submit' || kind === 'prefixSent';
      if (local || lost || !doubled) this.messages.splice(at, 1);
      if (message !== undefined && (local || !lost)) this.deliver(message.to, message.event);
    } else {
      const [to, step] = [...this.steps][at - this.messages.length] ?? [0, 0];
      this.steps.delete(to);
      this.deliver(to, { kind: 'stepDone', step, result: this.#resultOf(to, choice) });
    }
    return true;
  }

  deliver(to: number, event: Event): void {
    this.nowUs += 100;
    if (event.kind === 'loaded' && event.to > 0) this.#loadedSources.add(`${to} ${event.id} ${event.source}`);
    const instance = this.instances[to];
    const ran = this.steps.get(to);
    for (const effect of instance?.step(this.nowUs, event) ?? []) this.#apply(to, effect);
    instance?.check();
    if (this.steps.get(to) !== ran)
      this.#pending.set(to, instance?.components.prefixes.pendingBlocks(this.nowUs) ?? []);
  }

  /** Blocks in transit may have arrived before their `loaded` event; lost blocks have not. */
  #resultOf(at: number, choice: number): LengthResult {
    const pending = this.#pending.get(at) ?? [];
    const missing = pending.filter(({ id, sources }) => {
      const isLoaded = sources?.every((source) => this.#loadedSources.has(`${at} ${id} ${source}`)) === true;
      return !isLoaded && (choice % 2 === 0 || sources?.every((source) => this.#willArrive(at, id, source)) !== true);
    });
    this.arrivedAhead += pending.length - missing.length;
    this.missedAhead += missing.length;
    return { failedSequences: missing.map(({ place }) => place) };
  }

  #willArrive(at: number, id: string, source: LoadSource): boolean {
    const pending = ({ to, event }: PrefixWorld['messages'][number]) =>
      to === at && event.kind === 'loaded' && event.id === id && event.source === source && event.to > 0;
    return this.#loadedSources.has(`${at} ${id} ${source}`) || this.messages.some(pending);
  }

  #apply(from: number, effect: Effect): void {
    switch (effect.kind) {
      case 'runStep':
        this.steps.set(from, effect.step);
        break;
      case 'emit':
        if (effect.event.kind !== 'accepted') this.received.get(effect.id)?.push(effect.event.kind);
        break;
      case 'send':
        this.messages.push({ to: effect.to, event: { kind: 'peer', from, message: effect.message } });
        break;
      case 'streamPrefix': {
        const { id, to, tokens, blocks } = effect;
        expect(tokens).toBeGreaterThan(0);
        this.sent.set(id, (this.sent.get(id) ?? 0) + tokens);
        this.messages.push({ to: from, event: { kind: 'prefixSent', id, to } });
        this.messages.push({ to, event: { kind: 'arriving', id, source: from, to: blocks } });
        this.messages.push({ to, event: { kind: 'loaded', id, source: from, to: blocks } });
        break;
      }
      case 'stopStream':
        for (const [i, { event }] of [...this.messages.entries()].reverse()) {
          const { id, to } = effect;
          const isItsEvent =
            (event.kind === 'prefixSent' && event.to === to) || (event.kind === 'loaded' && event.source === from);
          if (isItsEvent && 'id' in event && event.id === id) this.messages.splice(i, 1);
        }
        break;
      case 'kvEvents': {
        const { changes, stored } = effect.batch;
        for (let i = 0; i < changes; i++)
          this.kvEventBlocks[from] = (this.kvEventBlocks[from] ?? 0) + (stored[i] === 1 ? 1 : -1);
        break;
      }
      case 'ignored':
        this.ignored.push(effect.message);
        break;
      case 'fault':
        throw new Error(effect.message);
    }
  }

  /** Delivers all messages and ends all steps, in order. */
  finish(): void {
    for (let i = 0; i < 20_000 && this.advance(0); i++);
    expect([this.messages.length, this.steps.size]).toEqual([0, 0]);
  }

  /** Time passes until no request waits. Returns whether it had to. */
  waitOut(): boolean {
    let waited = false;
    this.finish();
    for (const [i, instance] of this.instances.entries()) {
      while (instance.nextUs < Number.POSITIVE_INFINITY) {
        waited = true;
        this.nowUs = Math.max(this.nowUs, instance.nextUs);
        this.deliver(i, { kind: 'wake' });
        this.finish();
      }
    }
    return waited;
  }

  pagesUsed(): number[] {
    return this.instances.map((instance) => instance.snapshot().pages.used);
  }

  cachedTokens(at: number): number {
    return this.instances[at]?.snapshot().cachedTokens ?? 0;
  }
}

const requestSpec = fc.record({
  at: fc.nat(instances - 1),
  family: fc.nat(2),
  blocks: fc.integer({ min: 2, max: 9 }),
  output: fc.integer({ min: 1, max: 12 }),
  from: fc.nat(instances - 1),
  reportedBlocks: fc.nat(9),
});
const moves = fc.array(fc.record({ choice: fc.nat(1_000), doubled: fc.boolean(), cancel: fc.nat(60) }), {
  minLength: 200,
  maxLength: 400,
});
const requestsOf = fc.array(requestSpec, { minLength: 1, maxLength: 20 });

describe('prefixes between instances', () => {
  test('reordered, late or duplicate messages: every request is answered once, and no block stays pinned', () => {
    const sizes = fc.constantFrom(12, 30);
    let [whole, sent, late, arrivedAhead, missedAhead] = [0, 0, 0, 0, 0];
    fc.assert(
      fc.property(
        requestsOf,
        moves,
        sizes,
        fc.constantFrom(true, true, false),
        (requests, history, size, aheadOfUse) => {
          const world = new PrefixWorld(size, 1e9, aheadOfUse);
          const cancelled = new Set<string>();
          let next = 0;
          for (const [i, { choice, doubled, cancel }] of history.entries()) {
            if (i % 8 === 0 && next < requests.length) world.submit(requests[next++] as RequestSpec);
            if (cancel < next && choice % 10 === 0) {
              cancelled.add(String(cancel));
              world.cancel(String(cancel));
            }
            world.advance(choice, doubled);
          }
          world.finish();
          expect(world.pagesUsed()).toEqual([0, 0, 0]);
          for (const { id } of world.requests) {
            const received = world.received.get(id) ?? [];
            expect(received.filter((kind) => kind === 'finished').length).toBeLessThanOrEqual(1);
            if (cancelled.has(id)) continue;
            expect([received[0], received.at(-1)]).toEqual(['started', 'finished']);
            whole++;
          }
          sent += world.sent.size;
          late += world.ignored.length;
          arrivedAhead += world.arrivedAhead;
          missedAhead += world.missedAhead;
        },
      ),
      { numRuns: 300, endOnFailure: true },
    );
    expect(whole).toBeGreaterThan(150);
    expect(sent).toBeGreaterThan(50);
    expect(late).toBeGreaterThan(50);
    expect(Math.min(arrivedAhead, missedAhead)).toBeGreaterThan(3);
  });

  test('lost messages delay their requests by at most the patience', () => {
    let [waitedOut, lost] = [0, 0];
    fc.assert(
      fc.property(requestsOf, moves, fc.boolean(), (requests, history, aheadOfUse) => {
        const world = new PrefixWorld(30, 3_000, aheadOfUse);
        for (const request of requests) world.submit(request);
        for (const { choice, cancel } of history) {
          world.advance(choice, false, cancel < 20);
          lost += Number(cancel < 20);
        }
        waitedOut += Number(world.waitOut());
        expect(world.pagesUsed()).toEqual([0, 0, 0]);
        for (const received of world.received.values())
          expect([received[0], received.at(-1)]).toEqual(['started', 'finished']);
      }),
      { numRuns: 60 },
    );
    expect(waitedOut).toBeGreaterThan(10);
    expect(lost).toBeGreaterThan(100);
  });

  /** Instance 0 has computed the family's prompt of six blocks. */
  const warmed = (aheadOfUse = false) => {
    const world = new PrefixWorld(30, 1e9, aheadOfUse);
    world.submit({ at: 0, family: 0, blocks: 6, output: 1, from: 0, reportedBlocks: 0 });
    world.finish();
    return world;
  };
  const again = { at: 1, family: 0, blocks: 6, output: 1, from: 0, reportedBlocks: 5 };

  test('become cached at the instance that fetched them, and reported as KV events', () => {
    const world = warmed();
    world.submit(again);
    world.finish();
    expect(world.sent.get('1')).toBe(5 * blockTokens);
    expect(world.cachedTokens(1)).toBe(5 * blockTokens);
    expect([...world.kvEventBlocks]).toEqual([6, 6, 0]);
    // Another instance can fetch the prefix from there; a request there finds it cached.
    world.submit({ ...again, at: 2, from: 1 });
    world.submit({ ...again, at: 1 });
    world.finish();
    expect([world.sent.get('2'), world.sent.get('3')]).toEqual([5 * blockTokens, undefined]);
    expect([world.cachedTokens(1), world.cachedTokens(2)]).toEqual([10 * blockTokens, 5 * blockTokens]);
  });

  test('are fetched once for two requests that need them at once', () => {
    const world = warmed();
    world.submit(again);
    world.submit(again);
    world.finish();
    expect([...world.sent]).toEqual([['1', 5 * blockTokens]]);
    expect(world.cachedTokens(1)).toBe(10 * blockTokens);
  });

  test('are computed where the other instance has evicted them', () => {
    const world = new PrefixWorld();
    world.submit(again);
    world.finish();
    expect(world.received.get('0')).toEqual(['started', 'tokens', 'finished']);
    expect(world.sent.size).toBe(0);
    // Part of the prefix is cached there: that part is sent.
    world.submit({ at: 0, family: 1, blocks: 4, output: 1, from: 0, reportedBlocks: 0 });
    world.finish();
    world.submit({ ...again, family: 1, blocks: 9, reportedBlocks: 8 });
    world.finish();
    expect(world.sent.get('2')).toBe(3 * blockTokens);
    expect(world.cachedTokens(1)).toBe(3 * blockTokens);
  });

  test('let a request start while they arrive, and are shared once its step has read them', () => {
    const world = warmed(true);
    world.submit(again);
    // Delivers the submit, `fetch`, `prefixSent` and `arriving`.
    for (let i = 0; i < 4; i++) world.advance(0);
    expect(world.instances[1]?.inFlight.map(({ id }) => id)).toEqual(['1']);
    expect([...world.kvEventBlocks]).toEqual([6, 0, 0]);
    world.finish();
    expect(world.cachedTokens(1)).toBe(5 * blockTokens);
    expect([...world.kvEventBlocks]).toEqual([6, 6, 0]);
    expect([world.arrivedAhead, world.missedAhead]).toEqual([1, 0]);
  });

  test('that do not arrive are computed by the requests that started behind them', () => {
    const world = warmed(true);
    world.submit(again);
    for (let i = 0; i < 4; i++) world.advance(0);
    world.messages.splice(0);
    world.finish();
    expect([world.arrivedAhead, world.missedAhead]).toEqual([0, 1]);
    expect(world.received.get('1')).toEqual(['started', 'tokens', 'finished']);
    expect(world.pagesUsed()).toEqual([0, 0, 0]);
    expect([...world.kvEventBlocks]).toEqual([6, 6, 0]);
  });

  test('stop when their request is cancelled, and both instances release them', () => {
    const world = warmed();
    world.submit(again);
    // Delivers the submit and `fetch`.
    world.advance(0);
    world.advance(0);
    expect(world.pagesUsed()).toEqual([5, 5, 0]);
    world.deliver(1, { kind: 'cancel', id: '1' });
    expect(world.pagesUsed()).toEqual([5, 0, 0]);
    world.finish();
    expect(world.pagesUsed()).toEqual([0, 0, 0]);
    expect(world.received.get('1')).toEqual([]);
    expect([...world.kvEventBlocks]).toEqual([6, 0, 0]);
  });
});
