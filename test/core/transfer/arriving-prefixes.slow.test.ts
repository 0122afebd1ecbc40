// Requests that start ahead of their prefixes, beside block moves and host memory: every row reads the right keys.
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { pageTokens } from '../../../src/util/step.ts';
import { expectedOutput, promptOf, request } from '../instance-world.ts';
import { arbitraryCancel, arbitraryChoices, arbitraryFailure, runHistory } from '../lending/borrow-history.ts';
import { BorrowWorld } from '../lending/borrow-world.ts';

const patient = { patienceUs: 1e12, transferUs: 0 };

function cachedTokens(world: BorrowWorld, id: string): number | undefined {
  const started = world.events.get(id)?.find(({ kind }) => kind === 'started');
  return started?.kind === 'started' ? started.cachedTokens : undefined;
}

/** Computes prompts one after another. */
function compute(world: BorrowWorld, at: number, lengths: Readonly<Record<number, number>>): void {
  for (const [kind, length] of Object.entries(lengths)) {
    const id = `${kind}, ${length} at ${at}`;
    world.submit(request(id, promptOf(Number(kind), length), { maxTokens: 1 }), at);
    world.finish();
    expect(world.lastOf(id)?.kind).toBe('finished');
  }
}

const ahead = { aheadOfUse: true, patient: true };

describe('a request that starts ahead of its prefix', () => {
  it('starts while other blocks move to creditors', () => {
    const world = new BorrowWorld({ blocks: [72, 150], settles: true, seed: 1, ...ahead });
    compute(world, 1, { 3: 660 });
    const long = request('long', promptOf(1, 1_400), { maxTokens: 400 });
    world.submit(long, 0);
    world.until('a long prompt', () => world.tokensOf('long').length > 20);
    const follower = request('follower', promptOf(3, 740), { maxTokens: 300 });
    world.submit(follower, 0, { from: 1, blocks: 20, ...patient });
    world.finish();
    expect([world.prefixes.arrivedAhead, world.prefixes.missedAhead]).toEqual([1, 0]);
    expect(cachedTokens(world, 'follower')).toBe(20 * pageTokens);
    expect(world.totals[0]?.movedBlocks).toBeGreaterThan(0);
    for (const one of [long, follower]) expect(world.tokensOf(one.id)).toEqual(expectedOutput(one).tokens);
  });

  it('may exceed every instance', () => {
    const world = new BorrowWorld({ blocks: [72, 200], settles: true, seed: 1, ...ahead });
    compute(world, 1, { 3: 2_000 });
    const overlong = request('overlong', promptOf(3, 4_500), { maxTokens: 30 });
    world.submit(overlong, 0, { from: 1, blocks: 60, ...patient });
    world.finish();
    expect(world.prefixes.arrivedAhead).toBe(1);
    expect(cachedTokens(world, 'overlong')).toBe(60 * pageTokens);
    expect(world.totals[0]?.movedBlocks).toBeGreaterThan(0);
    expect(world.tokensOf('overlong')).toEqual(expectedOutput(overlong).tokens);
  });

  it('loads blocks from host memory, and the rest from another instance', () => {
    const tiers = { hostBlocks: 120, ssdBlocks: 0 };
    const world = new BorrowWorld({ blocks: [72, 150], settles: true, seed: 1, ...ahead, tiers });
    compute(world, 1, { 3: 1_600 });
    // The pool keeps some of its 25 blocks.
    compute(world, 0, { 3: 800 });
    compute(world, 0, { 4: 1_920 });
    const follower = request('follower', promptOf(3, 1_700), { maxTokens: 20 });
    world.submit(follower, 0, { from: 1, blocks: 50, ...patient });
    world.finish();
    expect([world.prefixes.arrivedAhead, world.prefixes.missedAhead]).toEqual([1, 0]);
    expect(world.prefixes.loadedPages).toBe(13 * 2);
    expect(cachedTokens(world, 'follower')).toBe(50 * pageTokens);
    expect(world.tokensOf('follower')).toEqual(expectedOutput(follower).tokens);
  });

  it('loads blocks from host memory, and the rest from SSD', () => {
    const tiers = { hostBlocks: 100, ssdBlocks: 200 };
    const world = new BorrowWorld({ blocks: [72, 72], settles: true, seed: 1, ...ahead, tiers });
    compute(world, 0, { 3: 1_600 });
    // Prefixes that were used as a whole leave host memory from their ends.
    compute(world, 0, { 3: 1_601, 4: 1_280, 5: 960 });
    world.until('all blocks are on SSD', () => world.instances[0]?.snapshot().tiers?.ssd.blocks === 50 + 40 + 30);
    for (let i = 0; i < 200; i++) world.advance(i, 200);
    const follower = request('follower', promptOf(3, 1_700), { maxTokens: 20 });
    world.submit(follower, 0);
    world.finish();
    expect([world.prefixes.arrivedAhead, world.prefixes.missedAhead]).toEqual([1, 0]);
    expect(world.prefixes.loadedPages).toBeGreaterThan(0);
    expect(cachedTokens(world, 'follower')).toBe(50 * pageTokens);
    expect(world.tokensOf('follower')).toEqual(expectedOutput(follower).tokens);
  });
});

const spec = fc.record({
  kind: fc.nat(1),
  tokens: fc.integer({ min: 1, max: 3_000 }),
  output: fc.integer({ min: 1, max: 30 }),
  at: fc.nat(2),
  /** The reported holder, and the number of blocks that it reports. */
  from: fc.nat(2),
  reported: fc.integer({ min: 20, max: 90 }),
  patienceUs: fc.constantFrom(5_000, 1e9),
  after: fc.nat(3_500),
  cancelAfter: arbitraryCancel,
});

it('reads the right keys among random events at instances that borrow, have tiers, and start requests ahead of use', () => {
  let [arrived, moved, loaded] = [0, 0, 0];
  fc.assert(
    fc.property(
      fc.array(spec, { minLength: 8, maxLength: 14 }),
      arbitraryChoices,
      arbitraryFailure,
      fc.constantFrom(undefined, { hostBlocks: 130, ssdBlocks: 0 }, { hostBlocks: 50, ssdBlocks: 300 }),
      (specs, choices, failure, tiers) => {
        const seed = choices[0] ?? 0;
        const world = new BorrowWorld({ blocks: [72, 80, 100], settles: true, seed, aheadOfUse: true, tiers });
        const arrivals = specs.map(({ kind, tokens, output, from, reported: blocks, patienceUs, ...when }, i) => ({
          ...when,
          request: request(`r${i}`, promptOf(kind, tokens), { maxTokens: output }),
          prefix: from === when.at ? undefined : { from, blocks, patienceUs, transferUs: 0 },
        }));
        runHistory(world, { arrivals, choices, failure, turns: 5_000, intervalUsMax: 200 });
        arrived += world.prefixes.arrivedAhead;
        loaded += world.prefixes.loadedPages;
        for (const { movedBlocks } of world.totals) moved += movedBlocks;
      },
    ),
    { numRuns: 12 },
  );
  expect(arrived).toBeGreaterThan(0);
  expect(moved).toBeGreaterThan(0);
  expect(loaded).toBeGreaterThan(0);
});
