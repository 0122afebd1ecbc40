// How long a request may become.
import type { GenerationRequest } from './ports.ts';

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

/** What an instance has of it that computes the prompt for another one. */
export function promptOf({ promptTokens, outputTokensMax }: RequestSize): RequestSize {
  return { promptTokens, outputTokensMax: Math.min(1, outputTokensMax) };
}
