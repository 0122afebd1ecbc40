// The clients of a simulated cluster: requests that have arrived and not ended, refused requests that return, and closed loops.

import type { ConductorEvent } from '../../core/protocol/events.ts';
import type { GenerationEvent } from '../../core/protocol/ports.ts';
import type { SloRule } from '../../core/router/admission/length-admission.ts';
import { Float64Pool } from '../../core/scheduler/executor/float64-pool.ts';
import { LengthRequest } from '../../core/scheduler/executor/length-request.ts';
import type { TraceRequest } from '../../trace/request.ts';
import { Prng } from '../../util/prng.ts';
import type { EventQueue } from '../engine/event-queue.ts';
import type { SimulationConfig } from '../engine/simulation-config.ts';
import type { Outcome } from '../report/outcome.ts';
import { ClientLoop, type ClientPauses } from './client-loop.ts';

interface ClientHost {
  readonly config: Pick<
    SimulationConfig,
    'blockTokens' | 'clients' | 'clientPauses' | 'faults' | 'inspect' | 'requestListener'
  >;
  readonly queue: EventQueue;
  readonly sloOf: SloRule;
  readonly outcome: Outcome;
  readonly checks: { ended(request: LengthRequest, event: GenerationEvent): void } | undefined;
  deliverToConductor(event: ConductorEvent<LengthRequest>): void;
}

/** Random stream of the pauses of clients. */
const pauseStream = 21;

export class Clients {
  readonly #host: ClientHost;
  readonly #unfinished = new Map<string, LengthRequest>();
  readonly #gaps = new Float64Pool();
  /** Undefined: requests arrive at the times of the workload. */
  readonly #loop: ClientLoop<TraceRequest> | undefined;
  readonly #prng: Prng;
  #returning = 0;
  /** Clients that pause between two sessions, and sessions that pause between two turns. */
  #idlePauses = 0;
  #turnPauses = 0;
  /** A client has no further request: the others end their sessions. */
  #isEnding = false;

  constructor(host: ClientHost) {
    this.#host = host;
    const { clients, clientPauses } = host.config;
    this.#prng = new Prng(clientPauses?.seed ?? 0, pauseStream);
    const send = (trace: TraceRequest) => this.submit({ ...trace, arrivalUs: host.queue.nowUs }, String(trace.index));
    this.#loop = clients === undefined ? undefined : new ClientLoop(clients, send);
  }

  /** Requests that have arrived and not ended. */
  get unfinished(): number {
    return this.#unfinished.size;
  }

  /** Refused requests that will return. */
  get returning(): number {
    return this.#returning;
  }

  /** Requests that will be sent after a pause. */
  get pausing(): number {
    return this.#idlePauses + this.#turnPauses;
  }

  /** Requests that wait for a client of the closed loop. */
  get waiting(): number {
    return this.#loop?.waiting ?? 0;
  }

  /** By client-side name: the current attempt of each unfinished request. */
  get requests(): Iterable<readonly [string, LengthRequest]> {
    return this.#unfinished;
  }

  /** The workload has another request. A closed loop sends it as soon as a client is idle. */
  arrive(trace: TraceRequest): void {
    if (this.#loop === undefined || trace.pinUs !== undefined) this.submit(trace, String(trace.index));
    else this.#loop.add(trace);
  }

  submit(trace: TraceRequest, name: string): void {
    const { config, sloOf } = this.#host;
    const request = new LengthRequest(trace, config.blockTokens, this.#gaps, name);
    if (trace.pinUs !== undefined) {
      this.#host.deliverToConductor({ kind: 'pin', id: name, request, ttlUs: trace.pinUs });
      return;
    }
    request.slo = trace.batch === true ? undefined : sloOf(trace, trace.outputTokens);
    this.#unfinished.set(name, request);
    this.#host.deliverToConductor({ kind: 'submit', request });
  }

  /** A new attempt of the request begins. */
  attempt(id: string, request: LengthRequest): void {
    this.#unfinished.set(id, request);
  }

  /** The client receives an event of its request. */
  deliver(id: string, event: GenerationEvent): void {
    if (event.kind === 'started') this.#started(id);
    if (event.kind === 'tokens')
      this.#host.config.requestListener?.received?.(id, this.#host.queue.nowUs, event.at ?? 0);
    if (event.kind !== 'finished' && event.kind !== 'failed') return;
    const request = this.#unfinished.get(id);
    if (request === undefined) throw new Error(`Simulation broken: request ${id} ended twice`);
    this.#unfinished.delete(id);
    const { outcome, config, checks, queue } = this.#host;
    checks?.ended(request, event);
    config.inspect?.ended(request, event);
    const returnUs = event.kind === 'finished' ? undefined : outcome.failed(queue.nowUs, request, event);
    if (event.kind === 'finished') outcome.completed(request);
    config.requestListener?.ended(id, queue.nowUs, request, event, returnUs !== undefined);
    if (returnUs === undefined) this.#continueSession(request, event.kind === 'finished');
    else this.#submitAgain(request, returnUs);
    // With faults, an instance that is out of reach may go on with the request.
    if (config.faults === undefined) request.release();
  }

  #started(id: string): void {
    const request = this.#unfinished.get(id);
    if (request !== undefined) request.startedUs ??= this.#host.queue.nowUs;
  }

  /** False when the request has ended. */
  cancel(id: string): boolean {
    return this.#unfinished.delete(id);
  }

  failAll(message: string): void {
    for (const id of [...this.#unfinished.keys()])
      this.deliver(id, { kind: 'failed', code: 'ENGINE_FAILED', message, retryAfterMs: undefined });
  }

  /** The next turn follows after a think time. A refusal ends the session. */
  #continueSession(request: LengthRequest, isCompleted: boolean): void {
    const { trace } = request;
    const next = isCompleted ? trace.next : undefined;
    this.#countEnd(request, isCompleted, next !== undefined);
    if (next === undefined) {
      this.#freeClient();
      return;
    }
    const { queue } = this.#host;
    const { sloClass, tenant, priority } = trace;
    const labels = { ...(sloClass && { sloClass }), ...(tenant && { tenant }), ...(priority && { priority }) };
    this.#turnPauses++;
    queue.at(queue.nowUs + next.thinkUs, () => {
      this.#turnPauses--;
      this.submit({ ...next.request, ...labels, arrivalUs: queue.nowUs }, String(next.request.index));
    });
  }

  #countEnd({ trace, firstTokenUs = 0 }: LengthRequest, isCompleted: boolean, continues: boolean): void {
    const { outcome, queue } = this.#host;
    const loop = this.#loop;
    if (loop === undefined) return;
    const ended = {
      endedUs: queue.nowUs,
      outputTokens: isCompleted ? trace.outputTokens : 0,
      ttftUs: firstTokenUs - trace.arrivalUs,
    };
    // When all parts have handled the end of the request.
    queue.at(queue.nowUs, () => {
      if (!continues && loop.waiting <= this.#idlePauses) this.#isEnding = true;
      outcome.closedLoop?.ended(ended, !this.#isEnding);
    });
  }

  /** The client of the closed loop sends its next request after a pause, if there is one. */
  #freeClient(): void {
    const loop = this.#loop;
    if (loop === undefined) return;
    const { queue, config } = this.#host;
    queue.at(queue.nowUs, () => {
      if (config.clientPauses === undefined) {
        loop.ended();
        return;
      }
      // The clients that pause take the requests that are left: this one has ended.
      if (loop.waiting <= this.#idlePauses) return;
      this.#idlePauses++;
      queue.at(queue.nowUs + this.#pauseUs(config.clientPauses), () => {
        this.#idlePauses--;
        loop.ended();
      });
    });
  }

  #pauseUs({ meanUs, kind }: ClientPauses): number {
    return Math.round(meanUs * (kind === 'constant' ? 1 : this.#prng.exponential()));
  }

  #submitAgain({ trace: { index } }: LengthRequest, atUs: number): void {
    this.#returning++;
    this.#host.queue.at(atUs, () => {
      this.#returning--;
      const again = this.#host.outcome.retries?.returned(index);
      if (again !== undefined) this.submit(again.trace, again.name);
    });
  }
}
