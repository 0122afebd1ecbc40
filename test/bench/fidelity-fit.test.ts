// Calibration from a record of steps and from client observations.
import { expect, it } from 'vitest';
import { clientStepUs, fitCalibration, measure, withGaps } from '../../src/bench/fidelity/fit.ts';
import type { Served } from '../../src/bench/fidelity/live-run.ts';
import type { PlacementTrace } from '../../src/core/protocol/request-trace.ts';
import type { RecordedStep } from '../../src/runtime/threads/step-record.ts';

function step(startedUs: number, us: number, rows = 1, logitRows = 1): RecordedStep {
  const decodeRows = rows === 1 ? 1 : 0;
  return { startedUs, us, shape: { rows, keyRows: rows * 100, decodeRows, decodeKeys: decodeRows * 100, logitRows } };
}

it('counts the time between steps with the next step, and the usual time after a wait', () => {
  const steps = [step(0, 1000), step(1100, 1000), step(2400, 1000), step(13_400, 1000), step(14_500, 900)];
  expect(withGaps(steps).map(({ us }) => us)).toEqual([1100, 1100, 1300, 1100, 1000]);
});

it('identifies steps that shared the machine for most of their time', () => {
  const records = [[step(0, 1000), step(1000, 1000)], [step(1400, 1000)]];
  const { steps } = measure(records, []);
  expect(steps.map(({ beside }) => beside)).toEqual([false, true, true]);
});

/** Two chunks, then three decode steps; 100 us between any two. */
const record = [step(500, 900, 64, 0), step(1500, 900, 64, 1), ...[2500, 3500, 4500].map((us) => step(us, 900))];
const nowhere = { decodeAt: undefined, group: undefined, fetchedFrom: undefined, fetchedTokens: 0, inline: false };
const placed: PlacementTrace = {
  ...{ ...nowhere, atUs: 0, candidates: [], instance: 1, waitUs: 0, prefillUs: 0, predicted: undefined },
};
const lone: Served = {
  ...{ index: 0, arrivalUs: 0, clockUs: 200, inputTokens: 128, cachedTokens: 0, placed, startedUs: 40 },
  ...{ ttftUs: 2250, gapUs: Float64Array.of(1030, 970, 1000) },
};

it('ends steps when clients have their tokens: a late one makes the next one shorter', () => {
  const { steps, admitUs, deliveryUs } = measure([[], record], [lone]);
  // The first chunk gives no token: it ends the usual 50 us late.
  expect(steps.map(({ observedUs }) => observedUs)).toEqual([950, 1000, 1030, 970, 1000]);
  expect(steps.map(({ us }) => us)).toEqual([1000, 1000, 1000, 1000, 1000]);
  expect(admitUs).toEqual([300]);
  expect(deliveryUs).toBe(50);
});

it('uses the last token of a step, and the step itself if tokens are missing', () => {
  const pair = [step(0, 900, 1, 2), step(1000, 900, 1, 2)];
  expect(clientStepUs(pair, [1950, 930, 1990, 910])).toEqual([930, 1060]);
  expect(clientStepUs(pair, [1950, 930, 910])).toEqual([1000, 1000]);
  // Both arrived together: the second step contains the delay of the first.
  expect(clientStepUs(pair, [1950, 1950, 1950, 1950])).toEqual([1950, 1]);
});

it('joins graded steps with rehearsals, which give the ratios and the delay of tokens', () => {
  const shapes = [1, 2, 4, 8].flatMap((n) => [50, 900].map((keys) => ({ n, keys })));
  const steps = (slow: number) =>
    [
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
    ].map((step) => ({ ...step, observedUs: step.us }));
  const one = (slow: number, admitUs: readonly number[], deliveryUs: number) => ({
    steps: steps(slow),
    admitUs,
    deliveryUs,
  });
  const { measured, ...rest } = fitCalibration(one(1, [300, 100, 200], 9), [one(1.2, [], 40), one(1.2, [], 60)]);
  expect(rest).toEqual({ steps: 48, admitUs: 200, deliveryUs: 40 });
  const stepUs = measured.decode.times.stepUs;
  expect(stepUs).toBeGreaterThan(4000);
  expect(stepUs).toBeLessThan(4800);
  expect(measured.decode.alone.ratios.length).toBe(16);
  expect((stepUs * measured.decode.alone.ratios[0]) / 4800).toBeCloseTo(1, 2);
  expect(measured.decode.beside.ratios.length).toBe(0);
  expect(measured.prompt.beside.ratios.length).toBe(16);
});
