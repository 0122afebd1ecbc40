// Client retries: refused requests that return after a while.

import type { GenerationEvent } from '../../core/protocol/ports.ts';
import type { LengthRequest } from '../../core/scheduler/executor/length-request.ts';
import type { TraceRequest } from '../../trace/request.ts';
import { counterUniform } from '../../util/counter-random.ts';

export interface RetrySettings {
  /** Maximum number of returns of a request. */
  readonly returnsMax: number;
  /** Undefined: the refusal's retry time. */
  readonly afterUs: number | undefined;
  readonly seed: number;
}

/** Random stream of this file alone. */
const stream = 13;
/** Draws per request; further returns reuse them. */
const drawsEach = 1024;

interface Waiting {
  readonly trace: TraceRequest;
  /** Returns so far. */
  readonly returns: number;
  readonly firstUs: number;
}

/** A refused request waits for its retry time plus a random time of up to as long, so that requests refused together do not return together. */
export class Retries {
  readonly #settings: RetrySettings;
  /** By request, from its first refusal until it ends. */
  readonly #known = new Map<number, Waiting>();
  returns = 0;
  /** Returned requests that completed, and that were refused for good. */
  completed = 0;
  gaveUp = 0;
  #waitedUs = 0;

  constructor(settings: RetrySettings) {
    this.#settings = settings;
  }

  /** When a refused request returns; undefined: never. */
  refused(
    nowUs: number,
    { trace }: LengthRequest,
    { code, retryAfterMs }: Extract<GenerationEvent, { kind: 'failed' }>,
  ): number | undefined {
    const { returnsMax, afterUs, seed } = this.#settings;
    const before = this.#known.get(trace.index);
    const returns = (before?.returns ?? 0) + 1;
    if (returns > returnsMax || code !== 'KV_OVERLOADED') {
      if (this.#known.delete(trace.index)) this.gaveUp++;
      return undefined;
    }
    const jitter = counterUniform(seed, stream, (trace.index * drawsEach + (returns % drawsEach)) % 2 ** 32);
    const atUs = nowUs + Math.round((afterUs ?? (retryAfterMs ?? 0) * 1000) * (1 + jitter));
    const firstUs = before?.firstUs ?? trace.arrivalUs;
    this.#known.set(trace.index, { trace: { ...trace, arrivalUs: atUs }, returns, firstUs });
    return atUs;
  }

  /** A request returns: its new trace entry and name. */
  returned(index: number): { readonly trace: TraceRequest; readonly name: string } {
    const waiting = this.#known.get(index);
    if (waiting === undefined) throw new Error(`Simulation broken: request ${index} does not return`);
    this.returns++;
    return { trace: waiting.trace, name: `${index}+${waiting.returns}` };
  }

  ended({ trace }: LengthRequest): void {
    const known = this.#known.get(trace.index);
    if (known === undefined) return;
    this.#known.delete(trace.index);
    this.completed++;
    this.#waitedUs += trace.arrivalUs - known.firstUs;
  }

  /** Mean time from first arrival to the accepted return, of completed requests. */
  get waitedMsMean(): number {
    return this.completed === 0 ? 0 : this.#waitedUs / this.completed / 1000;
  }
}
