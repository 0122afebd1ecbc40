// Admission check on the decode instance: whether the batch keeps its TBT objective and fits in memory with one more request (Mooncake, section 6).

import { type Refusal, refusal, retryAfterMsMin } from '../../protocol/refusals.ts';
import { decodeShape, type StepPredictor } from '../../protocol/step-shape.ts';
import type { Identified, InstanceContext } from '../../scheduler/component.ts';
import type { RunningRequest } from '../../scheduler/executor/executor.ts';

export class DecodeCheck<Request extends Identified, S extends RunningRequest> {
  readonly #context: InstanceContext<Request, S>;
  readonly #growth = new DecodeGrowth();

  constructor(context: InstanceContext<Request, S>) {
    this.#context = context;
  }

  /** A request has finished: its output length is learned. */
  ended({ sequence }: S): void {
    this.#growth.observe(sequence.length - sequence.promptLength);
  }

  /** The refusal of a request with which the batch would decode too slowly, or not fit; undefined: it is admitted. */
  refusal(request: Request, capacityTokens: number): Refusal | undefined {
    const { scheduler, requests, executor, config } = this.#context;
    const priority = executor.priorityOf(request);
    const sequences = [...scheduler.running, ...scheduler.waiting].filter(({ background }) => !background);
    return decodeRefusal({
      lengths: [executor.size(request).promptTokens + 1, ...sequences.map(({ length }) => length)],
      // Sequences of lower priority give their memory to it.
      outranked: sequences.filter((each) => each.priority < priority).map(({ length }) => length),
      growthTokens: this.#growth.tokens,
      capacityTokens,
      blockTokens: config.blockTokens,
      cost: config.cost,
      tbtUsMax: requests.tbtUsMax(executor.tbtUsMax(request), priority),
    });
  }
}

/** Number of output lengths in the running mean. */
const rememberedMax = 256;
/**
 * In a batch of n requests with outputs of mean length m, one ends every m / n steps, and each step adds n tokens: m tokens until one ends. The
 * batch rarely grows by more than three times as much.
 */
const means = 3;

/** Tokens by which a decoding batch grows before one of its requests ends. */
class DecodeGrowth {
  #mean = 0;
  #known = 0;

  /** Of all requests together. */
  get tokens(): number {
    return means * this.#mean;
  }

  observe(outputTokens: number): void {
    this.#known = Math.min(rememberedMax, this.#known + 1);
    this.#mean += (outputTokens - this.#mean) / this.#known;
  }
}

/** Sequences that would decode together, the new one included. */
interface DecodeBatch {
  /** Tokens of each sequence. */
  readonly lengths: readonly number[];
  /** Those of them that give their memory to the new one. */
  readonly outranked?: readonly number[];
  /** Tokens by which all of them together grow before one ends. */
  readonly growthTokens: number;
  readonly capacityTokens: number;
  readonly blockTokens: number;
  readonly cost: Pick<StepPredictor, 'predictUs'>;
  /** The strictest TBT bound of the new sequence and of those that it does not outrank; Infinity: no bound. */
  readonly tbtUsMax: number;
}

/** The refusal of a batch that would not fit into memory, or would decode too slowly; undefined: neither. */
export function decodeRefusal({
  lengths,
  outranked = [],
  growthTokens,
  capacityTokens,
  blockTokens,
  cost,
  tbtUsMax,
}: DecodeBatch): Refusal | undefined {
  let keys = 0;
  let tokens = 0;
  const heldTokens = (length: number): number => Math.ceil((length + 1) / blockTokens) * blockTokens;
  for (const length of lengths) {
    keys += length;
    tokens += heldTokens(length);
  }
  for (const length of outranked) tokens -= heldTokens(length);
  const rows = lengths.length;
  if (tokens > capacityTokens)
    return refusal(
      { reason: 'memory', at: 'decode', sequences: rows - outranked.length, tokens, capacityTokens },
      retryAfterMsMin,
    );
  if (tbtUsMax === Number.POSITIVE_INFINITY) return undefined;
  const predictedUs = cost.predictUs(decodeShape(rows, keys + growthTokens));
  if (predictedUs <= tbtUsMax) return undefined;
  return refusal({ reason: 'tbt', at: 'decode', predictedUs, mostUs: tbtUsMax }, retryAfterMsMin);
}
