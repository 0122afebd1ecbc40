// The keys that planned rows of a sequence with a KV budget do not read, and the keys that its selection scores.

import { keptAfter } from '../../../util/step.ts';
import { scoredPairs } from '../../cost/sparse-cost.ts';
import type { SparseWork } from '../../protocol/step-shape.ts';
import type { Sequence } from './sequence.ts';

/** Sums over the sequences of a step. */
export type SparseSums = { -readonly [Field in keyof SparseWork]: SparseWork[Field] };

export function noSparseWork(): SparseSums {
  return {
    ...{ skippedKeyRows: 0, skippedDecodeKeys: 0, skippedPerStep: 0 },
    ...{ scoredKeyRows: 0, scoredKeys: 0, keptTokens: 0 },
  };
}

/** True if the planned rows select kept tokens, or read only a part of the keys. */
export function hasSparseRows({ sparsity, readsPart, computed, planned, promptLength }: Sequence): boolean {
  // Until its last row, a prompt is computed as without a budget.
  return sparsity === undefined ? readsPart : computed + planned >= promptLength;
}

/** Adds the planned rows of a sequence with such rows; -1 removes them. @param blockTokens tokens of a page */
export function addSparseRows(sums: SparseSums, sequence: Sequence, times: 1 | -1, blockTokens: number): void {
  if (sequence.pageChoice !== undefined) addChosen(sums, sequence, times, blockTokens);
  else if (sequence.isSelected) addSelected(sums, sequence, times);
  else addSelection(sums, sequence, times);
}

/** Row r attends to the slots that are filled before it and to its own token; a replaced token makes room for that. */
function addSelected(sums: SparseSums, { sparsity, table, computed, planned }: Sequence, times: 1 | -1): void {
  const { slots } = table;
  if (sparsity === undefined || slots === undefined) return;
  const { compactEvery } = sparsity;
  const { budget } = sparsity.layout;
  let skipped = 0;
  let replacing = 0;
  for (let layer = 0; layer < budget.length; layer++) {
    const isFull = compactEvery === 0 && slots.kept[layer] === budget[layer];
    if (isFull) replacing++;
    for (let row = 0; row < planned; row++) {
      const filled = keptAfter(slots.kept[layer], budget[layer], compactEvery, row);
      const read = compactEvery === 0 ? Math.min(filled + 1, budget[layer]) : filled + 1;
      skipped += computed + row + 1 - read;
    }
  }
  sums.skippedKeyRows += times * skipped;
  if (planned !== 1) return;
  sums.skippedDecodeKeys += times * skipped;
  sums.skippedPerStep += times * replacing;
}

/**
 * A row reads the bounds of all pages, each as many bytes as the keys and values of a token, and the chosen pages, of which
 * the last one is filled up to the row.
 */
function addChosen(
  sums: SparseSums,
  { pageChoice, computed, planned }: Sequence,
  times: 1 | -1,
  pageTokens: number,
): void {
  if (pageChoice === undefined) return;
  let skipped = 0;
  for (let position = computed; position < computed + planned; position++) {
    const pages = Math.floor(position / pageTokens) + 1;
    skipped += Math.max(0, pages - pageChoice.pages) * pageTokens - pages;
  }
  sums.skippedKeyRows += times * pageChoice.layers * skipped;
  if (planned === 1) sums.skippedDecodeKeys += times * pageChoice.layers * skipped;
}

/** The step computes the last row of the prompt, and selects the tokens to keep. */
function addSelection(sums: SparseSums, { sparsity, promptLength }: Sequence, times: 1 | -1): void {
  if (sparsity === undefined) return;
  const { budget } = sparsity.layout;
  let kept = 0;
  for (let layer = 0; layer < budget.length; layer++) kept += Math.min(budget[layer], promptLength);
  sums.scoredKeyRows += times * budget.length * scoredPairs(promptLength, sparsity.observed);
  sums.scoredKeys += times * budget.length * promptLength;
  sums.keptTokens += times * kept;
}

/** How many steps of one row read keys that grow evenly: until slots are full, or tokens are evicted together. */
export function steadySparseSteps({ sparsity, table }: Sequence): number {
  const { slots } = table;
  let steps = Number.MAX_SAFE_INTEGER;
  if (sparsity === undefined || slots === undefined) return steps;
  const { compactEvery, layout } = sparsity;
  for (let layer = 0; layer < slots.kept.length; layer++) {
    const free = layout.budget[layer] + compactEvery - slots.kept[layer];
    if (free > 0) steps = Math.min(steps, free);
  }
  return steps;
}
