// Instances of models with sliding windows: their pages, and the same outputs as without windows.
import { describe, expect, test } from 'vitest';
import { pageTokens } from '../../../src/util/step.ts';
import { expectComplete, expectedOutput, limits, promptOf, request, World } from '../instance-world.ts';

const windows = [{ layers: 2, window: 64 }];
const mixed = [
  { layers: 3, window: 64 },
  { layers: 1, window: undefined },
];
/** Window blocks at once, while one token is computed. */
const windowBlocks = 64 / pageTokens + 1;

describe('a model with windows only', () => {
  test('serves a sequence that is longer than its pages, a window and a chunk of them at a time', () => {
    const pages = 2 * (windowBlocks + 4);
    const world = new World({ pages, groups: windows });
    expect(world.instance.capacityTokens).toBe(Number.POSITIVE_INFINITY);
    const one = request('a', promptOf(1, 2000), { maxTokens: 300 });
    world.submit(one);
    while (world.of('a').tokens.length === 0) world.finishStep();
    expect(world.usedPagesMax).toBeLessThanOrEqual(pages);
    world.usedPagesMax = 0;
    world.finishAll();
    expectComplete(world, one);
    expect(world.usedPagesMax).toBe(2 * windowBlocks);
    expect(world.instance.snapshot().pages.used).toBe(0);
  });

  test('runs many long sequences at once where whole ones would not fit', () => {
    const world = new World({ pages: 2 * 40, groups: windows });
    const requests = Array.from({ length: 8 }, (_, i) => request(`r${i}`, promptOf(i, 500), { maxTokens: 200 }));
    world.submit(...requests);
    let together = 0;
    while (world.running !== undefined) {
      world.finishStep();
      together = Math.max(together, world.instance.snapshot().running);
    }
    for (const one of requests) expectComplete(world, one);
    expect(together).toBe(8);
    expect(world.instance.snapshot().preemptions).toBe(0);
  });

  test('refuses a request that exceeds the pages, if these are fewer than a window', () => {
    const world = new World({ pages: 2 * (windowBlocks - 1), groups: windows });
    const fits = request('fits', promptOf(1, 60));
    world.submit(fits, request('not', promptOf(1, 62)));
    expect(world.lastOf('not')).toMatchObject({ code: 'CONTEXT_TOO_LONG', message: expect.stringContaining('64 fit') });
    world.finishAll();
    expectComplete(world, fits);
  });
});

describe('a model with and without windows', () => {
  test('holds all blocks of groups without a window, and the window of the others', () => {
    const world = new World({ groups: mixed });
    const one = request('a', promptOf(1, 600), { maxTokens: 100 });
    world.submit(one);
    while (world.of('a').tokens.length === 0) world.finishStep();
    world.usedPagesMax = 0;
    world.finishAll();
    expectComplete(world, one);
    // 699 tokens have keys and values.
    expect(world.usedPagesMax).toBe(22 + 3 * windowBlocks);
  });

  test('computes a prefix that eight requests share once, and the next turn finds the blocks of the last', () => {
    const world = new World({ pages: 4000, groups: mixed });
    const shared = promptOf(9, 1000);
    const requests = Array.from({ length: 8 }, (_, i) => request(`r${i}`, [...shared, ...promptOf(20 + i, 16)]));
    world.submit(...requests);
    world.finishAll();
    for (const one of requests) expectComplete(world, one);
    expect(world.instance.snapshot().computedPromptTokens).toBe(1016 + 7 * 24);
    const [first] = requests;
    const next = request('next', [...first.prompt, ...expectedOutput(first).tokens, ...promptOf(2, 20)]);
    world.submit(next);
    world.finishAll();
    expectComplete(world, next);
    expect(world.of('next').events[1]).toEqual({ kind: 'started', cachedTokens: 992 });
  });

  test('a request as long as the capacity ends, whichever requests ran before it', () => {
    // 3 window blocks of 3 pages, 20 blocks of one.
    const world = new World({ pages: 3 * windowBlocks + 20, groups: mixed, limits: { ...limits, sequencesMax: 4 } });
    expect(world.instance.capacityTokens).toBe(20 * pageTokens);
    const others = [0, 1, 2].map((i) => request(`r${i}`, promptOf(i, 100), { maxTokens: 60 }));
    const long = request('long', promptOf(7, 500), { maxTokens: 141, priority: 1 });
    world.submit(...others, long);
    world.finishAll();
    for (const one of [...others, long]) expectComplete(world, one);
    expect(world.instance.snapshot().pages.used).toBe(0);
  });
});
