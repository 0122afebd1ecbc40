// The sampling of the reference backend against the order that util/step.ts fixes.
import { expect, test } from 'vitest';
import { greedySampling } from '../../src/engine/plain-step.ts';
import { emptyResult, sampleRow } from '../../src/kernel/reference/sample.ts';
import { counterUniform } from '../../src/util/counter-random.ts';
import type { StepResult, StepSampling } from '../../src/util/step.ts';

const logits = [2, 0, 3, -1, 1];
const probabilities = logits.map((logit) => Math.exp(logit) / logits.reduce((sum, other) => sum + Math.exp(other), 0));

function sample(
  values: readonly number[],
  change: (sampling: StepSampling) => Partial<StepSampling> = () => ({}),
): StepResult {
  const sampling = greedySampling(1);
  const result = emptyResult(1);
  sampleRow(Float32Array.from(values), { ...sampling, ...change(sampling) }, 0, result);
  return result;
}

/** Count of each drawn id over many token indices. */
function shares(change: Partial<StepSampling>, draws = 4000): number[] {
  const counts = logits.map(() => 0);
  for (let index = 0; index < draws; index++) {
    const drawn = sample(logits, () => ({ temperature: f32(1), seed: u32(7, 9), tokenIndex: u32(index), ...change }));
    counts[drawn.tokens[0]]++;
  }
  return counts.map((count) => count / draws);
}

const f32 = (...values: number[]) => Float32Array.from(values);
const i32 = (...values: number[]) => Int32Array.from(values);
const u32 = (...values: number[]) => Uint32Array.from(values);

test('greedy takes the largest logit, the lowest id among equals, and reports log-probabilities', () => {
  const { tokens, logprobs, topTokens, topLogprobs, failed } = sample(logits);
  expect([tokens[0], failed[0]]).toEqual([2, 0]);
  expect(logprobs[0]).toBeCloseTo(Math.log(probabilities[2]), 6);
  expect([...topTokens.subarray(0, 5)]).toEqual([2, 0, 4, 1, 3]);
  expect(topLogprobs[1]).toBeCloseTo(Math.log(probabilities[0]), 6);
  expect(sample([1, 5, 5, 0]).tokens[0]).toBe(1);
});

test('draws follow the softmax at the temperature given', () => {
  for (const [id, share] of shares({}).entries()) expect(share).toBeCloseTo(probabilities[id], 1);
  const hot = logits.map((logit) => Math.exp(logit / 3));
  const total = hot.reduce((sum, weight) => sum + weight, 0);
  for (const [id, share] of shares({ temperature: f32(3) }).entries()) expect(share).toBeCloseTo(hot[id] / total, 1);
});

test('the draw is the running sum of ascending ids against the counter-based uniform', () => {
  for (let index = 0; index < 200; index++) {
    const u = counterUniform(11, 13, index);
    let running = 0;
    const wanted = probabilities.findIndex((p) => {
      running += p;
      return running > u;
    });
    const drawn = sample(logits, () => ({ temperature: f32(1), seed: u32(11, 13), tokenIndex: u32(index) }));
    expect(drawn.tokens[0]).toBe(wanted);
  }
});

test('top-k, top-p and min-p keep the defined tokens', () => {
  const drawn = (change: Partial<StepSampling>) => shares(change, 600).flatMap((share, id) => (share > 0 ? [id] : []));
  expect(drawn({ temperature: f32(4), topK: i32(2) })).toEqual([0, 2]);
  expect(drawn({ temperature: f32(4), topK: i32(99) })).toEqual([0, 1, 2, 3, 4]);
  // p = 0.64, 0.23, 0.09, 0.03, 0.01 in rank order.
  expect(drawn({ topP: f32(0.6) })).toEqual([2]);
  expect(drawn({ topP: f32(0.8) })).toEqual([0, 2]);
  expect(drawn({ topP: f32(1e-9) })).toEqual([2]);
  expect(drawn({ minP: f32(0.3) })).toEqual([0, 2]);
  expect(drawn({ topK: i32(3), topP: f32(0.95), minP: f32(0.01) })).toEqual([0, 2, 4]);
});

test('penalties and bias change the choice, never the reported log-probabilities', () => {
  const seen = { seenStart: i32(0, 2), seenTokens: i32(2, 3), seenCounts: i32(2, 0) };
  const repeated = sample(logits, () => ({ ...seen, repetitionPenalty: f32(2) }));
  expect(repeated.tokens[0]).toBe(0);
  expect(repeated.logprobs[0]).toBeCloseTo(Math.log(probabilities[0]), 6);
  expect(sample(logits, () => ({ ...seen, frequencyPenalty: f32(0.6) })).tokens[0]).toBe(0);
  expect(sample(logits, () => ({ ...seen, presencePenalty: f32(0.9) })).tokens[0]).toBe(2);
  expect(sample(logits, () => ({ ...seen, presencePenalty: f32(1.1) })).tokens[0]).toBe(0);
  const bias = { biasStart: i32(0, 1), biasTokens: i32(3), biasValues: f32(4.5) };
  expect(sample(logits, () => bias).tokens[0]).toBe(3);
});

test('a target is reported, not sampled', () => {
  const { tokens, logprobs } = sample(logits, () => ({ hasTarget: Uint8Array.of(1), target: i32(4) }));
  expect(tokens[0]).toBe(4);
  expect(logprobs[0]).toBeCloseTo(Math.log(probabilities[4]), 6);
});

test('a row with NaN or without a finite maximum fails alone', () => {
  const inf = Number.POSITIVE_INFINITY;
  for (const values of [
    [1, Number.NaN],
    [-inf, -inf],
    [inf, 0],
  ])
    expect(sample(values).failed[0]).toBe(1);
  expect(sample([-inf, 0]).tokens[0]).toBe(1);
  const bias = { biasStart: i32(0, 1), biasTokens: i32(0), biasValues: f32(inf) };
  expect(sample(logits, () => bias).failed[0]).toBe(1);
});
