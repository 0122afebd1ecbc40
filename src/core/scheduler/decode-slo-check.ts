// The last look at a request whose prompt has landed: whether all that decodes here would still be in time with it.

import type { Refusal } from '../protocol/refusals.ts';
import type { StepPredictor } from '../protocol/step-shape.ts';
import { DecodeGrowth } from '../router/admission/decode-growth.ts';
import { decodeRefusal } from '../router/admission/queue-admission.ts';
import type { Batcher } from './batching/batcher.ts';
import type { Executor, RunningRequest } from './executor/executor.ts';
import type { InstanceConfig } from './instance-config.ts';
import type { RequestTable } from './request-table.ts';

interface Parts<Request, S extends RunningRequest> {
  readonly batcher: Batcher;
  readonly roster: RequestTable<S>;
  readonly work: Pick<Executor<Request, S, never, never>, 'size' | 'tbtUsMax'>;
  readonly cost: StepPredictor;
  readonly blockTokens: number;
}

export class DecodeCheck<Request, S extends RunningRequest> {
  readonly #parts: Parts<Request, S>;
  readonly #growth = new DecodeGrowth();

  constructor(parts: Parts<Request, S>) {
    this.#parts = parts;
  }

  /** An output came to its end. */
  ended({ sequence }: S): void {
    this.#growth.observe(sequence.length - sequence.promptLength);
  }

  /** The refusal of a request with which those here would decode too slowly, or not fit. */
  refusal(request: Request, capacityTokens: number): Refusal | undefined {
    const { batcher, roster, work, cost, blockTokens } = this.#parts;
    const sequences = [...batcher.running, ...batcher.waiting].filter(({ background }) => !background);
    return decodeRefusal({
      lengths: [work.size(request).promptTokens + 1, ...sequences.map(({ length }) => length)],
      growthTokens: this.#growth.tokens,
      capacityTokens,
      blockTokens,
      cost,
      tbtUsMax: roster.tbtUsMax(work.tbtUsMax(request)),
    });
  }
}

/** Undefined where nothing is refused that has landed. */
export function createDecodeCheck<Request, S extends RunningRequest>(
  { handOff, cost, blockTokens }: Pick<InstanceConfig, 'handOff' | 'cost' | 'blockTokens'>,
  parts: Pick<Parts<Request, S>, 'batcher' | 'roster' | 'work'>,
): DecodeCheck<Request, S> | undefined {
  return handOff?.rechecks === true ? new DecodeCheck({ ...parts, cost, blockTokens }) : undefined;
}
