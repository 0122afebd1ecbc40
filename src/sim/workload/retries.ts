// Clients that come again when they are refused.

import type { GenerationEvent } from '../../core/protocol/ports.ts';
import type { LengthRequest } from '../../core/scheduler/executor/length-request.ts';
import type { TraceRequest } from '../../trace/request.ts';
import { counterUniform } from '../../util/counter-random.ts';

export interface RetrySettings {
  /** How often a client comes again, at most. */
  readonly most: number;
  /** Undefined: when the refusal says. */
  readonly afterUs: number | undefined;
  readonly seed: number;
}

/** Stream of the seed that nothing else draws from. */
const stream = 13;
/** Draws of a request: more retries than that begin anew. */
const drawsEach = 1024;

interface Waiting {
  readonly trace: TraceRequest;
  /** For the how-manieth time it comes again. */
  readonly again: number;
  readonly firstUs: number;
}

/** A refused request waits as long as it is told and by chance up to as long again, so that those refused together do not come together. */
export class Retries {
  readonly #settings: RetrySettings;
  /** By request, from its first refusal until it ends. */
  readonly #known = new Map<number, Waiting>();
  came = 0;
  /** Of those that came again: completed, and refused for good. */
  completed = 0;
  gaveUp = 0;
  #waitedUs = 0;

  constructor(settings: RetrySettings) {
    this.#settings = settings;
  }

  /** When a refused request comes again; undefined: never. */
  refused(
    nowUs: number,
    { trace }: LengthRequest,
    { code, retryAfterMs }: Extract<GenerationEvent, { kind: 'failed' }>,
  ): number | undefined {
    const { most, afterUs, seed } = this.#settings;
    const before = this.#known.get(trace.index);
    const again = (before?.again ?? 0) + 1;
    if (again > most || code !== 'KV_OVERLOADED') {
      if (this.#known.delete(trace.index)) this.gaveUp++;
      return undefined;
    }
    const chance = counterUniform(seed, stream, (trace.index * drawsEach + (again % drawsEach)) % 2 ** 32);
    const atUs = nowUs + Math.round((afterUs ?? (retryAfterMs ?? 0) * 1000) * (1 + chance));
    const firstUs = before?.firstUs ?? trace.arrivalUs;
    this.#known.set(trace.index, { trace: { ...trace, arrivalUs: atUs }, again, firstUs });
    return atUs;
  }

  /** The request as it comes again, and under which name. */
  come(index: number): { readonly trace: TraceRequest; readonly name: string } {
    const waiting = this.#known.get(index);
    if (waiting === undefined) throw new Error(`Simulation broken: request ${index} does not come again`);
    this.came++;
    return { trace: waiting.trace, name: `${index}+${waiting.again}` };
  }

  ended({ trace }: LengthRequest): void {
    const known = this.#known.get(trace.index);
    if (known === undefined) return;
    this.#known.delete(trace.index);
    this.completed++;
    this.#waitedUs += trace.arrivalUs - known.firstUs;
  }

  /** Mean time of those completed from first coming to the one that was taken. */
  get waitedMsMean(): number {
    return this.completed === 0 ? 0 : this.#waitedUs / this.completed / 1000;
  }
}
