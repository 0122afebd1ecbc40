// The size of a request: its prompt and its longest possible output.

import type { GenerationRequest } from './ports.ts';

export interface RequestSize {
  readonly promptTokens: number;
  readonly outputTokensMax: number;
  /** KV budget of the request, where one is given. */
  readonly kvBudget?: GenerationRequest['kvBudget'] | undefined;
  /** Of the prompt tokens, output of earlier attempts. */
  readonly resumedTokens?: number | undefined;
}

/** Output of earlier attempts counts as prompt. */
export function sizeOf(request: GenerationRequest): RequestSize {
  const before = request.resumed?.tokens.length ?? 0;
  const kvBudget = kvBudgetOf(request);
  const size = { promptTokens: request.prompt.length + before, outputTokensMax: request.maxTokens - before };
  const budget = kvBudget === undefined ? size : { ...size, kvBudget };
  return before === 0 ? budget : { ...budget, resumedTokens: before };
}

/** The KV budget of a request. One that only scores or caches its prompt keeps all tokens. */
export function kvBudgetOf({ kvBudget, maxTokens, sampling }: GenerationRequest): GenerationRequest['kvBudget'] {
  return maxTokens === 0 || sampling.promptLogprobs ? 'full' : kvBudget;
}

/** KV tokens that a request needs at most: the last output token needs no keys and values. */
export function kvTokens({ promptTokens, outputTokensMax }: RequestSize): number {
  return promptTokens + Math.max(0, outputTokensMax - 1);
}

/** The size on an instance that computes the prompt for another one. */
export function promptOf(size: RequestSize): RequestSize {
  return { ...size, outputTokensMax: Math.min(1, size.outputTokensMax) };
}
