// Whether a request may start while its prefix is still on its way: a step that waits for it holds up all whose rows it has.
import type { Batcher } from '../../scheduler/batching/batcher.ts';
import type { Sequence } from '../../scheduler/batching/sequence.ts';
import type { InstanceConfig } from '../../scheduler/instance-config.ts';

/** Beyond what is predicted, before those who share the step are worth more. */
const graceUs = 100_000;

export class EarlyStart {
  readonly #config: Pick<InstanceConfig, 'cost' | 'limits' | 'blockTokens'>;
  readonly #batcher: Pick<Batcher, 'running' | 'waiting'>;

  constructor(
    config: Pick<InstanceConfig, 'cost' | 'limits' | 'blockTokens'>,
    batcher: Pick<Batcher, 'running' | 'waiting'>,
  ) {
    this.#config = config;
    this.#batcher = batcher;
  }

  /** Alone at once; beside others once its first chunk takes as long as what is still to come: layers then come no later than they are wanted. */
  may(sequence: Sequence, blocks: number, comesUs: number): boolean {
    const { running, waiting } = this.#batcher;
    const isAlone = running.length === 0 && waiting.every((other) => other === sequence || other.loading);
    if (isAlone) return true;
    const cached = blocks * this.#config.blockTokens;
    const rows = Math.min(sequence.length - cached, this.#config.limits.tokensMax);
    const keyRows = rows * cached + (rows * (rows + 1)) / 2;
    const chunkUs = this.#config.cost.predictUs({ rows, keyRows, decodeRows: 0, decodeKeys: 0, logitRows: 1 });
    return comesUs <= Math.min(chunkUs, this.#config.limits.stepUsPrefill);
  }

  /** How long a step of so many requests waits for what is predicted to come in `comesUs`, and given up in `patienceUs`. */
  withinUs(requests: number, comesUs: number, patienceUs: number): number {
    return requests === 1 ? patienceUs : Math.min(patienceUs, 2 * comesUs + graceUs);
  }
}
