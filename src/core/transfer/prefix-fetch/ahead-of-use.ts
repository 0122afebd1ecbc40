// Whether a request starts ahead of use, while its prefix is in transit: a step that waits for blocks delays all of its requests.

import type { Sequence } from '../../scheduler/batching/sequence.ts';
import type { Identified, InstanceContext } from '../../scheduler/component.ts';
import type { RunningRequest } from '../../scheduler/executor/executor.ts';

/** A step with other requests waits at most this much longer than twice the prediction. */
const graceUs = 100_000;

export class AheadOfUse {
  readonly #context: InstanceContext<Identified, RunningRequest>;

  constructor(context: InstanceContext<Identified, RunningRequest>) {
    this.#context = context;
  }

  /**
   * A request that is alone starts immediately. Beside others it starts once its first chunk takes as long as the rest of its prefix: each
   * layer then arrives before the chunk needs it.
   */
  mayStart(sequence: Sequence, blocks: number, arrivesUs: number): boolean {
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

  /** Maximum time that a step of so many requests waits for blocks that are predicted to arrive in `arrivesUs`. @param patienceUs time until they are computed instead */
  waitUsMax(requests: number, arrivesUs: number, patienceUs: number): number {
    return requests === 1 ? patienceUs : Math.min(patienceUs, 2 * arrivesUs + graceUs);
  }
}
