// What the client of a generated text has heard, so that another instance can go on from there.
import { Int32List } from '../../util/int32-list.ts';
import type { RequestId } from '../protocol/ids.ts';
import type { GenerationEvent, GenerationRequest } from '../protocol/ports.ts';
import type { Progress } from './attempts.ts';

/** Sampling is a function of the seed and of how many tokens came before: the tokens that follow are those that would have. */
export class TokenProgress implements Progress<GenerationRequest> {
  readonly #request: GenerationRequest;
  readonly #tokens = new Int32List();
  #scored = 0;

  constructor(request: GenerationRequest) {
    this.#request = request;
  }

  hear(event: GenerationEvent): boolean {
    if (event.kind === 'prompt-logprobs') this.#scored += event.logprobs.logprobs.length;
    if (event.kind === 'tokens') {
      if (event.at !== undefined && event.at < this.#tokens.length) return false;
      for (const token of event.tokens) this.#tokens.push(token);
    }
    return true;
  }

  /** Only tokens that came count: which they were is not known of others. */
  reach(): void {}

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
