// What the client of a simulated request has had of it, so that another instance can go on from there.

import type { RequestId } from '../protocol/ids.ts';
import type { GenerationEvent } from '../protocol/ports.ts';
import type { LengthRequest } from '../scheduler/executor/length-request.ts';
import type { Progress } from './attempts.ts';

/** Of tokens only the first one of a try is said when it comes; reports tell of the others. */
export class LengthProgress implements Progress<LengthRequest> {
  /** The current try's. */
  #request: LengthRequest;
  #told = 0;

  constructor(request: LengthRequest) {
    this.#request = request;
  }

  hear(event: GenerationEvent): boolean {
    if (event.kind !== 'tokens') return true;
    const to = (event.at ?? this.#told) + event.tokens.length;
    if (to <= this.#told) return false;
    this.#told = to;
    return true;
  }

  reach(outputs: number): void {
    this.#told = Math.max(this.#told, outputs);
  }

  get ended(): 'length' | undefined {
    return this.#told === this.#request.outputTokens ? 'length' : undefined;
  }

  resume(id: RequestId): LengthRequest {
    this.#request = this.#request.resume(id, this.#told);
    return this.#request;
  }
}
