// Prefill times of live instances: by the reported step cost, corrected by prompts that ran alone.
import { expect, test } from 'vitest';
import { PrefillTimes } from '../../../src/core/cost/prefill-times.ts';
import { PrefillObserver } from '../../../src/core/router/placement/prefill-observer.ts';

/** 1 ms a step, 100 us a row, 10 ns a key; units as in `StepCost`. */
const stepCost = [1_000, 256 * 100, 65_536 * 0.01, 0, 0];
/** Rows, and the keys that they attend to behind a prefix. */
const stepsUs = (steps: number, rows: number, cached: number) =>
  1_000 * steps + 100 * rows + 0.01 * (rows * (cached + 1) + (rows * (rows - 1)) / 2);

test('after a first prompt of 3 tokens, the prediction for 8,000 is not a thousand times as long', () => {
  const [times] = PrefillTimes.of([0], 1_024);
  times?.observe(3, 0, 12_000);
  expect(times?.prefillUs(8_000, 0)).toBeLessThan(12_000 * 250);
  expect(times?.prefillUs(3, 0)).toBeGreaterThan(12_000 / 4);
});

test('predictions are the steps of the chunks behind the prefix, with the quadratic term of attention', () => {
  const [times] = PrefillTimes.of([0], 1_000);
  times?.setStepCost(stepCost);
  expect(times?.prefillUs(2_000, 0)).toBeCloseTo(stepsUs(2, 2_000, 0), 3);
  expect(times?.prefillUs(9_000, 8_000)).toBeCloseTo(stepsUs(1, 1_000, 8_000), 3);
  // Observed times are a tenth longer: messages, and the time between steps.
  for (let i = 0; i < 50; i++) times?.observe(1_000, 0, 1.1 * stepsUs(1, 1_000, 0));
  expect(times?.prefillUs(9_000, 8_000)).toBeCloseTo(1.1 * stepsUs(1, 1_000, 8_000), 0);
});

test('an instance that has not reported its step cost has that of another, until it reports its own', () => {
  const [first, second] = PrefillTimes.of([0, 1], 1_000);
  second?.observe(100, 0, 1_000_000);
  first?.setStepCost(stepCost);
  expect(second?.prefillUs(500, 0)).toBe(first?.prefillUs(500, 0));
  second?.setStepCost([2_000, 0, 0, 0, 0]);
  expect(second?.prefillUs(500, 0)).toBe(2_000);
  first?.reset();
  expect(first?.prefillUs(500, 0)).toBe(2_000);
});

test('a prompt beside another request of its instance is not observed', () => {
  const observer = new PrefillObserver([0]);
  const [times] = observer.times;
  observer.observe(0, { stepCost });
  const before = times?.prefillUs(500, 0);
  observer.forwarded(0, 'long', 500);
  observer.received(0, 0, 'long', { kind: 'started', cachedTokens: 0 });
  observer.forwarded(0, 'short', 10);
  observer.received(1, 0, 'short', { kind: 'started', cachedTokens: 0 });
  for (const id of ['short', 'long'])
    observer.received(900_000, 0, id, { kind: 'tokens', tokens: Int32Array.of(1), logprobs: undefined });
  expect(times?.prefillUs(500, 0)).toBe(before);
  for (const id of ['short', 'long']) observer.received(900_000, 0, id, { kind: 'finished', reason: 'stop' });
  expect(observer.size).toBe(0);
});

test('a prompt beside requests of other gateways is not observed', () => {
  const observer = new PrefillObserver([0]);
  const [times] = observer.times;
  observer.observe(0, { stepCost });
  const before = times?.prefillUs(500, 0);
  const prefill = (others: () => void) => {
    observer.forwarded(0, 'p', 500);
    observer.received(0, 0, 'p', { kind: 'started', cachedTokens: 0 });
    others();
    observer.received(900_000, 0, 'p', { kind: 'tokens', tokens: Int32Array.of(1), logprobs: undefined });
    observer.forget('p');
  };
  prefill(() => observer.setOthers(0, { prefills: [{ priority: 0, prompts: 1, tokens: 9 }], rows: 0, tokens: 0 }));
  prefill(() => observer.setOthers(0, { prefills: [], rows: 1, tokens: 9 }));
  prefill(() => observer.setOthers(0, undefined));
  expect(times?.prefillUs(500, 0)).toBe(before);
  prefill(() => {});
  expect(times?.prefillUs(500, 0)).not.toBe(before);
});
