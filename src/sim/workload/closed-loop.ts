// A closed loop around one instance: each client sends its next request when its last one has ended.

import {
  createLengthInstance,
  type LengthEvent,
  type LengthInstanceConfig,
} from '../../core/instance/length-instance.ts';
import type { InstanceEffect } from '../../core/protocol/effects.ts';
import { Float64Pool } from '../../core/scheduler/executor/float64-pool.ts';
import { LengthRequest } from '../../core/scheduler/executor/length-request.ts';
import { EventQueue } from '../engine/event-queue.ts';
import { SimulatedExecutor } from '../engine/executor.ts';
import { ClientLoop } from './client-loop.ts';

export interface ClosedLoopConfig {
  readonly instance: Omit<LengthInstanceConfig, 'queueMax'>;
  readonly clients: number;
  /** Over all clients; the first requests arrive at time 0. */
  readonly requests: number;
  /** By place in the order of sending. */
  readonly lengths: (index: number) => { readonly inputTokens: number; readonly outputTokens: number };
  /** Time of the frontend (HTTP, tokenizer) by prompt tokens, one request after another. */
  readonly frontendUs: (inputTokens: number) => number;
}

const unshared = new Int32Array(0);

/** Requests in the order of completion, without the gaps between their tokens. Pure. @throws Error when the instance refuses one */
export function runClosedLoop(config: ClosedLoopConfig): readonly LengthRequest[] {
  return new ClosedLoop(config).run();
}

class ClosedLoop {
  readonly #config: ClosedLoopConfig;
  readonly #queue = new EventQueue();
  readonly #instance;
  readonly #executor: SimulatedExecutor;
  readonly #unfinished = new Map<string, LengthRequest>();
  readonly #ended: LengthRequest[] = [];
  readonly #gaps = new Float64Pool();
  readonly #clients: ClientLoop<number>;
  #frontendFreeUs = 0;

  constructor(config: ClosedLoopConfig) {
    this.#config = config;
    this.#clients = new ClientLoop(config.clients, (index) => this.#send(index));
    this.#instance = createLengthInstance({ ...config.instance, queueMax: config.clients });
    const timer = this.#queue.timer(() => {
      const ended = this.#executor.takeEnd();
      if (ended !== undefined) this.#deliver(ended);
    });
    this.#executor = new SimulatedExecutor(config.instance, this.#queue, timer);
  }

  run(): readonly LengthRequest[] {
    for (let index = 0; index < this.#config.requests; index++) this.#clients.add(index);
    while (!this.#queue.isIdle) this.#queue.runNext();
    return this.#ended;
  }

  #send(index: number): void {
    const { inputTokens, outputTokens } = this.#config.lengths(index);
    const trace = { index, arrivalUs: this.#queue.nowUs, inputTokens, outputTokens, blocks: unshared };
    const request = new LengthRequest(trace, this.#config.instance.blockTokens, this.#gaps);
    this.#unfinished.set(request.id, request);
    this.#frontendFreeUs =
      Math.max(this.#queue.nowUs, this.#frontendFreeUs) + Math.round(this.#config.frontendUs(inputTokens));
    this.#queue.at(this.#frontendFreeUs, () => this.#deliver({ kind: 'submit', request }));
  }

  #deliver(event: LengthEvent): void {
    for (const effect of this.#instance.step(this.#queue.nowUs, event)) this.#perform(effect);
  }

  #perform(effect: InstanceEffect<undefined, LengthRequest>): void {
    switch (effect.kind) {
      case 'runStep':
        this.#executor.run(effect);
        break;
      case 'endStepRun':
        this.#executor.endStepRun();
        break;
      case 'emit':
        if (effect.event.kind === 'failed') throw new Error(effect.event.message);
        if (effect.event.kind === 'finished') this.#end(effect.id);
        break;
      case 'fault':
        throw new Error(effect.message);
      default:
        throw new Error(`Closed loop broken: a single instance emits ${effect.kind}`);
    }
  }

  #end(id: string): void {
    const request = this.#unfinished.get(id);
    if (request === undefined) throw new Error(`Closed loop broken: request ${id} ended twice`);
    this.#unfinished.delete(id);
    request.release();
    this.#ended.push(request);
    this.#clients.ended();
  }
}
