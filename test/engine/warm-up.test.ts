// The warm-up of an engine: steps of growing size within its memory, on a scripted clock.
import { expect, test } from 'vitest';
import { warmUp } from '../../src/engine/warm-up.ts';
import { pageTokens, type Step, type StepResult } from '../../src/util/step.ts';

const kv = {
  groups: [
    { layers: 2, window: undefined },
    { layers: 1, window: 64 },
  ],
};

function warmed({ pages = 3000, tokensMax = 1024, context = 8192, stepUs = 10 }) {
  const steps: Step[] = [];
  let nowUs = 0;
  const run = (step: Step) => {
    steps.push(step);
    nowUs += step.tokens.length * stepUs;
    return { kind: 'done' as const, result: {} as StepResult };
  };
  warmUp({ run, model: { kv, context }, pages, tokensMax }, () => nowUs);
  return { steps, rows: steps.map(({ tokens }) => tokens.length) };
}

test('steps double up to 512 rows, and run twice each', () => {
  const { steps, rows } = warmed({});
  expect(rows).toEqual([1, 2, 4, 8, 16, 32, 64, 128, 256, 512].flatMap((each) => [each, each]));
  const used = steps.flatMap(({ groups }) =>
    groups.flatMap(({ pageTable, layers, blocks }) =>
      Array.from(blocks, (block) => pageTable.slice(block * layers, (block + 1) * layers)).flatMap((ids) => [...ids]),
    ),
  );
  expect(new Set(used).size).toBe((512 / pageTokens) * 3);
});

test('steps stay within pages, step size and context, and end when the time is over', () => {
  const rowsOf = (limits: Parameters<typeof warmed>[0]) => warmed(limits).rows.at(-1);
  expect(rowsOf({ pages: 3 })).toBe(pageTokens);
  expect(rowsOf({ tokensMax: 100 })).toBe(64);
  expect(rowsOf({ context: 10 })).toBe(8);
  expect(rowsOf({ stepUs: 1_000 })).toBe(64);
});
