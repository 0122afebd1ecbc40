// Whether a request is taken at all: the bounded queue, the size of the KV memory, and how long to wait before trying again.
import type { Loads } from '../policy/admission/admission.ts';
import { decodeShape, type Slo } from '../policy/admission/slo.ts';
import type { StepPredictor } from '../policy/cost/step-shape.ts';
import type { GenerationEvent, GenerationRequest } from './ports.ts';

export type Refusal = Extract<GenerationEvent, { kind: 'failed' }>;

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

/** How long a request may become. */
export interface RequestSize {
  readonly promptTokens: number;
  readonly outputTokensMax: number;
}

export function sizeOf(request: GenerationRequest): RequestSize {
  const before = request.resumed?.tokens.length ?? 0;
  return { promptTokens: request.prompt.length + before, outputTokensMax: request.maxTokens - before };
}

/** Tokens whose keys and values a request may need at once: the last token of the output never needs them. */
export function kvTokens({ promptTokens, outputTokensMax }: RequestSize): number {
  return promptTokens + Math.max(0, outputTokensMax - 1);
}

/** A prompt that could never land where it is to be decoded. */
export const tooLargeToLand: Refusal = {
  kind: 'failed',
  code: 'CONTEXT_TOO_LONG',
  message: 'Cannot admit request: its prompt is longer than the memory that takes prompts from other instances',
  retryAfterMs: undefined,
  cause: { at: 'decode', reason: 'length' },
};

/** Sequences that would decode together, one of them new. */
interface DecodeBatch {
  /** Tokens of each. */
  readonly lengths: readonly number[];
  /** What they grow by, all together, before one of them leaves. */
  readonly growthTokens: number;
  readonly capacityTokens: number;
  readonly blockTokens: number;
  readonly cost: StepPredictor;
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
    return lateDecode('memory', `${rows} sequences of ${tokens} tokens, ${capacityTokens} fit`);
  if (tbtUsMax === Number.POSITIVE_INFINITY) return undefined;
  const us = cost.predictUs(decodeShape(rows, keys + growthTokens));
  if (us <= tbtUsMax) return undefined;
  return lateDecode('tbt', `predicted TBT ${Math.round(us / 1000)} ms exceeds ${Math.round(tbtUsMax / 1000)} ms`);
}

/** What a request would meet. */
interface Meeting {
  readonly ttftUs: number;
  readonly tbtUs: number;
  readonly outputTokens: number;
  /** Of all that would decode, over what fits. */
  readonly memory: number;
  /** How long those who decode take. */
  readonly decodeUs: number;
}

/** A request whose first token or whose next ones would come too late, or whose keys and values would not fit, as predicted before its prefill. */
export function refusedLate(worst: keyof Loads, predicted: Meeting, slo: Slo): Refusal {
  const ms = (us: number) => Math.round(us / 1000);
  const ttftUsMax = Math.min(slo.ttftUs, slo.completionUs);
  const afterUs = worst === 'ttft' ? predicted.ttftUs - ttftUsMax : predicted.decodeUs;
  const figures = {
    ttft: `predicted TTFT ${ms(predicted.ttftUs)} ms exceeds ${ms(ttftUsMax)} ms`,
    tbt: `predicted TBT ${ms(predicted.tbtUs)} ms exceeds ${ms(slo.tbtUs)} ms`,
    completion: `${Math.round(predicted.outputTokens)} tokens by a predicted TBT of ${ms(predicted.tbtUs)} ms exceed ${ms(slo.completionUs)} ms`,
    memory: `requests that decode would need ${Math.round(predicted.memory * 100)} % of the KV memory`,
  };
  return {
    kind: 'failed',
    code: 'KV_OVERLOADED',
    message: `Cannot admit request: ${figures[worst]}`,
    retryAfterMs: Math.min(retryMsMax, Math.max(retryMsMin, ms(afterUs))),
    cause: { at: 'prefill', reason: worst },
  };
}

function lateDecode(reason: 'memory' | 'tbt', figures: string): Refusal {
  return {
    kind: 'failed',
    code: 'KV_OVERLOADED',
    message: `Cannot admit request: its decode would be late: ${figures}`,
    retryAfterMs: retryMsMin,
    cause: { at: 'decode', reason },
  };
}

/** A request that the pool could not hold even alone. */
export function tooLong(size: RequestSize, capacityTokens: number): Refusal | undefined {
  if (kvTokens(size) <= capacityTokens) return undefined;
  const figures = `${size.promptTokens} prompt tokens and up to ${size.outputTokensMax} of output, ${capacityTokens} fit`;
  return {
    kind: 'failed',
    code: 'CONTEXT_TOO_LONG',
    message: `Cannot admit request: it is longer than the KV memory: ${figures}`,
    retryAfterMs: undefined,
    cause: { at: 'prefill', reason: 'length' },
  };
}

export function overloaded(accepted: number, queueMax: number, retryAfterMs: number): Refusal {
  return {
    kind: 'failed',
    code: 'KV_OVERLOADED',
    message: `Cannot admit request: the queue is full: ${accepted} of ${queueMax} requests are being served, try again in ${retryAfterMs} ms`,
    retryAfterMs,
    cause: { at: 'prefill', reason: 'queue' },
  };
}
