// The steps of an engine from its streams: rows and times, prompts in chunks, tokens at once, and streams that end early.
import { describe, expect, it } from 'vitest';
import { StreamSteps } from '../../../src/core/fleet/stream-steps.ts';

const rowsOf = (steps: StreamSteps) =>
  steps.take().map(({ startedUs, endedUs, rows }) => [startedUs, endedUs, ...rows]);

describe('StreamSteps', () => {
  it('takes tokens that arrive together as one step, which begins with its first request or the end of the last step', () => {
    const steps = new StreamSteps();
    steps.forwarded(1_000, 'a', 100, 0);
    steps.forwarded(2_000, 'b', 50, 0);
    steps.started('b', 32);
    for (const [nowUs, id] of [
      [50_000, 'a'],
      [50_500, 'b'],
      [80_000, 'a'],
      [80_900, 'b'],
    ] as const)
      steps.received(nowUs, id, 1);
    steps.ended('a');
    steps.received(110_000, 'b', 1);
    steps.ended('b');
    expect(rowsOf(steps)).toEqual([
      [1_000, 50_000, ['a', 0, 100], ['b', 32, 18]],
      [50_000, 80_000, ['a', 100, 1], ['b', 50, 1]],
      [80_000, 110_000, ['b', 51, 1]],
    ]);
    steps.forwarded(200_000, 'c', 10, 0);
    steps.received(230_000, 'c', 1);
    steps.ended('c');
    expect(rowsOf(steps)).toEqual([[200_000, 230_000, ['c', 0, 10]]]);
  });

  it('spreads a prompt over the steps of others since it was forwarded, and holds them until then', () => {
    const steps = new StreamSteps();
    steps.forwarded(0, 'a', 10, 0);
    steps.received(10_000, 'a', 1);
    steps.received(20_000, 'a', 1);
    expect(rowsOf(steps)).toEqual([[0, 10_000, ['a', 0, 10]]]);
    steps.forwarded(15_000, 'b', 400, 0);
    // The step until 20 ms began before, and the one until 23 ms is too short.
    for (const nowUs of [23_000, 40_000, 60_000]) steps.received(nowUs, 'a', 1);
    steps.received(60_100, 'b', 1);
    expect(rowsOf(steps)).toEqual([]);
    steps.received(70_000, 'b', 1);
    expect(rowsOf(steps)).toEqual([
      [10_000, 20_000, ['a', 10, 1]],
      [20_000, 23_000, ['a', 11, 1]],
      [23_000, 40_000, ['a', 12, 1], ['b', 0, 184]],
      [40_000, 60_000, ['a', 13, 1], ['b', 184, 216]],
    ]);
  });

  it('divides the time of tokens that arrive at once, and keeps two tokens of a stream apart', () => {
    const steps = new StreamSteps();
    steps.forwarded(0, 'a', 10, 9);
    steps.forwarded(0, 'b', 10, 9);
    steps.received(9_000, 'a', 1);
    steps.received(9_000, 'b', 1);
    steps.received(19_000, 'a', 4);
    steps.received(19_000, 'b', 2);
    steps.received(19_500, 'a', 1);
    steps.ended('a');
    steps.ended('b');
    expect(rowsOf(steps)).toEqual([
      [0, 9_000, ['a', 9, 1], ['b', 9, 1]],
      [9_000, 11_500, ['a', 10, 1]],
      [11_500, 14_000, ['a', 11, 1]],
      [14_000, 16_500, ['a', 12, 1], ['b', 10, 1]],
      [16_500, 19_000, ['a', 13, 1], ['b', 11, 1]],
      [19_000, 19_500, ['a', 14, 1]],
    ]);
  });

  it('ignores tokens of requests that have ended, and holds a bounded number of steps for a prompt that stalls', () => {
    const steps = new StreamSteps();
    steps.forwarded(0, 'a', 10, 0);
    steps.forwarded(0, 'stalled', 10, 0);
    for (let i = 1; i <= 300; i++) steps.received(10_000 * i, 'a', 1);
    steps.ended('a');
    steps.received(9_999_999, 'a', 1);
    expect(steps.take().length).toBeGreaterThan(200);
    steps.ended('stalled');
    const rest = steps.take();
    expect(rest.length).toBeLessThan(100);
    expect(rest.every(({ rows }) => rows.every(([id]) => id === 'a'))).toBe(true);
  });
});
