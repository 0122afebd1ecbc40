// Refusals: the words that a client hears, made from the figures that they rest on.
import type { GenerationEvent } from './ports.ts';
import type { RefusalCause } from './refusal-cause.ts';

import { kvTokens } from './request-size.ts';

export type Refusal = Extract<GenerationEvent, { kind: 'failed' }>;

/** @param retryAfterMs undefined: it would meet the same again */
export function refusal(cause: RefusalCause, retryAfterMs: number | undefined): Refusal {
  return {
    kind: 'failed',
    code: cause.reason === 'length' ? 'CONTEXT_TOO_LONG' : 'KV_OVERLOADED',
    message: `Cannot admit request: ${wordsOf(cause, retryAfterMs)}`,
    retryAfterMs,
    cause,
  };
}

/** What is predicted or counted, over the most that it may be; undefined where whoever refused did not say. */
export function loadOf(cause: RefusalCause): number | undefined {
  switch (cause.reason) {
    case 'ttft':
    case 'tbt':
    case 'completion':
      return cause.predictedUs / cause.mostUs;
    case 'memory':
      return cause.at === 'prefill' ? cause.share : cause.tokens / cause.capacityTokens;
    case 'queue':
      // The request comes on top.
      return (cause.accepted + 1) / cause.queueMax;
    case 'length':
      return cause.at === 'prefill' ? kvTokens(cause) / cause.capacityTokens : undefined;
  }
}

function ms(us: number): number {
  return Math.round(us / 1000);
}

function wordsOf(cause: RefusalCause, retryAfterMs: number | undefined): string {
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
      return `the queue is full: ${cause.accepted} of ${cause.queueMax} requests are being served, try again in ${retryAfterMs} ms`;
    case 'length':
      return cause.at === 'prefill'
        ? `it is longer than the KV memory: ${cause.promptTokens} prompt tokens and up to ${cause.outputTokensMax} of output, ${cause.capacityTokens} fit`
        : 'its prompt is longer than the memory that takes prompts from other instances';
  }
}

function late({ at }: RefusalCause): string {
  return at === 'decode' ? 'its decode would be late: ' : '';
}
