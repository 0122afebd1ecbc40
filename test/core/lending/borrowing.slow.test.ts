// Instances with engines that borrow memory from one another, under any order of events: each row sees the right keys,
// and all memory is returned.
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { GenerationRequest } from '../../../src/core/protocol/ports.ts';
import { expectedOutput, promptOf, request } from '../instance-world.ts';
import { arbitraryCancel, arbitraryChoices, arbitraryFailure, runHistory } from './borrow-history.ts';
import { BorrowWorld, rangeBlocks } from './borrow-world.ts';

const spec = fc.record({
  kind: fc.nat(4),
  /** Two attention ranges, 512 tokens. */
  ranges: fc.integer({ min: 0, max: 9 }),
  tokens: fc.integer({ min: 1, max: 511 }),
  output: fc.integer({ min: 1, max: 40 }),
  at: fc.nat(2),
  after: fc.nat(300),
  cancelAfter: arbitraryCancel,
});

describe('borrowing instances', () => {
  it('serve a request that is longer than every pool', () => {
    const world = new BorrowWorld({ blocks: [64, 64, 64, 64], settles: true, seed: 1 });
    const long = request('long', promptOf(1, 7_168 - 64), { maxTokens: 64 });
    world.submit(long, 0);
    world.finish();
    expect(world.tokensOf('long')).toEqual(expectedOutput(long).tokens);
    expect(world.remoteSteps).toBeGreaterThan(64);
    expect(world.unanswered).toBe(0);
  });

  it('start the next turn of a long chat from blocks cached at home and at creditors', () => {
    const world = new BorrowWorld({ blocks: [64, 64, 64, 64], settles: true, seed: 1 });
    const turns = [5_000, 5_600, 6_400].map((length, turn) =>
      request(`turn ${turn}`, promptOf(1, length), { maxTokens: 40 }),
    );
    const cached = turns.map((turn) => {
      world.submit(turn, 0);
      world.until('an end', () => world.lastOf(turn.id)?.kind === 'finished');
      expect(world.tokensOf(turn.id)).toEqual(expectedOutput(turn).tokens);
      const started = (world.events.get(turn.id) ?? []).find(({ kind }) => kind === 'started');
      return started?.kind === 'started' ? started.cachedTokens : undefined;
    });
    expect(cached[0]).toBe(0);
    // Everything except the first blocks that stayed at home: less than half of its memory.
    expect(cached[1]).toBeGreaterThan(5_000 - 1_024);
    expect(cached[2]).toBeGreaterThan(5_600 - 1_024);
    // Blocks at home from the start of the prompt are found by any request.
    const short = request('short', promptOf(1, 1_500), { maxTokens: 4 });
    world.submit(short, 0);
    world.until('an end', () => world.lastOf('short')?.kind === 'finished');
    const [, started] = world.events.get('short') ?? [];
    expect(started).toMatchObject({ kind: 'started' });
    expect(started?.kind === 'started' && started.cachedTokens).toBeGreaterThanOrEqual(512);
    world.finish();
  });

  it('serve a request that exceeds all device memory with host memory of their own and of others', () => {
    const world = new BorrowWorld({ blocks: [72, 72], hostBlocks: 64, settles: true, seed: 1 });
    const long = request('long', promptOf(1, 6_000), { maxTokens: 40 });
    world.submit(long, 0);
    world.finish();
    expect(world.tokensOf('long')).toEqual(expectedOutput(long).tokens);
    // The other instances lend 64 device blocks and its own pool has 72: the request needs 189.
    expect(world.totals[0]?.hostBlocks).toBeGreaterThanOrEqual(189 - 72 - 64);
    expect(world.unanswered).toBe(0);
  });

  /**
   * First one instance runs short beside a long request, then the other: each holds memory of the other when the long
   * requests end.
   */
  function entangled(
    settles: boolean,
    seed: number,
  ): { readonly world: BorrowWorld; readonly long: readonly GenerationRequest[] } {
    const world = new BorrowWorld({ blocks: [72, 72], settles, seed, changes: { lowWaterBlocks: 10 } });
    const long = [0, 1].map((at) => request(`long${at}`, promptOf(at, 1_290), { maxTokens: 500 }));
    const short = [700, 480].map((length, at) => request(`short${at}`, promptOf(5 + at, length), { maxTokens: 60 }));
    for (const at of [0, 1]) {
      const [one, other] = [long[at], short[at]];
      if (one === undefined || other === undefined) throw new Error('There are two of each');
      world.submit(one, at);
      world.until('a long prompt', () => world.tokensOf(one.id).length > 0);
      world.submit(other, at);
      world.until('a short request', () => world.lastOf(other.id)?.kind === 'finished');
    }
    return { world, long };
  }

  it.each([1, 2])('settle debt cycles and bring contents home: seed %i', (seed) => {
    const { world, long } = entangled(true, seed);
    world.until('a settlement', () => world.totals.every(({ remoteBlocks }) => remoteBlocks === 0));
    expect(world.settlements).toBeGreaterThan(0);
    expect(world.totals.map(({ settledBlocks: homeBlocks }) => homeBlocks)).toEqual([rangeBlocks, rangeBlocks]);
    world.finish();
    for (const one of long) expect(world.tokensOf(one.id)).toEqual(expectedOutput(one).tokens);
    expect(world.faults).toEqual([]);
  });

  it('compute over remote blocks when nothing settles', () => {
    const { world, long } = entangled(false, 1);
    expect(world.totals.some(({ remoteBlocks }) => remoteBlocks > 0)).toBe(true);
    world.finish();
    for (const one of long) expect(world.tokensOf(one.id)).toEqual(expectedOutput(one).tokens);
  });

  it.each([true, false])('stay correct under random histories: settling %s', (settles) => {
    fc.assert(
      fc.property(
        fc.array(spec, { minLength: 1, maxLength: 8 }),
        arbitraryChoices,
        arbitraryFailure,
        (specs, choices, failure) => {
          const world = new BorrowWorld({ blocks: [72, 80, 100], hostBlocks: 40, settles, seed: choices[0] ?? 0 });
          const arrivals = specs.map(({ kind, ranges, tokens, output, ...when }, i) => {
            const prompt = promptOf(kind, Math.min(4_600, ranges * 512 + tokens));
            return { ...when, request: request(`r${i}`, prompt, { maxTokens: output }) };
          });
          runHistory(world, { arrivals, choices, failure, turns: 4_000, intervalUsMax: 400 });
        },
      ),
      { numRuns: 8 },
    );
  });
});
