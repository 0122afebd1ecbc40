// Step times of a replayed instance: fitted to its recorded steps, or those that it reported.

import type { KvSizes } from '../../core/cost/linear-cost.ts';
import { MeasuredCost, type MeasuredStep, measureKind, measureSteps } from '../../core/cost/measured-cost.ts';
import type { StepCostModel } from '../../core/cost/roofline.ts';
import type { StepShape } from '../../core/protocol/step-shape.ts';
import type { RecordedRequest, TimedRecordedStep } from '../../trace/recording/reader.ts';
import { LearnedCost } from '../engine/learned-cost.ts';

/** Fewer steps determine no fit. */
const stepsMin = 50;

/**
 * The steps of an instance, each from the end of the step before it where a request was there in between: an instance
 * plans and waits for its processor between two steps.
 */
export function withGaps(
  steps: readonly TimedRecordedStep[],
  instance: number,
  requests: readonly RecordedRequest[],
): readonly TimedRecordedStep[] {
  const stays = requests.map((each) => stayAt(instance, each)).filter((stay) => stay !== undefined);
  const [begins, ends] = [stays.map(([from]) => from), stays.map(([, to]) => to)];
  for (const times of [begins, ends]) times.sort((a, b) => a - b);
  let [begun, ended] = [0, 0];
  return steps.map((step, i) => {
    const previous = steps[i - 1];
    if (previous === undefined) return step;
    const endUs = previous.startedUs + previous.us;
    while (begun < begins.length && begins[begun] <= endUs) begun++;
    while (ended < ends.length && ends[ended] <= step.startedUs) ended++;
    // More requests have come by the end of the last step than have left by the begin of this one.
    if (begun <= ended) return step;
    return { ...step, startedUs: endUs, us: step.startedUs + step.us - endUs, gapUs: step.startedUs - endUs };
  });
}

/** From when until when an instance computed a request, in microseconds. */
function stayAt(
  instance: number,
  { request: { arrivalUs }, recorded }: RecordedRequest,
): readonly [fromUs: number, toUs: number] | undefined {
  const { decodeInstance = recorded.instance, prefilledMs, endMs } = recorded;
  const at = (ms: number) => arrivalUs + ms * 1000;
  if (recorded.instance === decodeInstance) return recorded.instance === instance ? [arrivalUs, at(endMs)] : undefined;
  if (recorded.instance === instance) return [arrivalUs, at(prefilledMs ?? endMs)];
  return decodeInstance === instance && prefilledMs !== undefined ? [at(prefilledMs), at(endMs)] : undefined;
}

/**
 * With fewer steps than determine a fit, the coefficients that the instance reported predict every step.
 * @param seed steps vary as recorded; undefined: every step takes the fitted time
 */
export function fittedSteps(
  steps: readonly TimedRecordedStep[],
  coefficients: readonly number[],
  sizes: KvSizes,
  seed?: number,
): StepCostModel {
  if (steps.length < stepsMin) {
    const learned = new LearnedCost(sizes);
    learned.setCoefficients(coefficients);
    return learned;
  }
  const measured = steps.map(({ shape, us }): MeasuredStep => ({ shape, us, observedUs: us, beside: false }));
  const decodes = measured.filter(({ shape }) => isDecode(shape)).length;
  const variation = seed === undefined ? undefined : { seed, beside: () => false };
  if (hasBoth(decodes, measured.length)) return new MeasuredCost(measureSteps([], measured), sizes, variation);
  const kind = measureKind(measured, measured);
  return new MeasuredCost({ decode: kind, prompt: kind }, sizes, variation);
}

/** Steps of each kind determine a fit of their own. */
function hasBoth(decodes: number, all: number): boolean {
  return decodes >= stepsMin && all - decodes >= stepsMin;
}

function isDecode({ rows, decodeRows }: StepShape): boolean {
  return rows === decodeRows;
}
