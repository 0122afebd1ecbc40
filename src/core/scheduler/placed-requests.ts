// The requests that one conductor has placed on an instance, counted from the messages about them.

import type { RequestId } from '../protocol/ids.ts';
import { type PlacedLoad, type PlacedRequest, placedLoad, type ReportedRequest } from '../protocol/instance-report.ts';
import type { GenerationEvent } from '../protocol/ports.ts';

/** What is counted of a request when it arrives. */
interface NewRequest {
  readonly priority: number;
  readonly tenant: string | undefined;
  readonly promptTokens: number;
  /** Of the prompt, as its conductor predicts. */
  readonly cachedTokens: number;
  /** Batch jobs delay no other request. */
  readonly batch: boolean;
}

interface CountedRequest extends PlacedRequest {
  readonly batch: boolean;
  cachedTokens: number;
  outputs: number;
  phase: PlacedRequest['phase'];
  /** Memory is reserved, and the prompt has not been received. */
  receiving: boolean;
}

export class PlacedRequests {
  readonly #requests = new Map<RequestId, CountedRequest>();

  get ids(): Iterable<RequestId> {
    return this.#requests.keys();
  }

  /** @param receiving another instance computes its prompt, and memory is promised to it here */
  add(id: RequestId, request: NewRequest, receiving: boolean): void {
    const phase = receiving ? 'decode' : 'prefill';
    this.#requests.set(id, { ...request, outputs: 0, phase, receiving });
  }

  /** The prompt has arrived from the instance that computed it. */
  received(id: RequestId): void {
    const request = this.#requests.get(id);
    if (request !== undefined) request.receiving = false;
  }

  /** The prompt is computed, and leaves for its decode instance. */
  prefilled(id: RequestId): void {
    const request = this.#requests.get(id);
    if (request?.phase === 'prefill') request.phase = 'handingOff';
  }

  /** An event of the request here; the last one ends its count. True: the load has changed by more than a token. */
  observe(id: RequestId, event: GenerationEvent): boolean {
    if (event.kind === 'finished' || event.kind === 'failed') return this.#requests.delete(id);
    const request = this.#requests.get(id);
    if (request === undefined) return false;
    if (event.kind === 'started') request.cachedTokens = event.cachedTokens;
    if (event.kind !== 'tokens') return event.kind === 'started';
    const isFirst = request.phase !== 'decode';
    request.outputs += event.tokens.length;
    request.phase = 'decode';
    return isFirst;
  }

  /** False: it was not counted. */
  delete(id: RequestId): boolean {
    return this.#requests.delete(id);
  }

  /** For the heartbeat to the conductor of these requests. */
  reported(): readonly ReportedRequest[] {
    return Array.from(this.#requests, ([id, { outputs, receiving }]) => ({ id, outputs, receiving }));
  }

  /** The load of several conductors together. */
  static loadOf(all: Iterable<PlacedRequests>): PlacedLoad {
    const online: CountedRequest[] = [];
    for (const each of all) for (const request of each.#requests.values()) if (!request.batch) online.push(request);
    return placedLoad(online);
  }
}
