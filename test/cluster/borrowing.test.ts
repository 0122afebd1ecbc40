// Instances with engines that borrow from one another, in any order of events: every key that a row sees is the right one, and all comes back.
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { BorrowWorld } from './borrow-world.ts';
import { expectedOutput, promptOf, request } from './world.ts';

const spec = fc.record({
  kind: fc.nat(4),
  /** Of 512 tokens. */
  ranges: fc.integer({ min: 0, max: 9 }),
  tokens: fc.integer({ min: 1, max: 511 }),
  output: fc.integer({ min: 1, max: 40 }),
  at: fc.nat(2),
  /** It comes, and is cancelled, after so many other things have happened. */
  after: fc.nat(300),
  cancelAfter: fc.option(fc.nat(2_000), { nil: undefined, freq: 4 }),
});

describe('instances that borrow', () => {
  it('serve a request that is longer than any pool', () => {
    const world = new BorrowWorld({ blocks: [72, 72, 72, 72], settles: true, seed: 1 });
    const long = request('long', promptOf(1, 7_168 - 64), { maxTokens: 64 });
    world.submit(long, 0);
    world.finish();
    const events = world.heard.get('long') ?? [];
    expect(tokensOf(events)).toEqual(expectedOutput(long).tokens);
    expect(world.remoteSteps).toBeGreaterThan(64);
    expect(world.unanswered).toBe(0);
  });

  it.each([true, false])('whatever else happens: settling %s', (settles) => {
    fc.assert(
      fc.property(
        fc.array(spec, { minLength: 1, maxLength: 8 }),
        fc.array(fc.nat(1_000_000), { minLength: 200, maxLength: 600 }),
        fc.option(fc.record({ instance: fc.nat(2), after: fc.nat(3_000) }), { nil: undefined, freq: 3 }),
        (specs, choices, death) => {
          const world = new BorrowWorld({ blocks: [72, 80, 100], settles, seed: choices[0] ?? 0 });
          const requests = specs.map(({ kind, ranges, tokens, output }, i) =>
            request(`r${i}`, promptOf(kind, Math.min(4_600, ranges * 512 + tokens)), { maxTokens: output }),
          );
          for (let turn = 0; turn < 4_000; turn++) {
            for (const [i, { at, after, cancelAfter = -1 }] of specs.entries()) {
              const one = requests[i];
              if (turn === after && one !== undefined && !world.dead.has(at)) world.submit(one, at);
              if (turn === after + cancelAfter) world.cancel(`r${i}`);
            }
            if (turn === death?.after) world.kill(death.instance);
            const choice = choices[turn % choices.length] ?? 0;
            world.advance(choice + turn, choice % 400, choice % 53 === 0);
          }
          world.finish();
          for (const one of requests) {
            const events = world.heard.get(one.id);
            if (events === undefined) continue;
            const last = events.at(-1);
            if (last?.kind === 'failed') expect(last.code).toBe('CONTEXT_TOO_LONG');
            else expect([one.id, tokensOf(events)]).toEqual([one.id, expectedOutput(one).tokens]);
          }
          expect(world.faults).toEqual([]);
        },
      ),
      { numRuns: 8 },
    );
  });
});

function tokensOf(events: readonly { readonly kind: string }[]): number[] {
  return events.flatMap((event) => ('tokens' in event ? [...(event.tokens as Int32Array)] : []));
}
