// Whether a request may start while its prefix is still on its way: a step that waits for it delays every request in it.

import type { Sequence } from '../../scheduler/batching/sequence.ts';
import type { Identified, InstanceContext } from '../../scheduler/component.ts';
import type { RunningRequest } from '../../scheduler/executor/executor.ts';

/** A step waits this much longer than predicted, before the other requests in it matter more. */
const graceUs = 100_000;

export class EarlyStart {
  readonly #context: InstanceContext<Identified, RunningRequest>;

  constructor(context: InstanceContext<Identified, RunningRequest>) {
    this.#context = context;
  }

  /**
   * True immediately for a request that is alone. Beside others, once its first chunk takes as long as the rest of its prefix: each layer then
   * arrives no later than the chunk needs it.
   */
  may(sequence: Sequence, blocks: number, arrivesUs: number): boolean {
    const { scheduler, config } = this.#context;
    const { running, waiting } = scheduler;
    const isAlone = running.length === 0 && waiting.every((other) => other === sequence || other.loading);
    if (isAlone) return true;
    const cached = blocks * config.blockTokens;
    const rows = Math.min(sequence.length - cached, config.limits.tokensMax);
    const keyRows = rows * cached + (rows * (rows + 1)) / 2;
    const chunkUs = config.cost.predictUs({ rows, keyRows, decodeRows: 0, decodeKeys: 0, logitRows: 1 });
    return arrivesUs <= Math.min(chunkUs, config.limits.stepUsPrefill);
  }

  /** How long a step of so many requests waits for blocks that are predicted to arrive in `arrivesUs`, and are given up in `patienceUs`. */
  withinUs(requests: number, arrivesUs: number, patienceUs: number): number {
    return requests === 1 ? patienceUs : Math.min(patienceUs, 2 * arrivesUs + graceUs);
  }
}
