// Time of a step on pipeline stages, which run its rows as micro-batches; the largest step or batch within a time.

import { partOf, type StepShape } from '../protocol/step-shape.ts';

/** Microseconds of a micro-batch over all stages: its layers, and the head behind the last one. */
export interface MicroBatchTimes {
  readonly layersUs: number;
  readonly headUs: number;
}

/**
 * A step is divided into a micro-batch for each stage, or each row if there are fewer. All stages compute at once, each
 * another micro-batch, and a micro-batch begins the next step when it has left the last stage. So a step takes what one
 * micro-batch takes through all stages, or what the last stage, which has the head, takes for all of them. A pipeline
 * that fills or drains is not charged: vLLM and SGLang keep as many batches in flight as there are stages.
 * @param timesOf is called with the shape of one micro-batch, whose fields may be fractions
 */
export function microBatchedUs(
  shape: StepShape,
  stages: number,
  timesOf: (microBatch: StepShape) => MicroBatchTimes,
): number {
  const microBatches = Math.max(1, Math.min(stages, shape.rows));
  const { layersUs, headUs } = timesOf(partOf(shape, microBatches));
  return Math.max(layersUs + headUs, microBatches * (layersUs / stages + headUs));
}

/** By default, steps of this number of rows or more are not searched for. */
const searchedRowsMax = 2 ** 20;

/**
 * Maximum number of prefill rows, the first at `position`, such that the step takes at most `budgetUs`: a binary search,
 * for models in which time does not fall as rows are added. Infinite if `most` rows fit.
 */
export function searchRowsWithin(
  budgetUs: number,
  { rows, keyRows, decodeRows, decodeKeys, logitRows }: StepShape,
  position: number,
  stepUs: (shape: StepShape) => number,
  most = searchedRowsMax,
): number {
  const wide = { rows, keyRows, decodeRows, decodeKeys, logitRows: logitRows + 1 };
  const fits = (prefillRows: number): boolean => {
    wide.rows = rows + prefillRows;
    wide.keyRows = keyRows + prefillRows * position + (prefillRows * (prefillRows + 1)) / 2;
    return stepUs(wide) <= budgetUs;
  };
  return fits(most) ? Number.POSITIVE_INFINITY : largestWithin(most - 1, fits);
}

/** Largest n of 1..most for which `fits` holds, if it holds up to some n and not beyond; 0: for none. */
export function largestWithin(most: number, fits: (n: number) => boolean): number {
  let within = 0;
  let over = most + 1;
  while (over - within > 1) {
    const middle = (within + over) >> 1;
    if (fits(middle)) within = middle;
    else over = middle;
  }
  return within;
}
