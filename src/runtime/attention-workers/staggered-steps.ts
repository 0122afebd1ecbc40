// Steps over attention workers: the batches of a step run staggered, over one model replica or several.

import { rotation } from '../../core/attention-workers/rotation.ts';
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
 * The engine over its attention workers. A step of several sequences runs as many batches as each worker has links:
 * while attention of one batch is computed, the model worker computes the others. Rows do not depend on the batch, so
 * the bits are those of one batch.
 * @param predictUs time of a step @param replicas of the model beside the engine's own; none by default
 */
export function overAttentionWorkers(
  engine: Pick<Engine, 'run' | 'runStaggered' | 'layers'>,
  workers: Pick<LiveAttentionWorkers, 'handles'>,
  predictUs: (shape: StepShape) => number,
  replicas: Replicas = [],
): Pick<Engine, 'run'> {
  // Fewer batches than replicas stay at one replica each.
  const rotationOf = (batches: number) => {
    const used = Math.min(replicas.length + 1, batches);
    if (used === 1) return undefined;
    const turns = rotation(batches, engine.layers.length + 1, used).flatMap(({ batch, replica }) => [batch, replica]);
    return { others: replicas.slice(0, used - 1), turns: Int32Array.from(turns) };
  };
  return {
    run(step, abort) {
      const { handles } = workers;
      const split = handles.length > 1 ? splitBatches(sequenceShapes(step), predictUs, handles.length) : undefined;
      if (split === undefined) return engine.run({ ...step, attentionWorkers: handles[0] }, abort);
      const batches = split.map((sequences) => batchOf(step, sequences));
      const steps = batches.map((batch, i) => ({ ...batch.step, attentionWorkers: handles[i] }));
      return joined(batches, engine.runStaggered(steps, abort, rotationOf(steps.length)), step);
    },
  };
}

type Outcome = ReturnType<Engine['run']>;
type Replicas = NonNullable<Parameters<Engine['runStaggered']>[2]>['others'];

/** The outcome of the whole step: an aborted batch aborts it. */
function joined(batches: readonly StepBatch[], outcomes: readonly Outcome[], step: Step): Outcome {
  const results = outcomes.flatMap((outcome, i) =>
    outcome.kind === 'done' ? [{ batch: batches[i], result: outcome.result }] : [],
  );
  if (results.length < batches.length) return { kind: 'aborted' };
  return { kind: 'done', result: resultOf(results, step.logitRows.length) };
}
