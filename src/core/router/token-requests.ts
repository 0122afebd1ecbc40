// What the conductor reads of requests with token ids, and how such a request resumes on another instance.

import { Int32List } from '../../util/int32-list.ts';
import type { RequestId } from '../protocol/ids.ts';
import type { GenerationEvent, GenerationRequest } from '../protocol/ports.ts';
import { sizeOf } from '../protocol/request-size.ts';
import type { Progress, RequestModel } from './conductor-config.ts';

export const tokenRequests: RequestModel<GenerationRequest> = {
  size: sizeOf,
  isBatchJob: ({ batch }) => batch === true,
  progressOf: (request) => new TokenProgress(request),
};

/** Sampling is a function of the seed and of the number of earlier tokens: a resumed request continues with the same tokens. */
class TokenProgress implements Progress<GenerationRequest> {
  readonly #request: GenerationRequest;
  readonly #tokens = new Int32List();
  /** Prompt log-probabilities that the client has received. */
  #scored = 0;

  constructor(request: GenerationRequest) {
    this.#request = request;
  }

  receive(event: GenerationEvent): boolean {
    if (event.kind === 'prompt-logprobs') this.#scored += event.logprobs.logprobs.length;
    if (event.kind === 'tokens') {
      if (event.at !== undefined && event.at < this.#tokens.length) return false;
      for (const token of event.tokens) this.#tokens.push(token);
    }
    return true;
  }

  /** Only received tokens count: a report carries no token ids. */
  advance(): void {}

  get ended(): 'stop' | 'length' | undefined {
    const { length } = this.#tokens;
    if (length === 0) return undefined;
    if (this.#request.stopTokenIds.includes(this.#tokens.at(length - 1))) return 'stop';
    return length === this.#request.maxTokens ? 'length' : undefined;
  }

  resume(id: RequestId): GenerationRequest {
    const resumed = { tokens: Int32Array.from(this.#tokens.view()), scored: this.#scored };
    return { ...this.#request, id, resumed };
  }
}
