// From served requests and the record of their steps to what a simulation needs: times of steps, how they vary, and what comes before and behind them.
import type { RecordedStep } from '../../live/step-record.ts';
import type { TimedStep } from '../../policy/cost/linear-cost.ts';
import { type MeasuredStep, type MeasuredSteps, measureSteps } from '../../policy/cost/measured-cost.ts';
import { median } from '../statistics.ts';
import type { Served } from './live-run.ts';

/** What was seen in one calibration. */
export interface Measurements {
  readonly steps: readonly MeasuredStep[];
  /** From submission to the start of a request's first step, where its instance was idle. */
  readonly admitUs: readonly number[];
  /** (requests, tokens): from the end of a step until the client had its token. */
  readonly deliverUs: readonly (readonly number[])[];
  /** In order: what a conductor has learned from. */
  readonly prefills: readonly { readonly computedTokens: number; readonly us: number }[];
}

export interface Calibration {
  readonly measured: MeasuredSteps;
  readonly admitUs: number;
  /** (requests, tokens) */
  readonly deliverUs: readonly (readonly number[])[];
  readonly steps: number;
  /** Of the first calibration. */
  readonly prefills: Measurements['prefills'];
}

/** Gaps that are longer are waits for requests. */
const gapUsMax = 2000;

/**
 * @param records (instances): all steps since it began
 * @param lone of the served ones, those that were alone on the machine
 */
export function measure(
  records: readonly (readonly RecordedStep[])[],
  { served, lone }: { readonly served: readonly Served[]; readonly lone: readonly Served[] },
): Measurements {
  const steps = records.flatMap((record, i) => {
    const others = records.filter((_, other) => other !== i).flat();
    return withGaps(record).map((step, k) => ({ ...step, beside: isBeside(record[k], others) }));
  });
  const prefills = served.map(({ inputTokens, cachedTokens, ttftUs, startedUs }) => ({
    computedTokens: inputTokens - cachedTokens,
    us: ttftUs - startedUs,
  }));
  return { steps, ...waitsOf(lone, records), prefills };
}

/** @throws RangeError where no steps of a kind were seen */
export function fitCalibration(all: readonly Measurements[]): Calibration {
  const steps = all.flatMap((one) => one.steps);
  const admitUs = all.flatMap((one) => one.admitUs);
  return {
    measured: measureSteps(steps),
    admitUs: Math.max(0, Math.round(median(admitUs) ?? 0)),
    deliverUs: all.flatMap((one) => one.deliverUs),
    ...{ steps: steps.length, prefills: all[0].prefills },
  };
}

/** What an instance does between two steps counts with the second one: as much as is usual where it waited. */
export function withGaps(steps: readonly RecordedStep[]): readonly TimedStep[] {
  const gaps = gapsUs(steps);
  const usual = usualGapUs(steps);
  return steps.map(({ us, shape }, i) => ({ shape, us: us + (gaps[i] ?? usual) }));
}

/** From the end of the step before to the start of each; undefined where it waited. */
function gapsUs(steps: readonly RecordedStep[]): readonly (number | undefined)[] {
  return steps.map(({ startedUs }, i) => {
    const gap = i === 0 ? -1 : startedUs - steps[i - 1].startedUs - steps[i - 1].us;
    return gap >= 0 && gap <= gapUsMax ? gap : undefined;
  });
}

function usualGapUs(steps: readonly RecordedStep[]): number {
  return median(gapsUs(steps).filter((us) => us !== undefined)) ?? 0;
}

/** Did others compute for the most of it? */
function isBeside({ startedUs, us }: RecordedStep, others: readonly RecordedStep[]): boolean {
  let sharedUs = 0;
  for (const other of others) {
    const fromUs = Math.max(startedUs, other.startedUs);
    const toUs = Math.min(startedUs + us, other.startedUs + other.us);
    sharedUs += Math.max(0, toUs - fromUs);
  }
  return 2 * sharedUs > us;
}

/** The tokens of a request that was the only one come from the steps with logits that ran between its submission and its end, in order. */
function waitsOf(
  lone: readonly Served[],
  records: readonly (readonly RecordedStep[])[],
): Pick<Measurements, 'admitUs' | 'deliverUs'> {
  const admitUs: number[] = [];
  const deliverUs: number[][] = [];
  for (const { clockUs, ttftUs, gapUs, instance = 0 } of lone) {
    const tokensUs = [clockUs + ttftUs];
    for (const us of gapUs) tokensUs.push(tokensUs[tokensUs.length - 1] + us);
    const endUs = tokensUs[tokensUs.length - 1];
    const own = records[instance].filter(({ startedUs }) => startedUs >= clockUs && startedUs < endUs);
    const giving = own.filter(({ shape }) => shape.logitRows > 0);
    if (giving.length !== tokensUs.length) continue;
    // The usual gap is part of its first step already.
    admitUs.push(own[0].startedUs - clockUs - usualGapUs(records[instance]));
    deliverUs.push(giving.map(({ startedUs, us }, i) => tokensUs[i] - startedUs - us));
  }
  return { admitUs, deliverUs };
}
