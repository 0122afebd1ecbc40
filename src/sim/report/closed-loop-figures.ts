// Figures of a closed loop while all of its clients are busy.

import { Histogram } from './histogram.ts';

/** A request of the loop that has ended. */
export interface EndedRequest {
  readonly endedUs: number;
  /** 0: it was refused. */
  readonly outputTokens: number;
  readonly ttftUs: number;
}

/**
 * Counts requests from the time at which as many have ended as there are clients until the last request is sent. Before, requests start
 * together; after, fewer and fewer clients are left.
 */
export class ClosedLoopFigures {
  readonly clients: number;
  readonly ttftUs = new Histogram();
  #ended = 0;
  #fromUs = 0;
  #untilUs = 0;
  #requests = 0;
  #outputTokens = 0;

  constructor(clients: number) {
    this.clients = clients;
  }

  /** @param followed the client sends another request */
  ended({ endedUs, outputTokens, ttftUs }: EndedRequest, followed: boolean): void {
    if (!followed) return;
    this.#ended++;
    this.#untilUs = endedUs;
    if (this.#ended <= this.clients) {
      this.#fromUs = endedUs;
      return;
    }
    if (outputTokens === 0) return;
    this.#requests++;
    this.#outputTokens += outputTokens;
    this.ttftUs.add(ttftUs);
  }

  /** Completed requests. */
  get requests(): number {
    return this.#requests;
  }

  get seconds(): number {
    return (this.#untilUs - this.#fromUs) / 1e6;
  }

  /** 0 if the workload has too few requests for its clients. */
  get requestsPerSecond(): number {
    return this.seconds === 0 ? 0 : this.#requests / this.seconds;
  }

  get outputTokensPerSecond(): number {
    return this.seconds === 0 ? 0 : this.#outputTokens / this.seconds;
  }
}
