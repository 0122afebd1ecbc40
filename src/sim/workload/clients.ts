// Who waits for answers: requests that came and have not ended, and those who come again when they are refused.

import type { GenerationEvent } from '../../core/protocol/ports.ts';
import type { SloRule } from '../../core/router/admission/length-admission.ts';
import { LengthRequest } from '../../core/scheduler/executor/length-request.ts';
import type { TraceRequest } from '../../trace/request.ts';
import { Float64Pool } from '../../util/float64-pool.ts';
import type { RequestChecks } from '../checks/request-checks.ts';
import type { Inspection, SimulationConfig } from '../engine/simulation-config.ts';
import type { Outcome } from '../report/outcome.ts';

/** The simulation, as its clients see it. */
interface Served {
  readonly config: Pick<SimulationConfig, 'blockTokens' | 'faults'>;
  readonly sloOf: SloRule;
  readonly outcome: Outcome;
  /** Its client hears the last of it. */
  readonly ended: ((request: LengthRequest, event: GenerationEvent) => void) | undefined;
  readonly submit: (request: LengthRequest) => void;
  readonly pin: (id: string, prefix: LengthRequest, ttlUs: number) => void;
  readonly at: (timeUs: number, action: () => void) => void;
}

export class Clients {
  readonly #served: Served;
  readonly #live = new Map<string, LengthRequest>();
  readonly #gaps = new Float64Pool();
  #comingAgain = 0;

  constructor(served: Served) {
    this.#served = served;
  }

  /** Requests that came and have not ended. */
  get live(): number {
    return this.#live.size;
  }

  /** Those that will be. */
  get comingAgain(): number {
    return this.#comingAgain;
  }

  /** By their names. */
  get requests(): Iterable<readonly [string, LengthRequest]> {
    return this.#live;
  }

  /** It is its arrival. */
  come(trace: TraceRequest, name: string): void {
    const request = new LengthRequest(trace, this.#served.config.blockTokens, this.#gaps, name);
    if (trace.pinUs !== undefined) {
      this.#served.pin(name, request, trace.pinUs);
      return;
    }
    request.slo = trace.batch === true ? undefined : this.#served.sloOf(trace, trace.outputTokens);
    this.#live.set(name, request);
    this.#served.submit(request);
  }

  /** A request is tried as this one. */
  tried(id: string, request: LengthRequest): void {
    this.#live.set(id, request);
  }

  /** A client hears of its request. */
  hear(nowUs: number, id: string, event: GenerationEvent): void {
    if (event.kind !== 'finished' && event.kind !== 'failed') return;
    const request = this.#live.get(id);
    if (request === undefined) throw new Error(`Simulation broken: request ${id} ended twice`);
    this.#live.delete(id);
    const { outcome, config, ended } = this.#served;
    ended?.(request, event);
    if (event.kind === 'finished') outcome.completed(request);
    else {
      const againUs = outcome.failed(nowUs, request, event);
      if (againUs !== undefined) this.#comeAgain(request, againUs);
    }
    // Where there are faults, an instance that nobody hears may go on with it.
    if (config.faults === undefined) request.release();
  }

  /** It is not wanted any more. False when it has ended. */
  leave(id: string): boolean {
    return this.#live.delete(id);
  }

  /** Whoever waits is told that it is in vain. */
  failAll(nowUs: number, message: string): void {
    for (const id of [...this.#live.keys()])
      this.hear(nowUs, id, { kind: 'failed', code: 'ENGINE_FAILED', message, retryAfterMs: undefined });
  }

  #comeAgain({ trace: { index } }: LengthRequest, atUs: number): void {
    this.#comingAgain++;
    this.#served.at(atUs, () => {
      this.#comingAgain--;
      const again = this.#served.outcome.retries?.come(index);
      if (again !== undefined) this.come(again.trace, again.name);
    });
  }
}

/** What is called when a client hears the last of its request. */
export function endings(
  checks: RequestChecks | undefined,
  inspect: Inspection | undefined,
): Inspection['ended'] | undefined {
  if (checks === undefined) return inspect?.ended;
  return (request, event) => {
    checks.ended(request, event);
    inspect?.ended(request, event);
  };
}
