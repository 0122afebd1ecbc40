// A record of an instance's steps and their durations in shared memory.

import type { InstanceEffect } from '../../core/protocol/effects.ts';
import type { Engine } from '../../engine/engine.ts';

type StepShape = Extract<InstanceEffect, { kind: 'runStep' }>['shape'];

export interface RecordedStep {
  /** On the monotonic clock that all threads share. */
  readonly startedUs: number;
  readonly us: number;
  readonly shape: StepShape;
}

const columns = 7;

/** @param steps capacity; later steps are not recorded */
export function createStepRecord(steps: number): SharedArrayBuffer {
  return new SharedArrayBuffer((1 + steps * columns) * Float64Array.BYTES_PER_ELEMENT);
}

/** The recorded steps after the first `skip`. */
export function readStepRecord(record: SharedArrayBuffer, skip = 0): readonly RecordedStep[] {
  const values = new Float64Array(record);
  return Array.from({ length: values[0] - skip }, (_, i) => {
    const [startedUs, us, rows, keyRows, decodeRows, decodeKeys, logitRows] = values.subarray(1 + (i + skip) * columns);
    return { startedUs, us, shape: { rows, keyRows, decodeRows, decodeKeys, logitRows } };
  });
}

/** The engine, which also records every completed step. */
export function recorded(engine: Pick<Engine, 'run'>, record: SharedArrayBuffer): Pick<Engine, 'run'> {
  const values = new Float64Array(record);
  return {
    run(step, abort) {
      const startedUs = clockUs();
      const outcome = engine.run(step, abort);
      const at = 1 + values[0] * columns;
      if (outcome.kind === 'done' && at + columns <= values.length) {
        const { rows, keyRows, decodeRows, decodeKeys, logitRows } = shapeOf(step);
        values.set([startedUs, clockUs() - startedUs, rows, keyRows, decodeRows, decodeKeys, logitRows], at);
        values[0]++;
      }
      return outcome;
    },
  };
}

/** A clock that is the same in all threads. */
function clockUs(): number {
  return Math.round((performance.timeOrigin + performance.now()) * 1000);
}

function shapeOf({ positions, rowStart, logitRows }: Parameters<Engine['run']>[0]): StepShape {
  let [keyRows, decodeRows, decodeKeys] = [0, 0, 0];
  for (const position of positions) keyRows += position + 1;
  for (let i = 0; i + 1 < rowStart.length; i++) {
    if (rowStart[i + 1] - rowStart[i] !== 1) continue;
    decodeRows++;
    decodeKeys += positions[rowStart[i]] + 1;
  }
  return { rows: positions.length, keyRows, decodeRows, decodeKeys, logitRows: logitRows.length };
}
