// What streams show of an engine's times: prefills one after another and together, and gaps of decode steps.
import { describe, expect, it } from 'vitest';
import { StreamCosts } from '../../../src/core/fleet/stream-costs.ts';

describe('StreamCosts', () => {
  it('takes a prefill to begin after the one before it, and counts one step of two prompts once', () => {
    const costs = new StreamCosts();
    costs.forwarded(0, 'a', 100);
    costs.forwarded(1_000, 'b', 100);
    costs.forwarded(2_000, 'c', 100);
    expect([costs.received(50_000, 'a', 1), costs.received(80_000, 'b', 1)]).toEqual([50_000, 30_000]);
    expect([costs.received(80_500, 'c', 1), costs.received(90_000, 'a', 1)]).toEqual([0, undefined]);
    expect([costs.running, costs.waiting, costs.contextTokens]).toEqual([3, 0, 304]);
    for (const id of ['a', 'b', 'c', 'c']) costs.ended(100_000, id);
    expect([costs.running, costs.waiting, costs.contextTokens]).toEqual([0, 0, 0]);
  });

  it('learns decode steps from gaps in which no prefill was under way', () => {
    const costs = new StreamCosts();
    costs.forwarded(0, 'a', 100);
    costs.received(50_000, 'a', 1);
    for (let i = 1; i <= 200; i++) costs.received(50_000 + 20_000 * i, 'a', 1);
    expect(costs.steps.observed).toBe(200);
    const step = { rows: 1, keyRows: 300, decodeRows: 1, decodeKeys: 300, logitRows: 1 };
    expect(costs.steps.predictUs(step)).toBeCloseTo(20_000, -3);
    costs.forwarded(5_000_000, 'b', 1000);
    costs.received(5_100_000, 'a', 1);
    expect(costs.steps.observed).toBe(200);
    costs.ended(5_150_000, 'b');
    costs.received(5_200_000, 'a', 2);
    expect(costs.steps.observed).toBe(200);
    costs.received(5_240_000, 'a', 2);
    expect(costs.steps.observed).toBe(201);
  });
});
