// Step times of a creditor: own work and attention for debtors are apart, and the debtors' shares have no feedback.
import { expect, it } from 'vitest';
import { CreditorSteps } from '../../../src/core/cost/creditor-steps.ts';
import { withServedAttentionUs } from '../../../src/core/cost/dist-attention.ts';
import { StepCost } from '../../../src/core/cost/step-cost.ts';
import { LendingMemory } from '../../../src/core/kvcache/lending-memory.ts';
import { Creditor } from '../../../src/core/lending/creditor/creditor.ts';
import { Outbox } from '../../../src/core/lending/outbox.ts';
import { defaultLendingTimes as times } from '../../../src/core/lending/times.ts';
import { decodeShape, type StepShape } from '../../../src/core/protocol/step-shape.ts';
import { defaultPolicy } from './../lending/borrow-world.ts';

const ownUs = ({ rows, keyRows }: StepShape) => 5_000 + 400 * rows + keyRows;
const shapes = [1, 4, 16, 8].map((rows) => decodeShape(rows, rows * 200));
const measured = decodeShape(8, 1_600);

/** Steps of a creditor whose debtors take this share, as the driver reports it. */
function run(steps: CreditorSteps, permille: number, count: number): void {
  steps.servedPermille = permille;
  for (let i = 0; i < count; i++) {
    const shape = shapes[i % shapes.length] ?? measured;
    steps.begin();
    steps.observe(shape, [withServedAttentionUs(ownUs(shape), permille)]);
  }
}

it('predicts its steps beside debtors, and its own work as if it had none', () => {
  const steps = new CreditorSteps(new StepCost());
  run(steps, 400, 200);
  const own = ownUs(measured);
  expect(steps.ownUs(measured) / own).toBeCloseTo(1, 1);
  expect(steps.predictUs(measured) / (own / 0.6)).toBeCloseTo(1, 1);
  // The debtors leave, or take more: the next prediction has it, without a step.
  steps.servedPermille = 0;
  expect(steps.predictUs(measured) / own).toBeCloseTo(1, 1);
  steps.servedPermille = 750;
  expect(steps.predictUs(measured) / (4 * own)).toBeCloseTo(1, 1);
});

it('plans as many rows beside debtors as fit the rest of the time', () => {
  const own = new StepCost();
  const steps = new CreditorSteps(own);
  const none = decodeShape(0, 0);
  steps.servedPermille = 500;
  const rows = steps.rowsWithin(400_000, none, 0);
  expect(rows).toBe(own.rowsWithin(200_000, none, 0));
  expect(rows).toBeLessThan(own.rowsWithin(400_000, none, 0));
});

it('takes the share of a step when the step began', () => {
  const steps = new CreditorSteps(new StepCost());
  run(steps, 0, 200);
  steps.begin();
  steps.servedPermille = 900;
  steps.observe(measured, [ownUs(measured)]);
  expect(steps.ownUs(measured) / ownUs(measured)).toBeCloseTo(1, 1);
});

it('leaves two debtors all of the slack, by their blocks, however much of it they take', () => {
  const policy = { ...defaultPolicy, lentShareMax: 1, lowWaterBlocks: 0, remoteAttentionPermilleMax: 800 };
  const memories = { device: LendingMemory.standalone(100, 1), host: LendingMemory.standalone(0, 1) };
  const own = { isShort: false, isDraining: false, guaranteedBlocks: 0, guaranteedMissingBlocks: 0 };
  const out = new Outbox(0, 1);
  const creditor = new Creditor(memories, policy, times, out, own);
  for (const [debtor, blocks] of [
    [1, 30],
    [2, 10],
  ] as const) {
    const loan = { loan: 0, memory: 'device', blocks, urgent: false, reserves: false, closedBelow: 0 } as const;
    const envelope = { from: debtor, fromIncarnation: 1, to: 0, toIncarnation: 1 } as const;
    creditor.borrow({ ...envelope, message: { kind: 'borrow', ...loan } }, { kind: 'borrow', ...loan }, 1);
  }
  const steps = new CreditorSteps(new StepCost());
  run(steps, 0, 200);
  // An objective of twice the own time leaves half of each step. Both debtors take all that they may.
  const tbtUs = 2 * ownUs(measured);
  for (let second = 0; second < 30; second++) {
    const taken = creditor.attentionShares.reduce((sum, { permille }) => sum + permille, 0);
    run(steps, taken, 20);
    for (let step = 0; step < 20; step++) creditor.stepRuns(steps.ownUs(measured), tbtUs);
  }
  const [large, small] = creditor.attentionShares.map(({ permille }) => permille);
  // From steps that contain the debtors' work, the share would settle at 1 - sqrt(1 / 2), 293.
  expect((large ?? 0) + (small ?? 0)).toBeGreaterThan(450);
  expect((large ?? 0) + (small ?? 0)).toBeLessThan(540);
  expect((large ?? 0) / (small ?? 1)).toBeCloseTo(3, 1);
  expect(steps.predictUs(measured) / tbtUs).toBeCloseTo(1, 1);
});
