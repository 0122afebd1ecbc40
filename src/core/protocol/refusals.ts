// Refusals: the failure event of a request that is not served, built from the figures of the decision.

import { assertNever } from '../../util/assert-never.ts';
import type { GenerationEvent } from './ports.ts';
import type { RefusalCause } from './refusal-cause.ts';
import { kvTokens, type RequestSize } from './request-size.ts';

export type Refusal = Extract<GenerationEvent, { kind: 'failed' }>;

/** Bounds of Retry-After, in milliseconds. */
export const retryAfterMsMin = 1_000;
export const retryAfterMsMax = 60_000;

/** @param retryAfterMs undefined: a retry would be refused for the same reason */
export function refusal(cause: RefusalCause, retryAfterMs: number | undefined): Refusal {
  return {
    kind: 'failed',
    code: cause.reason === 'length' ? 'CONTEXT_TOO_LONG' : 'KV_OVERLOADED',
    message: `Cannot admit request: ${describe(cause, retryAfterMs)}`,
    retryAfterMs,
    cause,
  };
}

/** Accepted requests reach the limit `--queue`. @param accepted requests that are accepted and not ended */
export function queueFull(accepted: number, queueMax: number, retryAfterMs: number): Refusal {
  return refusal({ reason: 'queue', at: 'prefill', accepted, queueMax }, retryAfterMs);
}

/** The refusal of a request that does not fit into KV memory even when it is alone; undefined when it fits. */
export function contextTooLong(size: RequestSize, capacityTokens: number): Refusal | undefined {
  if (kvTokens(size) <= capacityTokens) return undefined;
  const { promptTokens, outputTokensMax } = size;
  return refusal({ reason: 'length', at: 'prefill', promptTokens, outputTokensMax, capacityTokens }, undefined);
}

/** The refusal of a prompt that is longer than the receive buffers of the instance that would decode it. */
export function promptExceedsReceiveBuffer(promptTokens: number): Refusal {
  return refusal({ reason: 'length', at: 'decode', promptTokens }, undefined);
}

/** The predicted or counted value, divided by its bound; undefined when the cause carries no figures. */
export function loadOf(cause: RefusalCause): number | undefined {
  switch (cause.reason) {
    case 'ttft':
    case 'tbt':
    case 'completion':
      return cause.predictedUs / cause.mostUs;
    case 'memory':
      return cause.at === 'prefill' ? cause.share : cause.tokens / cause.capacityTokens;
    case 'queue':
      // With the refused request.
      return (cause.accepted + 1) / cause.queueMax;
    case 'length':
      return cause.at === 'prefill' ? kvTokens(cause) / cause.capacityTokens : undefined;
    default:
      return assertNever(cause);
  }
}

function ms(us: number): number {
  return Math.round(us / 1000);
}

function describe(cause: RefusalCause, retryAfterMs: number | undefined): string {
  switch (cause.reason) {
    case 'ttft':
      return `predicted TTFT ${ms(cause.predictedUs)} ms exceeds ${ms(cause.mostUs)} ms`;
    case 'tbt':
      return `${late(cause)}predicted TBT ${ms(cause.predictedUs)} ms exceeds ${ms(cause.mostUs)} ms`;
    case 'completion':
      return `${Math.round(cause.outputTokens)} tokens by a predicted TBT of ${ms(cause.tbtUs)} ms exceed ${ms(cause.mostUs)} ms`;
    case 'memory':
      return cause.at === 'prefill'
        ? `requests that decode would need ${Math.round(cause.share * 100)} % of the KV memory`
        : `${late(cause)}${cause.sequences} sequences of ${cause.tokens} tokens, ${cause.capacityTokens} fit`;
    case 'queue':
      return `${cause.accepted} of at most ${cause.queueMax} requests are being served, try again in ${retryAfterMs} ms`;
    case 'length':
      return cause.at === 'prefill'
        ? `it is longer than the KV memory: ${cause.promptTokens} prompt tokens and up to ${cause.outputTokensMax} of output, ${cause.capacityTokens} fit`
        : 'its prompt is longer than the memory that takes prompts from other instances';
    default:
      return assertNever(cause);
  }
}

function late({ at }: RefusalCause): string {
  return at === 'decode' ? 'its decode would be late: ' : '';
}
