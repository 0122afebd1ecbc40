// Budgets of sparse layers, against values computed by hand and the rules of their sources.
import { expect, test } from 'vitest';
import { type BudgetRule, layerBudgets } from '../../../../src/core/kvcache/sparsity/budgets.ts';

const pyramid: BudgetRule = { shape: 'pyramid', layers: 5, budget: 132, recent: 32 };

const keptOf = (rule: BudgetRule, promptTokens: number): number[] => [...layerBudgets(rule, promptTokens).kept];
const slotsOf = (rule: BudgetRule, promptTokens: number): number[] => [...layerBudgets(rule, promptTokens).slots];

test('uniform budgets keep the budget in every layer, and a shorter prompt whole', () => {
  const rule: BudgetRule = { shape: 'uniform', layers: 3, budget: 64, recent: 16 };
  expect(keptOf(rule, 4000)).toEqual([64, 64, 64]);
  expect(keptOf(rule, 64)).toEqual([64, 64, 64]);
  expect(keptOf(rule, 20)).toEqual([20, 20, 20]);
  expect(slotsOf(rule, 20)).toEqual([64, 64, 64]);
});

test('a list has a budget for each layer', () => {
  const rule: BudgetRule = { shape: [300, 100, 40], layers: 3, budget: 0, recent: 16 };
  expect(keptOf(rule, 4000)).toEqual([300, 100, 40]);
  expect(keptOf(rule, 120)).toEqual([120, 100, 40]);
  expect(slotsOf(rule, 120)).toEqual([300, 100, 40]);
});

test('a pyramid falls from max to min, plus the recent tokens', () => {
  // C - w = 100: min = 5, max = 195, and 47.5 less from layer to layer.
  expect(keptOf(pyramid, 4000)).toEqual([195 + 32, 148 + 32, 132, 52 + 32, 5 + 32]);
});

test('a pyramid of 32 layers with the budget of the paper has its published ends', () => {
  // C = 2,048 and w = 32: min = floor(2016 / 20) = 100, max = 4032 - 100.
  const kept = keptOf({ shape: 'pyramid', layers: 32, budget: 2048, recent: 32 }, 8000);
  expect([kept[0], kept[31]]).toEqual([3932 + 32, 100 + 32]);
  expect(kept.reduce((sum, tokens) => sum + tokens, 0)).toBe(32 * 2048);
});

test('the first layer of a pyramid keeps at most the prompt, and the last one keeps more instead', () => {
  // 200 tokens at least for a pyramid; q - w = 178 is below max = 195: min = 200 - 178.
  expect(keptOf(pyramid, 210)).toEqual([178 + 32, 139 + 32, 132, 61 + 32, 22 + 32]);
});

test('a pyramid keeps prompts below the budget whole, and the budget of prompts below twice the scored tokens', () => {
  expect(keptOf(pyramid, 131)).toEqual([131, 131, 131, 131, 131]);
  expect(keptOf(pyramid, 132)).toEqual([132, 132, 132, 132, 132]);
  expect(keptOf(pyramid, 199)).toEqual([132, 132, 132, 132, 132]);
  expect(keptOf(pyramid, 200)[0]).toBeGreaterThan(132);
  expect(slotsOf(pyramid, 50)).toEqual([132, 132, 132, 132, 132]);
});

test('a pyramid of any size falls, adds up to its mean, and stays between the recent tokens and the prompt', () => {
  for (const layers of [1, 2, 3, 7, 28, 80])
    for (const [budget, recent] of [
      [33, 32],
      [64, 8],
      [1024, 32],
      [2048, 256],
    ])
      for (const promptTokens of [1, 40, budget - 1, budget, 2 * (budget - recent), 2 * budget, 9000, 100_000]) {
        const { kept, slots } = layerBudgets({ shape: 'pyramid', layers, budget, recent }, promptTokens);
        const rounded = slots.reduce((sum, tokens) => sum + tokens, 0);
        expect(rounded).toBe(layers * budget);
        for (let layer = 0; layer < layers; layer++) {
          expect(slots[layer]).toBeGreaterThanOrEqual(recent);
          expect(kept[layer]).toBe(Math.min(slots[layer], promptTokens));
          if (layer > 0) expect(slots[layer]).toBeLessThanOrEqual(slots[layer - 1]);
        }
        if (promptTokens >= budget) expect(kept).toEqual(slots);
      }
});
