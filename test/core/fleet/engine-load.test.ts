// The load of other gateways and clients at an engine, from what it reports and what this gateway has sent.
import fc from 'fast-check';
import { expect, it } from 'vitest';
import { OthersLoad, type OwnCalls } from '../../../src/core/fleet/engine-load.ts';

const none: OwnCalls = { calls: 0, unstarted: 0, startedTokens: 0, promptTokens: 0 };
const empty = { prefills: [], rows: 0, tokens: 0 };

it('is what the engine reports beyond the own calls', () => {
  const others = new OthersLoad(1_000);
  expect(others.othersIn({ running: 0, waiting: 0, usage: 0 }, none)).toEqual(empty);
  // The own call decodes 100 tokens; two of others decode 500, and three wait.
  const own = { calls: 1, unstarted: 0, startedTokens: 100, promptTokens: 90 };
  expect(others.othersIn({ running: 3, waiting: 3, usage: 0.6 }, own)).toEqual({
    prefills: [{ priority: 0, prompts: 3, tokens: 750 }],
    rows: 2,
    tokens: 500,
  });
});

it('counts waiting prompts as long as own ones while no other request runs', () => {
  const own = { calls: 2, unstarted: 1, startedTokens: 300, promptTokens: 600 };
  expect(new OthersLoad(1_000).othersIn({ running: 1, waiting: 5, usage: 0.3 }, own)).toEqual({
    prefills: [{ priority: 0, prompts: 4, tokens: 1_200 }],
    rows: 0,
    tokens: 0,
  });
});

it('does not take own calls that have ended since the engine counted for those of others', () => {
  const others = new OthersLoad(1_000);
  for (let calls = 1; calls <= 4; calls++) others.callBegan(calls);
  const reading = { running: 4, waiting: 0, usage: 0.4 };
  expect(others.othersIn(reading, none)).toEqual(empty);
  // A reading that took long describes the time before the last one.
  expect(others.othersIn(reading, none)).toEqual(empty);
  expect(others.othersIn(reading, none)).toEqual({ prefills: [], rows: 4, tokens: 400 });
});

it('has whole numbers, and no tokens without requests, whatever an engine reports', () => {
  const count = fc.nat({ max: 1_000 });
  const reading = fc.record({ running: count, waiting: count, usage: fc.double({ min: 0, max: 1, noNaN: true }) });
  const own = fc.record({ calls: count, unstarted: count, startedTokens: count, promptTokens: count });
  fc.assert(
    fc.property(reading, own, (load, calls) => {
      const { prefills, rows, tokens } = new OthersLoad(5_000).othersIn(load, calls);
      const prompts = prefills.reduce((sum, each) => sum + each.prompts, 0);
      expect(prompts + rows).toBeLessThanOrEqual(load.running + load.waiting);
      expect(tokens >= rows && (rows > 0 || tokens === 0)).toBe(true);
      for (const each of prefills) expect(each.tokens).toBeGreaterThanOrEqual(each.prompts);
      expect([rows, tokens, ...prefills.map((each) => each.tokens)].every(Number.isInteger)).toBe(true);
    }),
  );
});
