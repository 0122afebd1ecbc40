// Whether a request is taken at all: the bounded queue, the size of the KV memory, and how long to wait before trying again.

import { type Refusal, refusal } from '../../protocol/refusals.ts';
import { kvTokens, type RequestSize } from '../../protocol/request-size.ts';
import type { StepPredictor } from '../../protocol/step-shape.ts';
import type { Loads } from './admission.ts';
import { decodeShape, type Slo } from './slo.ts';

const samples = 64;
const retryMsMin = 1_000;
const retryMsMax = 60_000;

/** When the last requests ended: what Retry-After is derived from. */
export class Throughput {
  readonly #endedUs = new Float64Array(samples);
  #count = 0;

  ended(nowUs: number): void {
    this.#endedUs[this.#count++ % samples] = nowUs;
  }

  /** Time in which half of `backlog` requests should end at the observed rate: 1 s to 60 s, 1 s when nothing has ended yet. */
  retryAfterMs(nowUs: number, backlog: number): number {
    const known = Math.min(samples, this.#count);
    if (known < 2) return retryMsMin;
    const oldestUs = this.#endedUs[this.#count > samples ? this.#count % samples : 0];
    const usPerRequest = (nowUs - oldestUs) / known;
    return Math.round(Math.min(retryMsMax, Math.max(retryMsMin, (usPerRequest * backlog) / 2 / 1_000)));
  }
}

/** Sequences that would decode together, one of them new. */
interface DecodeBatch {
  /** Tokens of each. */
  readonly lengths: readonly number[];
  /** What they grow by, all together, before one of them leaves. */
  readonly growthTokens: number;
  readonly capacityTokens: number;
  readonly blockTokens: number;
  readonly cost: Pick<StepPredictor, 'predictUs'>;
  /** What those in it may wait for each token, the least of them. */
  readonly tbtUsMax: number;
}

/** The refusal of a request with which a batch would not fit into memory, or decode too slowly; the last look before it joins. */
export function decodeRefusal({
  lengths,
  growthTokens,
  capacityTokens,
  blockTokens,
  cost,
  tbtUsMax,
}: DecodeBatch): Refusal | undefined {
  let keys = 0;
  let tokens = 0;
  for (const length of lengths) {
    keys += length;
    tokens += Math.ceil((length + 1) / blockTokens) * blockTokens;
  }
  const rows = lengths.length;
  if (tokens > capacityTokens)
    return refusal({ reason: 'memory', at: 'decode', sequences: rows, tokens, capacityTokens }, retryMsMin);
  if (tbtUsMax === Number.POSITIVE_INFINITY) return undefined;
  const predictedUs = cost.predictUs(decodeShape(rows, keys + growthTokens));
  if (predictedUs <= tbtUsMax) return undefined;
  return refusal({ reason: 'tbt', at: 'decode', predictedUs, mostUs: tbtUsMax }, retryMsMin);
}

/** What a request would meet. */
interface Meeting {
  readonly ttftUs: number;
  readonly tbtUs: number;
  readonly outputTokens: number;
  /** Until its last token. */
  readonly completionUs: number;
  /** Of all that would decode, over what fits. */
  readonly memory: number;
  /** How long those who decode take. */
  readonly decodeUs: number;
}

/** A request whose first token or whose next ones would come too late, or whose keys and values would not fit, as predicted before its prefill. */
export function refusedLate(worst: keyof Loads, predicted: Meeting, slo: Slo): Refusal {
  const ttftUsMax = Math.min(slo.ttftUs, slo.completionUs);
  const { ttftUs, tbtUs, outputTokens, memory, completionUs, decodeUs } = predicted;
  const causes = {
    ttft: { reason: 'ttft', at: 'prefill', predictedUs: ttftUs, mostUs: ttftUsMax },
    tbt: { reason: 'tbt', at: 'prefill', predictedUs: tbtUs, mostUs: slo.tbtUs },
    completion: {
      ...({ reason: 'completion', at: 'prefill', outputTokens, tbtUs } as const),
      ...{ predictedUs: completionUs, mostUs: slo.completionUs },
    },
    memory: { reason: 'memory', at: 'prefill', share: memory },
  } as const;
  const afterMs = Math.round((worst === 'ttft' ? ttftUs - ttftUsMax : decodeUs) / 1000);
  return refusal(causes[worst], Math.min(retryMsMax, Math.max(retryMsMin, afterMs)));
}

/** A request that the pool could not hold even alone. */
export function tooLong(size: RequestSize, capacityTokens: number): Refusal | undefined {
  if (kvTokens(size) <= capacityTokens) return undefined;
  const { promptTokens, outputTokensMax } = size;
  return refusal({ reason: 'length', at: 'prefill', promptTokens, outputTokensMax, capacityTokens }, undefined);
}

/** A prompt that could never land where it is to be decoded. */
export function tooLargeToLand(promptTokens: number): Refusal {
  return refusal({ reason: 'length', at: 'decode', promptTokens }, undefined);
}

export function overloaded(accepted: number, queueMax: number, retryAfterMs: number): Refusal {
  return refusal({ reason: 'queue', at: 'prefill', accepted, queueMax }, retryAfterMs);
}
