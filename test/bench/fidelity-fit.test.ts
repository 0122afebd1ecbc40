// What a calibration makes of a record of steps and of what clients saw.
import { expect, it } from 'vitest';
import { fitCalibration, measure, withGaps } from '../../src/bench/fidelity/fit.ts';
import type { Served } from '../../src/bench/fidelity/live-run.ts';
import type { RecordedStep } from '../../src/live/step-record.ts';

function step(startedUs: number, us: number, rows = 1, logitRows = 1): RecordedStep {
  const decodeRows = rows === 1 ? 1 : 0;
  return { startedUs, us, shape: { rows, keyRows: rows * 100, decodeRows, decodeKeys: decodeRows * 100, logitRows } };
}

it('counts what is done between steps with the next one, and the usual where an instance waited', () => {
  const steps = [step(0, 1000), step(1100, 1000), step(2400, 1000), step(13_400, 1000), step(14_500, 900)];
  expect(withGaps(steps).map(({ us }) => us)).toEqual([1100, 1100, 1300, 1100, 1000]);
});

it('tells steps that shared the machine for most of their time', () => {
  const records = [[step(0, 1000), step(1000, 1000)], [step(1400, 1000)]];
  const { steps } = measure(records, { served: [], lone: [] });
  expect(steps.map(({ beside }) => beside)).toEqual([false, true, true]);
});

it('finds how long a lone request waits for its first step, and its tokens for their client', () => {
  // Two chunks, then three decode steps; 100 us between any two.
  const record = [step(500, 900, 64, 0), step(1500, 900, 64, 1), ...[2500, 3500, 4500].map((us) => step(us, 900))];
  const lone: Served = {
    ...{ index: 0, arrivalUs: 0, clockUs: 200, inputTokens: 128, cachedTokens: 0, instance: 1, startedUs: 40 },
    ...{ ttftUs: 2250, gapUs: Float64Array.of(1010, 990, 1000) },
  };
  const measured = measure([[], record], { served: [lone], lone: [lone] });
  expect(measured.admitUs).toEqual([200]);
  expect(measured.deliverUs).toEqual([[50, 60, 50, 50]]);
  expect(measured.prefills).toEqual([{ computedTokens: 128, us: 2210 }]);
  // One whose tokens do not come from as many steps tells nothing.
  const odd = { ...lone, gapUs: Float64Array.of(1010, 990, 1000, 1000) };
  expect(measure([[], record], { served: [odd], lone: [odd] }).deliverUs).toEqual([]);
});

it('joins calibrations: all steps and waits, and the prefills of the first', () => {
  const shapes = [1, 2, 4, 8].flatMap((n) => [50, 900].map((keys) => ({ n, keys })));
  const steps = (slow: number) => [
    ...shapes.map(({ n, keys }) => ({
      shape: { rows: n, keyRows: n * keys, decodeRows: n, decodeKeys: n * keys, logitRows: n },
      us: slow * (4000 + 300 * n + n * keys),
      beside: false,
    })),
    ...shapes.map(({ n, keys }) => ({
      shape: { rows: 32 * n, keyRows: 40 * n * keys, decodeRows: n % 3, decodeKeys: 0, logitRows: n % 5 },
      us: slow * (2000 + 9600 * n + 8 * n * keys),
      beside: true,
    })),
  ];
  const one = (slow: number, admitUs: readonly number[]) => ({
    ...{ steps: steps(slow), admitUs, deliverUs: [[slow]], prefills: [{ computedTokens: 1, us: slow }] },
  });
  const { measured, ...rest } = fitCalibration([one(1, [300, 100]), one(1.2, [200])]);
  expect(rest).toEqual({ steps: 32, admitUs: 200, deliverUs: [[1], [1.2]], prefills: [{ computedTokens: 1, us: 1 }] });
  // Relative errors weigh, so the middle lies a little below the mean.
  expect(measured.decode.times.stepUs / 4000).toBeCloseTo(1.08, 1);
  expect(measured.decode.alone.length).toBe(16);
  expect(measured.decode.beside.length).toBe(0);
  expect(measured.prompt.beside.length).toBe(16);
});
