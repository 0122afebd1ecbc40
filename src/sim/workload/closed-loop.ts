// A closed loop around one instance: so many clients, each of which sends its next request when its last one has ended.

import {
  createLengthInstance,
  type LengthEvent,
  type LengthInstanceConfig,
} from '../../core/instance/length-instance.ts';
import type { InstanceEffect } from '../../core/protocol/effects.ts';
import { LengthRequest } from '../../core/scheduler/executor/length-request.ts';
import { Float64Pool } from '../../util/float64-pool.ts';
import { EventHeap } from '../engine/event-heap.ts';
import { SimulatedExecutor } from '../engine/executor.ts';

export interface ClosedLoopConfig {
  readonly instance: Omit<LengthInstanceConfig, 'queueMax'>;
  readonly clients: number;
  /** Over all clients; the first ones all come at time 0. */
  readonly requests: number;
  /** Lengths of each request, by its place in the order of sending. */
  readonly lengths: (index: number) => { readonly inputTokens: number; readonly outputTokens: number };
  /** What the process before the instance takes for a request, by tokens of its prompt, one request after another: HTTP, tokenizer. */
  readonly frontUs: (inputTokens: number) => number;
}

const unshared = new Int32Array(0);

/** Requests in the order of their ends, without the gaps between their tokens. Pure. @throws Error when the instance refuses one */
export function runClosedLoop(config: ClosedLoopConfig): readonly LengthRequest[] {
  return new ClosedLoop(config).run();
}

/** In the heap key 0 is the end of a step, and key 1 + index the arrival of a request: at one time steps end first. */
class ClosedLoop {
  readonly #config: ClosedLoopConfig;
  readonly #heap = new EventHeap();
  readonly #instance;
  readonly #executor: SimulatedExecutor;
  readonly #live = new Map<string, LengthRequest>();
  readonly #ended: LengthRequest[] = [];
  readonly #gaps = new Float64Pool();
  #sent = 0;
  #frontFreeUs = 0;
  #nowUs = 0;

  constructor(config: ClosedLoopConfig) {
    this.#config = config;
    this.#instance = createLengthInstance({ ...config.instance, queueMax: config.clients });
    this.#executor = new SimulatedExecutor(config.instance, this.#heap, 0);
  }

  run(): readonly LengthRequest[] {
    for (let client = 0; client < this.#config.clients; client++) this.#send();
    while (this.#heap.size > 0) {
      this.#nowUs = this.#heap.nextUs;
      const key = this.#heap.nextKey;
      this.#heap.pop();
      const event = key === 0 ? this.#executor.due(this.#nowUs) : this.#arrival(key - 1);
      if (event !== undefined) this.#tell(event);
    }
    return this.#ended;
  }

  #send(): void {
    if (this.#sent === this.#config.requests) return;
    const index = this.#sent++;
    const { inputTokens, outputTokens } = this.#config.lengths(index);
    const trace = { index, arrivalUs: this.#nowUs, inputTokens, outputTokens, blocks: unshared };
    const request = new LengthRequest(trace, this.#config.instance.blockTokens, this.#gaps);
    this.#live.set(request.id, request);
    this.#frontFreeUs = Math.max(this.#nowUs, this.#frontFreeUs) + Math.round(this.#config.frontUs(inputTokens));
    this.#heap.push(this.#frontFreeUs, 1 + index);
  }

  #arrival(index: number): LengthEvent {
    const request = this.#live.get(String(index));
    if (request === undefined) throw new Error(`Closed loop broken: request ${index} comes twice`);
    return { kind: 'submit', request };
  }

  #tell(event: LengthEvent): void {
    for (const effect of this.#instance.step(this.#nowUs, event)) this.#perform(effect);
  }

  #perform(effect: InstanceEffect<undefined, LengthRequest>): void {
    switch (effect.kind) {
      case 'runStep':
        this.#executor.run(this.#nowUs, effect);
        break;
      case 'endRun':
        this.#executor.endRun(this.#nowUs);
        break;
      case 'emit':
        if (effect.event.kind === 'failed') throw new Error(effect.event.message);
        if (effect.event.kind === 'finished') this.#end(effect.id);
        break;
      case 'fault':
        throw new Error(effect.message);
      default:
        throw new Error(`Closed loop broken: one instance alone does not ${effect.kind}`);
    }
  }

  #end(id: string): void {
    const request = this.#live.get(id);
    if (request === undefined) throw new Error(`Closed loop broken: request ${id} ended twice`);
    this.#live.delete(id);
    request.release();
    this.#ended.push(request);
    this.#send();
  }
}
