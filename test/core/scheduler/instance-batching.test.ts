// Many requests in one instance: what they share, which runs first, and which is preempted.
import { describe, expect, test } from 'vitest';
import { pageTokens } from '../../../src/util/step.ts';
import { expectComplete, limits, promptOf, request, World } from '../instance-world.ts';

describe('many requests at once', () => {
  test('eight requests that start together compute little more than one prompt', () => {
    const world = new World({ pages: 4000 });
    const shared = promptOf(9, 1000);
    const requests = Array.from({ length: 8 }, (_, i) => request(`r${i}`, [...shared, ...promptOf(20 + i, 16)]));
    world.submit(...requests);
    world.finishAll();
    for (const one of requests) expectComplete(world, one);
    // 31 full blocks are shared; each computes the 24 tokens after them.
    expect(world.instance.snapshot().computedPromptTokens).toBe(1016 + 7 * 24);
    expect(world.instance.snapshot().cachedTokens).toBe(7 * 992);
  });

  test('requests that arrive with the first token of the first one compute only their own blocks', () => {
    const world = new World({ pages: 4000 });
    const shared = promptOf(9, 1000);
    world.submit(request('first', [...shared, ...promptOf(20, 16)], { maxTokens: 50 }));
    while (world.of('first').tokens.length === 0) world.finishStep();
    world.submit(...Array.from({ length: 7 }, (_, i) => request(`r${i}`, [...shared, ...promptOf(21 + i, 16)])));
    world.finishAll();
    for (let i = 0; i < 7; i++) expect(world.of(`r${i}`).events[1]).toEqual({ kind: 'started', cachedTokens: 992 });
  });

  test('other requests do not wait for a prompt that they do not share', () => {
    const world = new World({ pages: 4000 });
    world.submit(
      request('long', promptOf(1, 3000)),
      request('same', promptOf(1, 3000)),
      request('short', promptOf(2, 30)),
    );
    while (world.of('short').tokens.length === 0) world.finishStep();
    expect(world.of('long').tokens).toEqual([]);
    expect(world.stepRows.length).toBeLessThan(4);
    world.finishAll();
    expect(world.instance.snapshot().cachedTokens).toBe(93 * pageTokens);
  });

  test('a long step is for a prompt without company: beside another request it is split', () => {
    const split = { ...limits, stepUsDecoding: 10_000, stepUsPrefill: 10_000 };
    const world = new World({ pages: 400, limits: { ...split, stepUsAlone: 60_000 } });
    world.submit(request('alone', promptOf(1, 128), { maxTokens: 30 }));
    world.finishStep();
    expect(world.of('alone').tokens).toHaveLength(1);
    world.submit(request('next', promptOf(2, 128)));
    world.finishStep();
    world.finishStep();
    expect(world.of('next').tokens).toEqual([]);
    world.finishAll();
    const without = new World({ pages: 400, limits: split });
    without.submit(request('alone', promptOf(1, 128)));
    without.finishStep();
    expect(without.of('alone').tokens).toEqual([]);
    without.finishAll();
    for (const [id, among] of [
      ['alone', world],
      ['next', world],
      ['alone', without],
    ] as const)
      expect(among.of(id).events.at(-1)).toMatchObject({ kind: 'finished' });
  });

  test('the next request computes a shared prefix when the one that computes it is cancelled', () => {
    const world = new World({ pages: 4000 });
    const requests = ['a', 'b', 'c'].map((id, i) => request(id, [...promptOf(9, 1000), i, i]));
    world.submit(...requests);
    world.finishStep();
    world.cancel('a');
    world.abortStep(10);
    world.finishAll();
    for (const one of requests.slice(1)) expectComplete(world, one);
    expect(world.instance.snapshot().computedPromptTokens).toBeLessThan(1.2 * 1002);
    expect(world.of('a').events.map((event) => event.kind)).toEqual(['accepted', 'started']);
  });

  test('a higher priority goes first, and arrival decides among equals', () => {
    const world = new World({ limits: { ...limits, tokensMax: 64, sequencesMax: 2 } });
    world.submit(request('running', promptOf(0, 60), { maxTokens: 30 }));
    world.submit(request('b', promptOf(1, 60)), request('c', promptOf(2, 60)));
    world.submit(request('urgent', promptOf(3, 60), { priority: 5 }));
    const firsts: string[] = [];
    while (world.running !== undefined) {
      world.finishStep();
      for (const [id, { tokens }] of world.received) if (tokens.length > 0 && !firsts.includes(id)) firsts.push(id);
    }
    expect(firsts).toEqual(['running', 'urgent', 'b', 'c']);
  });

  test('a request of higher priority does not wait for blocks that one of lower priority computes', () => {
    const world = new World({ pages: 4000 });
    world.submit(request('low', promptOf(1, 2000), { priority: -1 }));
    world.submit(request('middle', promptOf(2, 2000)), request('urgent', promptOf(1, 2000), { priority: 1 }));
    while (world.of('urgent').tokens.length === 0) world.finishStep();
    expect([...world.of('low').tokens, ...world.of('middle').tokens]).toEqual([]);
    world.finishAll();
  });

  test('a request of higher priority preempts the lowest one, which ends later with the same tokens', () => {
    const world = new World({ pages: 2 * 8, limits: { ...limits, sequencesMax: 4 } });
    const low = request('low', promptOf(1, 150), { maxTokens: 60, priority: -1 });
    world.submit(low);
    for (let i = 0; i < 5; i++) world.finishStep();
    const high = request('high', promptOf(2, 150), { maxTokens: 60 });
    world.submit(high);
    while (world.of('high').tokens.length < 60) world.finishStep();
    expect(world.of('low').tokens.length).toBeLessThan(60);
    world.finishAll();
    for (const one of [low, high]) expectComplete(world, one);
    expect(world.instance.snapshot().preemptions).toBe(1);
  });

  test('requests preempt the latest one when pages run out, and all end', () => {
    const world = new World({ pages: 2 * 10 });
    const requests = Array.from({ length: 6 }, (_, i) => request(`r${i}`, promptOf(i, 40), { maxTokens: 200 }));
    world.submit(...requests);
    world.finishAll();
    for (const one of requests) expectComplete(world, one);
    expect(world.instance.snapshot().preemptions).toBeGreaterThan(0);
    expect(world.instance.snapshot().pages.used).toBe(0);
  });

  test('a long prompt leaves a share of every chunk to short prompts behind it', () => {
    const world = new World({ pages: 4000 });
    world.submit(request('long', promptOf(1, 4000)));
    world.submit(...Array.from({ length: 5 }, (_, i) => request(`s${i}`, promptOf(2 + i, 20))));
    for (let i = 0; i < 6; i++) world.finishStep();
    for (let i = 0; i < 5; i++) expect(world.lastOf(`s${i}`)?.kind).toBe('finished');
    expect(world.of('long').tokens).toEqual([]);
    world.finishAll();
  });
});
