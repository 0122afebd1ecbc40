// Times of simulated steps with remote attention.
import { expect, it } from 'vitest';
import { LinearCost } from '../../../src/core/cost/linear-cost.ts';
import { type RecordedStep, RecordedSteps } from '../../../src/core/cost/recorded-steps.ts';
import type { StepCostModel } from '../../../src/core/cost/roofline.ts';
import { EventQueue } from '../../../src/sim/engine/event-queue.ts';
import { SimulatedExecutor } from '../../../src/sim/engine/executor.ts';

const shape = { rows: 4, keyRows: 400, decodeRows: 4, decodeKeys: 400, logitRows: 4 };
const linear = new LinearCost(
  { stepUs: 100, rowUs: 10, keyUs: 1, decodeRowUs: 0, logitRowUs: 0 },
  { layers: 1, kvBytesPerToken: 1, kvCapacityTokens: 1000, activationBytesPerToken: 1 },
);

/** A step of a debtor that is a creditor too. */
function lentStepUs(cost: StepCostModel): number {
  const queue = new EventQueue();
  const executor = new SimulatedExecutor(
    { cost },
    queue,
    queue.timer(() => {}),
  );
  executor.servedAttentionPermille = 500;
  const step = { kind: 'runStep', step: 1, shape, stepsMax: 1, loadTokens: 0, storeTokens: 0 };
  const remote = { keyRows: 300, decodeKeys: 300, remoteUs: 5_000 };
  executor.run(step as unknown as Parameters<SimulatedExecutor['run']>[0], remote);
  return executor.firstStepUs;
}

it('add remote attention to the times of a cost model', () => {
  expect(lentStepUs(linear)).toBeGreaterThan(5_000);
});

it('reports a recorded step without the time before it was planned', () => {
  expect(endOf({ startedUs: 0, us: 777, gapUs: 77, shape })).toEqual([777, 700]);
});

it('reports the recorded time of a step that begins later or earlier than its record', () => {
  expect(endOf({ startedUs: -100, us: 777, shape })).toEqual([677, 777]);
  expect(endOf({ startedUs: 100, us: 777, gapUs: 7, shape })).toEqual([877, 770]);
});

/** End of a step that begins at 0 and matches the recorded one, and its reported time. */
function endOf(step: RecordedStep): readonly number[] | undefined {
  const queue = new EventQueue();
  const recorded = new RecordedSteps([step], linear, () => queue.nowUs);
  const ends: number[][] = [];
  const timer = queue.timer(() => {
    const end = executor.takeEnd();
    if (end?.kind === 'stepDone') ends.push([queue.nowUs, ...Array.from(end.stepUs ?? [])]);
  });
  const executor: SimulatedExecutor = new SimulatedExecutor({ cost: recorded }, queue, timer);
  const run = { kind: 'runStep', step: 1, shape, stepsMax: 1, loadTokens: 0, storeTokens: 0 };
  executor.run(run as unknown as Parameters<SimulatedExecutor['run']>[0]);
  while (!queue.isIdle) queue.runNext();
  return ends[0];
}

it('add none to recorded times, which contain it, and match records by all keys', () => {
  const recorded = new RecordedSteps([{ startedUs: 0, us: 777, shape }], linear, () => 0);
  expect(lentStepUs(recorded)).toBe(777);
  expect(recorded.matched).toBe(1);
});
