// Fits a simulation to served requests and step records: step times, their variation, and delays around them.

import type { TimedStep } from '../../core/cost/linear-cost.ts';
import { type MeasuredStep, type MeasuredSteps, measureSteps } from '../../core/cost/measured-cost.ts';
import type { RecordedStep } from '../../runtime/threads/step-record.ts';
import { median } from '../statistics.ts';
import type { Served } from './live-run.ts';

/** Observations of some requests. */
export interface Measurements {
  readonly steps: readonly MeasuredStep[];
  /** Delay from submission to the first step on an idle instance. */
  readonly admitUs: readonly number[];
  /** Typical delay from the end of a step to the client; undefined without observations. */
  readonly deliveryUs: number | undefined;
}

export interface Calibration {
  readonly measured: MeasuredSteps;
  readonly admitUs: number;
  readonly deliveryUs: number;
  readonly steps: number;
}

/** Longer gaps are waits for requests. */
const gapUsMax = 2000;

/** Measures steps and the delays around them. @param records (instances): all steps of that time */
export function measure(records: readonly (readonly RecordedStep[])[], served: readonly Served[]): Measurements {
  const late: number[] = [];
  const steps = records.flatMap((record, i) => {
    const others = records.filter((_, other) => other !== i).flat();
    const tokensUs = tokensAt(i, served);
    const observedUs = clientStepUs(record, tokensUs);
    late.push(...deliveryDelaysUs(record, tokensUs).filter((us) => us !== undefined));
    return withGaps(record).map((step, k) => ({
      ...step,
      observedUs: observedUs[k],
      beside: isBeside(record[k], others),
    }));
  });
  const admitUs = served.flatMap((one) => admitUsOf(one, records[one.placed?.instance ?? 0]) ?? []);
  return { steps, admitUs, deliveryUs: median(late) };
}

/** Delay from submission to the first step; undefined if the instance was busy. */
function admitUsOf({ clockUs, placed }: Served, steps: readonly RecordedStep[]): number | undefined {
  const first = steps.findIndex(({ startedUs }) => startedUs >= clockUs);
  const before = first > 0 ? steps[first - 1] : undefined;
  const isIdle = first >= 0 && (before === undefined || before.startedUs + before.us <= clockUs);
  return isIdle && placed?.fetchedFrom === undefined ? steps[first].startedUs - clockUs : undefined;
}

/** Arrival of each token at its client, by the clock of step records. */
export function tokensAt(instance: number, served: readonly Served[]): readonly number[] {
  return served.filter(({ placed }) => placed?.instance === instance).flatMap(tokensOf);
}

function tokensOf({ clockUs, ttftUs, gapUs }: Served): readonly number[] {
  const tokensUs = [clockUs + ttftUs];
  for (const us of gapUs) tokensUs.push(tokensUs[tokensUs.length - 1] + us);
  return tokensUs;
}

/**
 * Step times observed by clients. A step with tokens ends when its last token arrives, so that a late arrival makes the next step
 * shorter. A step without tokens ends the typical delay after its recorded end.
 * @param tokensUs of all sequences, in any order; if their count differs from the rows of logits, recorded ends are used
 */
export function clientStepUs(steps: readonly RecordedStep[], tokensUs: readonly number[]): readonly number[] {
  const lateUs = deliveryDelaysUs(steps, tokensUs);
  if (lateUs.length === 0) return withGaps(steps).map(({ us }) => us);
  const usual = median(lateUs.filter((us) => us !== undefined)) ?? 0;
  const endsUs = steps.map(({ startedUs, us }, i) => startedUs + us + (lateUs[i] ?? usual));
  const gaps = gapsUs(steps);
  return steps.map(({ startedUs }, i) => Math.max(1, endsUs[i] - (gaps[i] === undefined ? startedUs : endsUs[i - 1])));
}

/** (steps): delay from the end to the last token; undefined without tokens. Empty if token and logit counts differ. */
export function deliveryDelaysUs(
  steps: readonly RecordedStep[],
  tokensUs: readonly number[],
): readonly (number | undefined)[] {
  const given = steps.reduce((sum, { shape }) => sum + shape.logitRows, 0);
  if (given !== tokensUs.length) return [];
  const inOrder = [...tokensUs].sort((a, b) => a - b);
  let next = 0;
  return steps.map(({ startedUs, us, shape: { logitRows } }) => {
    next += logitRows;
    return logitRows > 0 ? inOrder[next - 1] - startedUs - us : undefined;
  });
}

/** @throws RangeError if no steps of a kind were observed */
export function fitCalibration(graded: Measurements, rehearsed: readonly Measurements[]): Calibration {
  const typical = rehearsed.flatMap(({ steps }) => steps);
  const asUnderLoad = rehearsed.flatMap(({ admitUs }) => admitUs);
  return {
    measured: measureSteps(graded.steps, typical),
    admitUs: Math.max(0, Math.round(median(asUnderLoad.length > 0 ? asUnderLoad : graded.admitUs) ?? 0)),
    deliveryUs: Math.max(0, Math.round(median(rehearsed.flatMap(({ deliveryUs }) => deliveryUs ?? [])) ?? 0)),
    steps: graded.steps.length + typical.length,
  };
}

/** The time between two steps counts with the second one; after a wait, the typical time counts. */
export function withGaps(steps: readonly RecordedStep[]): readonly TimedStep[] {
  const gaps = gapsUs(steps);
  const usual = usualGapUs(steps);
  return steps.map(({ us, shape }, i) => ({ shape, us: us + (gaps[i] ?? usual) }));
}

/** Gap before each step; undefined after a wait. */
function gapsUs(steps: readonly RecordedStep[]): readonly (number | undefined)[] {
  return steps.map(({ startedUs }, i) => {
    const gap = i === 0 ? -1 : startedUs - steps[i - 1].startedUs - steps[i - 1].us;
    return gap >= 0 && gap <= gapUsMax ? gap : undefined;
  });
}

function usualGapUs(steps: readonly RecordedStep[]): number {
  return median(gapsUs(steps).filter((us) => us !== undefined)) ?? 0;
}

/** True if other instances computed during most of the step. */
function isBeside({ startedUs, us }: RecordedStep, others: readonly RecordedStep[]): boolean {
  let sharedUs = 0;
  for (const other of others) {
    const fromUs = Math.max(startedUs, other.startedUs);
    const toUs = Math.min(startedUs + us, other.startedUs + other.us);
    sharedUs += Math.max(0, toUs - fromUs);
  }
  return 2 * sharedUs > us;
}
