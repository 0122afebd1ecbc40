// The instance machine: single requests, refusals, cancels, aborts and failures.
import { describe, expect, test } from 'vitest';
import { createTokenInstance } from '../../../src/core/instance/token-instance.ts';
import {
  baseConfig,
  expectComplete,
  expectedOutput,
  greedy,
  limits,
  promptOf,
  request,
  World,
} from '../instance-world.ts';

describe('one request', () => {
  test('is accepted, started, streamed and finished; its blocks stay cached', () => {
    const world = new World();
    const one = request('a', promptOf(1, 70), { maxTokens: 40 });
    world.submit(one);
    world.finishAll();
    expectComplete(world, one);
    expect(
      world
        .of('a')
        .events.map((event) => event.kind)
        .slice(0, 3),
    ).toEqual(['accepted', 'started', 'tokens']);
    // 109 tokens have keys and values: three full blocks of two pages.
    expect(world.instance.snapshot()).toMatchObject({
      waiting: 0,
      running: 0,
      pages: { total: 400, used: 0, cached: 6, free: 394 },
      promptTokens: 70,
      cachedTokens: 0,
      computedPromptTokens: 70,
      generatedTokens: 40,
      preemptions: 0,
    });
  });

  test('a repeated prompt takes all full blocks but that of its last token from the cache', () => {
    const world = new World();
    for (const [id, length, cached] of [
      ['a', 64, 0],
      ['b', 64, 32],
      ['c', 65, 64],
      ['d', 97, 64],
    ] as const) {
      const one = request(id, promptOf(1, length));
      world.submit(one);
      world.finishAll();
      expectComplete(world, one);
      expect(world.of(id).events[1]).toEqual({ kind: 'started', cachedTokens: cached });
    }
  });

  test('a resumed request counts its prompt as cached, without the output of its earlier attempt', () => {
    const world = new World();
    const first = request('a', promptOf(1, 40), { maxTokens: 120 });
    world.submit(first);
    world.finishAll();
    const tokens = Int32Array.from(expectedOutput(first).tokens.slice(0, 100));
    world.submit(request('b', promptOf(1, 40), { maxTokens: 120, resumed: { tokens, scored: 0 } }));
    world.finishAll();
    expect(world.of('b').events[1]).toEqual({ kind: 'started', cachedTokens: 40 });
    expect(world.instance.snapshot()).toMatchObject({ promptTokens: 80, cachedTokens: 40 });
  });

  test('generated tokens are cached for the next turn', () => {
    const world = new World();
    const first = request('a', promptOf(1, 40), { maxTokens: 60 });
    world.submit(first);
    world.finishAll();
    const next = request('b', [...first.prompt, ...expectedOutput(first).tokens, ...promptOf(2, 9)]);
    world.submit(next);
    world.finishAll();
    expectComplete(world, next);
    expect(world.of('b').events[1]).toEqual({ kind: 'started', cachedTokens: 96 });
  });

  test('a prompt with another salt shares nothing', () => {
    const world = new World();
    world.submit(request('a', promptOf(1, 100)), request('b', promptOf(1, 100), { salt: 'other' }));
    world.finishAll();
    world.submit(request('c', promptOf(1, 100), { salt: 'third' }));
    world.finishAll();
    expect(world.instance.snapshot().cachedTokens).toBe(0);
  });

  test('stops at a stop token, which it reports', () => {
    const world = new World();
    const free = expectedOutput(request('x', promptOf(3, 20), { maxTokens: 30 })).tokens;
    const one = request('a', promptOf(3, 20), { maxTokens: 30, stopTokenIds: [-1, free[7] as number] });
    world.submit(one);
    world.finishAll();
    expectComplete(world, one);
    expect(world.of('a').tokens.at(-1)).toBe(free[7]);
    expect(world.lastOf('a')).toEqual({ kind: 'finished', reason: 'stop' });
  });

  test('with no tokens to generate, computes its prompt and ends', () => {
    const world = new World();
    const one = request('a', promptOf(3, 50), {
      maxTokens: 0,
      sampling: { ...greedy, promptLogprobs: true, topLogprobs: 2 },
    });
    const two = request('b', promptOf(4, 50), { maxTokens: 0 });
    world.submit(one, two);
    world.finishAll();
    for (const each of [one, two]) expectComplete(world, each);
    expect(world.instance.snapshot().generatedTokens).toBe(0);
  });

  test('scores its prompt in pieces of at most 64 rows, from no cache, and leaves its blocks to others', () => {
    const world = new World();
    const sampling = { ...greedy, promptLogprobs: true, topLogprobs: 3 };
    world.submit(request('warm', promptOf(5, 200)));
    world.finishAll();
    const scored = request('a', promptOf(5, 300), { sampling });
    world.submit(scored);
    world.finishAll();
    expectComplete(world, scored);
    const pieces = world.of('a').events.filter((event) => event.kind === 'prompt-logprobs');
    expect(Math.max(...pieces.map((event) => event.logprobs.logprobs.length))).toBe(64);
    expect(world.of('a').events[1]).toEqual({ kind: 'started', cachedTokens: 0 });
    world.submit(request('b', promptOf(5, 300)));
    expect(world.of('b').events[1]).toEqual({ kind: 'started', cachedTokens: 288 });
  });

  test('carries its penalties, bias, seed and alternatives in every step', () => {
    const world = new World();
    const sampling = {
      ...greedy,
      repetitionPenalty: 1.1,
      logitBias: [[3, 2] as const, [4, -1] as const],
      topLogprobs: 5,
    };
    const requests = [0, 1, 2].map((i) =>
      request(`r${i}`, promptOf(i, 50), { maxTokens: 50, sampling: i === 2 ? greedy : { ...sampling, seed: [i, 7] } }),
    );
    world.submit(...requests);
    world.finishAll();
    for (const one of requests) expectComplete(world, one);
  });
});

describe('refusals', () => {
  test('a full queue refuses with 429 and figures, and accepts again when a request ends', () => {
    const world = new World({ queueMax: 3 });
    world.submit(...['a', 'b', 'c', 'd'].map((id, i) => request(id, promptOf(i, 20))));
    expect(world.of('d').events).toEqual([
      {
        kind: 'failed',
        code: 'KV_OVERLOADED',
        message: 'Cannot admit request: 3 of at most 3 requests are being served, try again in 1000 ms',
        retryAfterMs: 1000,
        cause: { at: 'prefill', reason: 'queue', accepted: 3, queueMax: 3 },
      },
    ]);
    world.cancel('a');
    world.submit(request('e', promptOf(1, 20)));
    expect(world.of('e').events[0]).toEqual({ kind: 'accepted' });
    world.finishAll();
  });

  test('a request larger than the pool is refused with figures, whatever is free', () => {
    const world = new World({ pages: 2 * 4 });
    world.submit(
      request('fits', promptOf(1, 100), { maxTokens: 29 }),
      request('not', promptOf(1, 100), { maxTokens: 30 }),
    );
    expect(world.lastOf('not')).toEqual({
      kind: 'failed',
      code: 'CONTEXT_TOO_LONG',
      message:
        'Cannot admit request: it is longer than the KV memory: 100 prompt tokens and up to 30 of output, 128 fit',
      retryAfterMs: undefined,
      cause: { at: 'prefill', reason: 'length', promptTokens: 100, outputTokensMax: 30, capacityTokens: 128 },
    });
    world.finishAll();
    expect(world.of('fits').tokens).toHaveLength(29);
  });

  test('limits that cannot hold a step are refused immediately', () => {
    const config = { ...baseConfig, limits: { ...limits, tokensMax: 40, sequencesMax: 16 } };
    expect(() => createTokenInstance(config)).toThrow(
      'Cannot batch: 16 sequences require 48 rows and 17 with logits: 40 and 96 given',
    );
  });
});

describe('cancel, abort, failure', () => {
  test('a cancel during prefill aborts the step and frees all blocks; other requests continue', () => {
    const world = new World();
    const other = request('b', promptOf(2, 90));
    world.submit(request('a', promptOf(1, 600)), other);
    world.cancel('a');
    expect(world.abortRequests).toBe(1);
    expect(world.instance.snapshot().pages.used).toBeGreaterThan(0);
    world.abortStep(50);
    expect(world.of('a').events.map((event) => event.kind)).toEqual(['accepted', 'started']);
    world.finishAll();
    expectComplete(world, other);
    expect(world.instance.snapshot().pages.used).toBe(0);
  });

  test('a cancel that races with the end of its step frees all blocks', () => {
    const world = new World();
    world.submit(request('a', promptOf(1, 20)));
    world.cancel('a');
    world.finishStep();
    expect(world.running).toBeUndefined();
    expect(world.instance.snapshot()).toMatchObject({ waiting: 0, running: 0, pages: { used: 0 } });
    expect(world.of('a').tokens).toEqual([]);
  });

  test('cancels in a row do not abort other requests without end', () => {
    const world = new World({ pages: 4000 });
    const victim = request('victim', promptOf(1, 300));
    world.submit(victim);
    let aborted = 0;
    for (let i = 0; world.of('victim').tokens.length === 0; i++) {
      expect(i).toBeLessThan(50);
      world.submit(request(`x${i}`, promptOf(2 + i, 40)));
      if (world.abortRequests > aborted) world.abortStep(1000);
      else world.finishStep();
      aborted = world.abortRequests;
      // The new request now runs beside the victim.
      world.cancel(`x${i}`);
    }
    expect(aborted).toBeGreaterThan(0);
    while (world.running !== undefined) world.finishStep();
    world.finishAll();
    expectComplete(world, victim);
  });

  test('late, doubled and unknown events change nothing and are ignored with a reason', () => {
    const world = new World();
    const one = request('a', promptOf(1, 20));
    world.submit(one, one);
    world.cancel('unknown');
    const plan = world.running?.plan;
    world.deliver({ kind: 'stepAborted', step: 77 });
    world.finishStep();
    if (plan === undefined) throw new Error('No step was planned');
    world.deliver({ kind: 'stepFailed', step: 1, message: 'late' });
    world.finishAll();
    world.deliver({ kind: 'stepAborted', step: 4 });
    world.submit(one, request('unknown', promptOf(2, 20)));
    expect(world.ignored).toEqual([
      'Ignored submit: request a is already known',
      'Ignored cancel: request unknown is not live',
      'Ignored stepAborted: step 77 is not in flight: step 1 is',
      'Ignored stepFailed: step 1 is not in flight: step 2 is',
      'Ignored stepAborted: step 4 is not in flight: none is',
      'Ignored submit: request a is already known',
      'Ignored submit: request unknown is already known',
    ]);
    expectComplete(world, one);
  });

  test('a failed step fails its own requests only, with a message without internals', () => {
    const world = new World({ limits: { ...limits, sequencesMax: 2 } });
    const others = request('c', promptOf(3, 30));
    world.submit(request('a', promptOf(1, 30)));
    world.submit(request('b', promptOf(2, 30)), others);
    world.finishStep();
    world.failStep('bus error');
    expect(world.faults).toEqual(['Cannot run a step: bus error: step 2, 2 requests, 31 rows']);
    for (const id of ['a', 'b']) {
      expect(world.lastOf(id)).toEqual({
        kind: 'failed',
        code: 'ENGINE_FAILED',
        message: 'Cannot generate: the engine failed: step 2, 2 requests, 31 rows',
        retryAfterMs: undefined,
      });
    }
    world.finishAll();
    expectComplete(world, others);
  });

  test('a row with logits that are not finite fails alone and leaves nothing in the cache', () => {
    const world = new World();
    const good = request('b', promptOf(2, 40));
    world.submit(request('a', promptOf(1, 40)));
    world.submit(good);
    world.finishStep();
    const running = world.running;
    if (running === undefined) throw new Error('No step was planned');
    world.running = undefined;
    const result = world.engine.run(running.plan);
    result.failed[0] = 1;
    world.deliver({ kind: 'stepDone', step: running.step, result });
    expect(world.lastOf('a')).toMatchObject({
      code: 'ENGINE_FAILED',
      message: "Cannot generate: the model's logits are not finite: after 41 tokens",
    });
    world.finishAll();
    expectComplete(world, good);
    world.submit(request('again', promptOf(1, 40)));
    expect(world.of('again').events[1]).toEqual({ kind: 'started', cachedTokens: 0 });
  });
});
