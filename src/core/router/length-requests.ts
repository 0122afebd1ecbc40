// What the conductor reads of simulated requests, and how such a request resumes on another instance.

import type { RequestId } from '../protocol/ids.ts';
import type { GenerationEvent } from '../protocol/ports.ts';
import type { LengthRequest } from '../scheduler/executor/length-request.ts';
import type { Progress, RequestModel } from './conductor-config.ts';

export const lengthRequests: RequestModel<LengthRequest> = {
  size: ({ size }) => size,
  isBatchJob: ({ trace }) => trace.batch === true,
  progressOf: (request) => new LengthProgress(request),
};

/** An attempt emits its first token alone; heartbeats report the number of the others. */
class LengthProgress implements Progress<LengthRequest> {
  /** The request of the current attempt. */
  #request: LengthRequest;
  #received = 0;

  constructor(request: LengthRequest) {
    this.#request = request;
  }

  receive(event: GenerationEvent): boolean {
    if (event.kind !== 'tokens') return true;
    const to = (event.at ?? this.#received) + event.tokens.length;
    if (to <= this.#received) return false;
    this.#received = to;
    return true;
  }

  advance(outputs: number): void {
    this.#received = Math.max(this.#received, outputs);
  }

  get ended(): 'length' | undefined {
    return this.#received === this.#request.outputTokens ? 'length' : undefined;
  }

  resume(id: RequestId): LengthRequest {
    this.#request = this.#request.resume(id, this.#received);
    return this.#request;
  }
}
