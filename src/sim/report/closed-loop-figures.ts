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
 * together; after, fewer and fewer clients are left. Clients may stay in step, so rates are those of whole rounds: as many ended requests
 * as there are clients.
 */
export class ClosedLoopFigures {
  readonly clients: number;
  /** Of completed requests, also behind the last whole round. */
  readonly ttftUs = new Histogram();
  #ended = 0;
  #fromUs = 0;
  #untilUs = 0;
  #requests = 0;
  #outputTokens = 0;
  /** Of the round that has begun. */
  readonly #round = { requests: 0, outputTokens: 0 };

  constructor(clients: number) {
    this.clients = clients;
  }

  /** @param followed the client sends another request */
  ended({ endedUs, outputTokens, ttftUs }: EndedRequest, followed: boolean): void {
    if (!followed) return;
    this.#ended++;
    const isFirstRound = this.#ended <= this.clients;
    if (!isFirstRound && outputTokens > 0) {
      this.#round.requests++;
      this.#round.outputTokens += outputTokens;
      this.ttftUs.add(ttftUs);
    }
    if (this.#ended % this.clients === 0) this.#endRound(endedUs, isFirstRound);
  }

  #endRound(endedUs: number, isFirst: boolean): void {
    this.#requests += this.#round.requests;
    this.#outputTokens += this.#round.outputTokens;
    this.#round.requests = 0;
    this.#round.outputTokens = 0;
    this.#untilUs = endedUs;
    if (isFirst) this.#fromUs = endedUs;
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
