// The verdict on a run with faults: each criterion alone fails it.
import { expect, it } from 'vitest';
import { violationsOf } from '../../../src/bench/kills/kills.ts';

const figures = { tokens: 1000, right: 50, wrong: 0, refused: 3, failed: 0 };
const memory = { gateway: { settledBytes: 100, laterBytes: 110, endBytes: 105, growth: 0.1 } };
const sound = {
  ...{ calm: figures, killed: figures, faults: { nats: 1, hang: 2 }, goodputRatio: 0.9, pagesUsedEnd: 0, memory },
};

it('passes a run within all bounds, and names each bound that does not hold', () => {
  const faults = ['nats', 'hang'] as const;
  expect(violationsOf(sound, faults)).toEqual([]);
  const bad = [
    [{ killed: { ...figures, wrong: 2 } }, '2 answers are wrong'],
    [{ calm: { ...figures, failed: 1 } }, '1 requests failed'],
    [{ pagesUsedEnd: 4 }, 'the idle cluster holds 4 pages'],
    [{ goodputRatio: 0.89 }, 'goodput with faults is 0.89 of that without, below 0.9'],
    [{ goodputRatio: Number.NaN }, 'goodput with faults is NaN of that without, below 0.9'],
    [{ faults: { nats: 3 } }, 'no fault of the kind hang was injected'],
    [
      { memory: { gateway: { ...memory.gateway, growth: 0.178 } } },
      'resident memory of the largest gateway grew by 17.8 %',
    ],
    [{ memory: {} }, 'resident memory was not compared: the run ended before it had settled'],
  ] as const;
  for (const [changed, violation] of bad) expect(violationsOf({ ...sound, ...changed }, faults)).toEqual([violation]);
});
