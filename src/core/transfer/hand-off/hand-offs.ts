// The hand-offs of an instance, out and in: what its peers tell it about them.

import type { InstanceEffect } from '../../protocol/effects.ts';
import type { HandOffMessage } from '../../protocol/events.ts';
import type { InstanceIndex, RequestId, StepNumber } from '../../protocol/ids.ts';
import type { RunningRequest } from '../../scheduler/executor/executor.ts';
import { KvReceiver } from './kv-receiver.ts';
import { KvSender } from './kv-sender.ts';
import type { ReceiveMemory } from './receive-memory.ts';

export interface HandOffConfig {
  /** Keys and values leave layer by layer while the rest is computed; else when all is. */
  readonly layerWise: boolean;
  /** Tokens whose keys and values fit where prompts land (host memory) until they are loaded. What is cached there gives way. */
  readonly landingTokens: number;
  /** Pages of the pool, besides, where prompts land instead: nothing is copied to load them. */
  readonly landingPages?: number;
  /** What has landed is refused where its decode would be late, or not fit. */
  readonly rechecks: boolean;
}

export type Push<Request> = (effect: InstanceEffect<never, Request>) => void;

/** The instance, as its hand-offs see it. */
interface Owner<Request, S> {
  readonly push: Push<Request>;
  readonly isLive: (id: RequestId) => boolean;
  /** Which start of the instance this is, where others know. */
  readonly incarnation: number | undefined;
  readonly promptTokens: (request: Request) => number;
  readonly memory: ReceiveMemory;
  /** Prompts may have blocks at other instances while they are computed. */
  readonly lends: boolean;
  /** The other side has the prompt, or will not have it. */
  readonly settled: (served: S, declined: boolean) => void;
}

export class HandOffs<Request, S extends RunningRequest> {
  readonly departures: KvSender<Request, S>;
  readonly arrivals: KvReceiver<Request>;
  readonly #owner: Owner<Request, S>;

  /** @param config undefined where there is no other instance */
  constructor(config: HandOffConfig | undefined, owner: Owner<Request, S>) {
    // What moves to creditors as it is computed leaves before.
    this.departures = new KvSender(config?.layerWise !== false || owner.lends, owner.push);
    this.arrivals = new KvReceiver(owner.memory, owner.push);
    this.#owner = owner;
  }

  /** @param step in flight; returns why the message changed nothing, where it did not */
  hear(from: InstanceIndex, message: HandOffMessage<Request>, step: StepNumber | undefined): string | undefined {
    const { id } = message;
    switch (message.kind) {
      case 'reserve':
        if (message.incarnation !== undefined && message.incarnation !== this.#owner.incarnation)
          return `request ${id} is meant for life ${message.incarnation}`;
        if (this.#owner.isLive(id)) {
          this.arrivals.confirm(message.senders ?? [from], id);
          return `request ${id} is live already`;
        }
        this.arrivals.reserve(from, message, message.tokens ?? this.#owner.promptTokens(message.request));
        return undefined;
      case 'reserved':
        return this.departures.grant(id, from, message.asking ?? 0, step)
          ? undefined
          : `request ${id} does not leave here`;
      case 'taken':
      case 'declined': {
        const served = this.departures.settle(id, from);
        if (served === undefined) return `request ${id} does not leave here`;
        this.#owner.settled(served, message.kind === 'declined');
        return undefined;
      }
      case 'release':
        return this.arrivals.release(from, id) ? undefined : `request ${id} is not expected`;
      case 'withdraw':
        return this.arrivals.withdraw(from, id, message.asking)
          ? undefined
          : `asking ${message.asking} of request ${id} is not known`;
    }
  }

  /** What was to leave will not arrive. Undefined when nothing was. */
  broken(to: InstanceIndex, id: RequestId): S | undefined {
    return this.departures.settle(id, to);
  }

  /** Neither leg is wanted any more. True when a prompt was expected here. */
  drop(id: RequestId): boolean {
    this.departures.drop(id);
    return this.arrivals.drop(id);
  }
}
