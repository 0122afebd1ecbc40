// Steps over attention workers: two batches of a step run staggered.

import {
  batchOf,
  resultOf,
  type StepBatch,
  sequenceShapes,
  splitBatches,
} from '../../core/attention-workers/split-batches.ts';
import type { StepShape } from '../../core/protocol/step-shape.ts';
import type { Engine } from '../../engine/engine.ts';
import type { Step } from '../../util/step.ts';
import type { LiveAttentionWorkers } from './live-attention-workers.ts';

/**
 * The engine over its attention workers. A step of several sequences runs as two batches if each worker has two links:
 * while attention of one batch is computed, the model worker computes the other. Rows do not depend on the batch, so
 * the bits are those of one batch.
 * @param predictUs time of a step
 */
export function overAttentionWorkers(
  engine: Pick<Engine, 'run' | 'runStaggered'>,
  workers: Pick<LiveAttentionWorkers, 'handles'>,
  predictUs: (shape: StepShape) => number,
): Pick<Engine, 'run'> {
  return {
    run(step, abort) {
      const [first, second] = workers.handles;
      const split = second && splitBatches(sequenceShapes(step), predictUs);
      if (split === undefined) return engine.run({ ...step, attentionWorkers: first }, abort);
      const batches = split.map((sequences) => batchOf(step, sequences));
      const steps = batches.map((batch, i) => ({ ...batch.step, attentionWorkers: workers.handles[i] }));
      return joined(batches, engine.runStaggered(steps, abort), step);
    },
  };
}

type Outcome = ReturnType<Engine['run']>;

/** The outcome of the whole step: an aborted batch aborts it. */
function joined(batches: readonly StepBatch[], outcomes: readonly Outcome[], step: Step): Outcome {
  const results = outcomes.flatMap((outcome, i) =>
    outcome.kind === 'done' ? [{ batch: batches[i], result: outcome.result }] : [],
  );
  if (results.length < batches.length) return { kind: 'aborted' };
  return { kind: 'done', result: resultOf(results, step.logitRows.length) };
}
