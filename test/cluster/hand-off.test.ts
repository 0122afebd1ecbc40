// Hand-offs between instances whose messages come in any order, late, twice, or never: nothing is lost, answered twice or kept.
import fc from 'fast-check';
import { expect, test } from 'vitest';
import type { InstanceEffect } from '../../src/cluster/effects.ts';
import { createLengthInstance, type LengthInstance, LengthRequest } from '../../src/cluster/length-work.ts';
import type { InstanceEvent } from '../../src/cluster/messages.ts';
import { RooflineCost } from '../../src/policy/cost/roofline.ts';
import { Float64Pool } from '../../src/util/float64-pool.ts';

const blockTokens = 16;
const cost = new RooflineCost({
  model: {
    layers: 2,
    hidden: 64,
    heads: 2,
    kvHeads: 2,
    headDim: 32,
    intermediate: 128,
    gated: true,
    vocabulary: 100,
    tiedHead: true,
  },
  device: {
    memoryBytes: 4e6,
    memoryBytesPerSecond: 1e9,
    operationsPerSecond: 1e10,
    linkBytesPerSecond: 1e9,
    linkUs: 1,
  },
  efficiency: { compute: 1, memory: 1, link: 1, stepUs: 100, layerUs: 10 },
  tensorParallel: 1,
  pipelineParallel: 1,
  weightBytes: 2,
  kvBytes: 2,
  kvMemoryShare: 1,
});

type Event = InstanceEvent<LengthRequest, undefined>;
type Effect = InstanceEffect<undefined, LengthRequest>;

/** Two instances that prefill and two that decode; whatever is under way comes when the test says. */
class HandOffWorld {
  readonly instances: readonly LengthInstance[];
  readonly heard = new Map<string, string[]>();
  readonly requests: LengthRequest[] = [];
  /** Under way. */
  readonly messages: { readonly to: number; readonly event: Event }[] = [];
  /** Steps in flight, by instance. */
  readonly steps = new Map<number, number>();
  /** Tokens on streams, by request. */
  readonly streamed = new Map<string, number>();
  nowUs = 0;

  constructor(layerWise: boolean, landingTokens: number) {
    const handOff = { layerWise, landingTokens, rechecks: false };
    const limits = { tokensMax: 64, logitRowsMax: 9, sequencesMax: 8, stepUsDecoding: 5_000, stepUsPrefill: 5_000 };
    const config = { cost, blockTokens, blocks: 20, eviction: 'lru', limits, coalesce: false, handOff } as const;
    this.instances = Array.from({ length: 4 }, () => createLengthInstance({ ...config, queueMax: 1_000 }));
  }

  submit(inputTokens: number, outputTokens: number): void {
    const index = this.requests.length;
    const trace = { index, arrivalUs: this.nowUs, inputTokens, outputTokens, blocks: new Int32Array(0) };
    const request = new LengthRequest(trace, blockTokens, new Float64Pool());
    this.requests.push(request);
    this.heard.set(request.id, []);
    this.messages.push({ to: index % 2, event: { kind: 'submit', request, decodeAt: 2 + (index % 3 === 0 ? 1 : 0) } });
  }

  cancel(id: string): void {
    for (let to = 0; to < 4; to++) this.messages.push({ to, event: { kind: 'cancel', id } });
  }

  /** One of the things that could happen next. */
  advance(choice: number, doubled: boolean, lost: boolean): boolean {
    const options = this.messages.length + this.steps.size;
    if (options === 0) return false;
    const at = choice % options;
    if (at < this.messages.length) {
      const message = this.messages[at];
      if (message !== undefined && !lost) this.tell(message.to, message.event);
      // A submit that comes again after its request has ended would be a new request.
      if (!doubled || lost || message?.event.kind === 'submit') this.messages.splice(at, 1);
    } else {
      const [to, step] = [...this.steps][at - this.messages.length] ?? [0, 0];
      this.steps.delete(to);
      this.tell(to, { kind: 'stepDone', step, result: undefined });
    }
    return true;
  }

  tell(to: number, event: Event): void {
    this.nowUs += 100;
    const instance = this.instances[to];
    for (const effect of instance?.step(this.nowUs, event) ?? []) this.#apply(to, effect);
    instance?.check();
  }

  #apply(from: number, effect: Effect): void {
    switch (effect.kind) {
      case 'runStep':
        this.steps.set(from, effect.step);
        break;
      case 'emit':
        if (effect.event.kind !== 'accepted') this.heard.get(effect.id)?.push(effect.event.kind);
        break;
      case 'send':
        this.messages.push({ to: effect.to, event: { kind: 'peer', from, message: effect.message } });
        break;
      case 'stream': {
        const { id, to, tokens, held } = effect;
        expect(tokens).toBeGreaterThanOrEqual(0);
        this.streamed.set(id, (this.streamed.get(id) ?? 0) + tokens);
        if (held !== undefined) this.messages.push({ to, event: { kind: 'landed', from, id, held } });
        break;
      }
      case 'fault':
        throw new Error(effect.message);
    }
  }

  /** Whatever is left to happen, in order; what is doubled ends some time. */
  finish(): void {
    for (let i = 0; i < 20_000 && this.advance(0, false, false); i++);
    expect([this.messages.length, this.steps.size]).toEqual([0, 0]);
  }

  pagesUsed(): number[] {
    return this.instances.map((instance) => instance.snapshot().pages.used);
  }
}

const request = fc.record({ input: fc.integer({ min: 1, max: 150 }), output: fc.integer({ min: 2, max: 12 }) });
const moves = fc.array(fc.record({ choice: fc.nat(1_000), doubled: fc.boolean(), cancel: fc.nat(60) }), {
  minLength: 200,
  maxLength: 400,
});

test('messages in any order, late or twice: every request is answered once, and everything is free in the end', () => {
  let whole = 0;
  fc.assert(
    fc.property(
      fc.array(request, { minLength: 1, maxLength: 12 }),
      moves,
      fc.boolean(),
      fc.constantFrom(160, 1_000),
      (requests, history, layerWise, landingTokens) => {
        const world = new HandOffWorld(layerWise, landingTokens);
        const cancelled = new Set<string>();
        for (const { input, output } of requests) world.submit(input, output);
        for (const { choice, doubled, cancel } of history) {
          if (cancel < requests.length && choice % 10 === 0) {
            cancelled.add(String(cancel));
            world.cancel(String(cancel));
          }
          world.advance(choice, doubled, false);
        }
        world.finish();
        expect(world.pagesUsed()).toEqual([0, 0, 0, 0]);
        for (const { id, trace } of world.requests) {
          const heard = world.heard.get(id) ?? [];
          expect(heard.filter((kind) => kind === 'finished').length).toBeLessThanOrEqual(1);
          if (cancelled.has(id)) continue;
          expect(heard).toEqual(['started', 'tokens', 'finished']);
          expect(world.streamed.get(id)).toBe(trace.inputTokens);
          whole++;
        }
      },
    ),
    { numRuns: 80, endOnFailure: true },
  );
  expect(whole).toBeGreaterThan(100);
});

test('messages that are lost keep their requests waiting, and a cancel of every leg frees all of it', () => {
  fc.assert(
    fc.property(fc.array(request, { minLength: 1, maxLength: 8 }), moves, (requests, history) => {
      const world = new HandOffWorld(true, 400);
      for (const { input, output } of requests) world.submit(input, output);
      for (const { choice, cancel } of history) world.advance(choice, false, cancel === 0);
      world.finish();
      for (const { id } of world.requests) world.cancel(id);
      world.finish();
      expect(world.pagesUsed()).toEqual([0, 0, 0, 0]);
      for (const heard of world.heard.values()) {
        expect(heard.filter((kind) => kind === 'finished').length).toBeLessThanOrEqual(1);
      }
    }),
    { numRuns: 60 },
  );
});

test('a prompt that could never land is refused, and both sides let go', () => {
  const world = new HandOffWorld(true, 40);
  world.submit(100, 5);
  world.finish();
  expect(world.heard.get('0')).toEqual(['started', 'failed']);
  expect(world.pagesUsed()).toEqual([0, 0, 0, 0]);
});
