// Counts of slots and pages of sparse sequences.
import { expect, test } from 'vitest';
import { boundPages, keptAfter, slotPagesOfState, slotStatePages } from '../../src/util/step.ts';

test('filled slots after a step equal those after its rows one by one', () => {
  for (const compactEvery of [0, 1, 3]) {
    const budget = 5;
    for (let kept = 0; kept < budget + compactEvery; kept++) {
      let filled = kept;
      for (let rows = 1; rows < 20; rows++) {
        if (compactEvery === 0) filled = Math.min(filled + 1, budget);
        else if (++filled === budget + compactEvery) filled = budget;
        expect(keptAfter(kept, budget, compactEvery, rows)).toBe(filled);
      }
    }
  }
});

test('a page of slot states has 8 bytes for each slot', () => {
  expect(slotPagesOfState(64, 'bf16')).toBe(32);
  expect(slotPagesOfState(64, 'f32')).toBe(64);
  expect(slotPagesOfState(2, 'bf16')).toBe(1);
  expect(slotStatePages(33, 64, 'bf16')).toBe(2);
  expect(boundPages(33, 11)).toBe(22);
});
