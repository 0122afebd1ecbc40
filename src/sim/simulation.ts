// The simulator: carries the machines' effects out by turning each into a future event. It decides nothing.
import { Conductor } from '../cluster/conductor.ts';
import type { ConductorEffect, InstanceEffect } from '../cluster/effects.ts';
import {
  createLengthInstance,
  type LengthInstance,
  type LengthInstanceConfig,
  LengthRequest,
} from '../cluster/length-work.ts';
import type { ConductorEvent, InstanceEvent, InstanceIndex } from '../cluster/messages.ts';
import type { TraceRequest } from '../trace/request.ts';
import { EventHeap } from './event-heap.ts';
import { SimulatedExecutor } from './executor.ts';
import { Outcome } from './outcome.ts';

export interface SimulationConfig {
  /** Instances that prefill and decode alike. */
  readonly mixed: number;
  readonly instance: Omit<LengthInstanceConfig, 'queueMax'>;
  /** Requests accepted at once, over all instances. */
  readonly queueMax: number;
  /** Every machine checks itself after every event. */
  readonly checking: boolean;
}

/**
 * Pure: a run is a function of its configuration and trace. Arrivals come in order of time; what ends at a time comes before what arrives
 * then, and instances go in the order of their numbers.
 */
export class Simulation {
  readonly outcome = new Outcome();
  readonly #config: SimulationConfig;
  readonly #conductor: Conductor<LengthRequest>;
  readonly #instances: readonly LengthInstance[];
  readonly #executors: readonly SimulatedExecutor[];
  readonly #live = new Map<string, LengthRequest>();
  readonly #heap = new EventHeap();
  #nowUs = 0;

  constructor(config: SimulationConfig) {
    this.#config = config;
    this.#instances = Array.from({ length: config.mixed }, () =>
      createLengthInstance({ ...config.instance, queueMax: Number.MAX_SAFE_INTEGER }),
    );
    this.#executors = this.#instances.map((_, index) => new SimulatedExecutor(config.instance.cost, this.#heap, index));
    this.#conductor = new Conductor({
      instances: this.#instances.map(({ capacityTokens }) => ({ capacityTokens })),
      queueMax: config.queueMax,
      size: ({ trace }) => ({ promptTokens: trace.inputTokens, outputTokensMax: trace.outputTokens }),
    });
  }

  get nowUs(): number {
    return this.#nowUs;
  }

  /** Requests that came and have not ended. */
  get live(): number {
    return this.#live.size;
  }

  /** A request arrives; everything due before it happens first. */
  arrive(trace: TraceRequest): void {
    this.#runTo(trace.arrivalUs);
    this.#nowUs = trace.arrivalUs;
    const request = new LengthRequest(trace, this.#config.instance.blockTokens);
    this.#live.set(request.id, request);
    this.#tellConductor({ kind: 'submit', request });
  }

  /** No request comes any more: runs until nothing is left to happen. */
  finish(): void {
    this.#runTo(Number.POSITIVE_INFINITY);
    this.outcome.close(this.#nowUs, this.#instances);
  }

  /** Everything due up to and at `timeUs`. */
  #runTo(timeUs: number): void {
    const heap = this.#heap;
    while (heap.nextUs <= timeUs) {
      if (heap.size === 0) return;
      this.#nowUs = heap.nextUs;
      const index = heap.nextKey;
      heap.pop();
      const ended = this.#executors[index].due(this.#nowUs);
      if (ended !== undefined) this.#tellInstance(index, ended);
    }
  }

  #tellConductor(event: ConductorEvent<LengthRequest>): void {
    const effects = this.#conductor.step(this.#nowUs, event);
    if (this.#config.checking) this.#conductor.check();
    for (const effect of effects) this.#conduct(effect);
  }

  #conduct(effect: ConductorEffect<LengthRequest>): void {
    switch (effect.kind) {
      case 'forward':
        this.#tellInstance(effect.instance, { kind: 'submit', request: effect.request });
        break;
      case 'emit':
        this.#hear(effect.id, effect.event.kind);
        break;
      case 'cancel':
        this.#tellInstance(effect.instance, { kind: 'cancel', id: effect.id });
        break;
      case 'ignored':
      case 'drained':
        break;
    }
  }

  #tellInstance(index: InstanceIndex, event: InstanceEvent<LengthRequest, undefined>): void {
    const effects = this.#instances[index].step(this.#nowUs, event);
    if (this.#config.checking) this.#instances[index].check();
    for (const effect of effects) this.#perform(index, effect);
  }

  #perform(index: InstanceIndex, effect: InstanceEffect<undefined>): void {
    switch (effect.kind) {
      case 'runStep':
        this.#executors[index].run(this.#nowUs, effect.step, effect.shape, effect.stepsMax);
        break;
      case 'endRun':
        this.#executors[index].endRun(this.#nowUs);
        break;
      case 'emit':
        this.#tellConductor({ kind: 'heard', instance: index, id: effect.id, event: effect.event });
        break;
      case 'abortStep':
      case 'ignored':
        break;
      case 'fault':
        throw new Error(effect.message);
    }
  }

  /** A client hears of its request. */
  #hear(id: string, kind: string): void {
    if (kind !== 'finished' && kind !== 'failed') return;
    const request = this.#live.get(id);
    if (request === undefined) throw new Error(`Simulation broken: request ${id} ended twice`);
    this.#live.delete(id);
    if (kind === 'finished') this.outcome.completed(request);
    else this.outcome.refused(request);
  }
}
