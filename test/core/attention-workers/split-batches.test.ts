// The two batches of a step: every sequence in one of them, of about equal predicted time.
import { describe, expect, test } from 'vitest';
import { splitBatches } from '../../../src/core/attention-workers/split-batches.ts';
import { StepCost } from '../../../src/core/cost/step-cost.ts';
import type { StepShape } from '../../../src/core/protocol/step-shape.ts';
import { Prng } from '../../../src/util/prng.ts';

const cost = new StepCost();
const predictUs = (shape: StepShape): number => cost.predictUs(shape);

const decode = (keys: number): StepShape => ({
  ...{ rows: 1, keyRows: keys, decodeRows: 1, decodeKeys: keys, logitRows: 1 },
});
const chunk = (rows: number, start: number): StepShape => ({
  ...{ rows, keyRows: rows * start + (rows * (rows + 1)) / 2, decodeRows: 0, decodeKeys: 0, logitRows: 1 },
});
const sumOf = (shapes: readonly StepShape[]): StepShape =>
  shapes.reduce((a, b) => ({
    rows: a.rows + b.rows,
    keyRows: a.keyRows + b.keyRows,
    decodeRows: a.decodeRows + b.decodeRows,
    decodeKeys: a.decodeKeys + b.decodeKeys,
    logitRows: a.logitRows + b.logitRows,
  }));

describe('splitBatches', () => {
  test('does not divide a single sequence', () => {
    expect(splitBatches([], predictUs)).toBeUndefined();
    expect(splitBatches([chunk(512, 0)], predictUs)).toBeUndefined();
  });

  test('divides equal sequences in halves', () => {
    expect(splitBatches([decode(100), decode(100), decode(100), decode(100)], predictUs)).toEqual([
      [0, 2],
      [1, 3],
    ]);
  });

  test('keeps a chunk of a prompt whole, beside all decode rows', () => {
    const sequences = [decode(50), decode(50), chunk(512, 1_000), decode(50)];
    expect(splitBatches(sequences, predictUs)).toEqual([[2], [0, 1, 3]]);
  });

  test('divides into as many batches as asked for, and at most one for each sequence', () => {
    expect(splitBatches([decode(9), decode(9), decode(9), decode(9)], predictUs, 3)).toEqual([[0, 3], [1], [2]]);
    expect(splitBatches([decode(9), decode(9)], predictUs, 4)).toEqual([[0], [1]]);
    expect(splitBatches([decode(9), decode(9)], predictUs, 1)).toBeUndefined();
  });

  test('leaves no batch empty if nothing is known about times', () => {
    expect(splitBatches([decode(9), decode(9), decode(9)], () => 0, 3)).toEqual([[0], [1], [2]]);
  });

  test.each([1, 2, 3, 4, 5])(
    'has every sequence once, in two batches that differ by at most the longest sequence, seed %i',
    (seed) => {
      const prng = new Prng(seed, 0);
      for (let round = 0; round < 50; round++) {
        const sequences = Array.from({ length: prng.integer(2, 40) }, () =>
          prng.chance(0.8) ? decode(prng.integer(1, 30_000)) : chunk(prng.integer(2, 512), prng.integer(0, 8_000)),
        );
        const batches = splitBatches(sequences, predictUs) ?? [[], []];
        for (const batch of batches) {
          expect(batch.length).toBeGreaterThan(0);
          expect(batch).toEqual([...batch].sort((a, b) => a - b));
        }
        expect(batches.flat().sort((a, b) => a - b)).toEqual([...sequences.keys()]);
        const [first, second] = batches.map((batch) => predictUs(sumOf(batch.map((i) => sequences[i]))));
        const longest = Math.max(...sequences.map(predictUs));
        expect(Math.abs((first ?? 0) - (second ?? 0))).toBeLessThanOrEqual(longest);
      }
    },
  );
});
