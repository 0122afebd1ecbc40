// What moving requests to bigger instances came to in a run.
import type { LengthInstance } from '../../core/instance/length-instance.ts';
import type { InstanceSpec } from '../engine/simulation-config.ts';

export interface MigrationFigures {
  /** Bigger instances that were started. */
  readonly started: number;
  readonly moved: number;
  readonly movedBytes: number;
  /** Requests that waited for a bigger instance or were on their way there, and how long that took in all. */
  readonly stalls: number;
  readonly stallMs: number;
}

/** Undefined where no instance is on standby. */
export function migrationFigures(
  specs: readonly InstanceSpec[],
  instances: readonly LengthInstance[],
  started: number,
): MigrationFigures | undefined {
  if (specs.every(({ startUs }) => startUs === undefined)) return undefined;
  let [moved, movedBytes, stalls, stallUs] = [0, 0, 0, 0];
  for (const [i, { mover }] of instances.entries()) {
    if (mover === undefined) continue;
    const { totals } = mover;
    moved += totals.moved;
    movedBytes += totals.movedTokens * specs[i].machine.cost.kvBytesPerToken;
    stalls += totals.stalls;
    stallUs += totals.stallUs;
  }
  return { started, moved, movedBytes, stalls, stallMs: stallUs / 1000 };
}
