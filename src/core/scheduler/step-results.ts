// Commits the results of a scheduler step, request by request: sequences grow, clients receive events, prompts are handed off.

import type { InstanceEffect } from '../protocol/effects.ts';
import type { GenerationEvent } from '../protocol/ports.ts';
import type { Identified } from './component.ts';
import type { Emit, ResultRows, RowFailure, RunningRequest, StepRun } from './executor/executor.ts';
import type { InstanceInternals } from './instance-internals.ts';
import type { RequestLifecycle } from './request-lifecycle.ts';
import type { InFlight, StepOwner } from './step-in-flight.ts';

export class StepResults<Request extends Identified, S extends RunningRequest> implements StepOwner<S> {
  readonly #instance: InstanceInternals<Request, S>;
  readonly #lifecycle: RequestLifecycle<Request, S>;
  readonly #rows = { row: 0, scored: 0, samples: false };
  readonly #notify: Emit;

  constructor(instance: InstanceInternals<Request, S>, lifecycle: RequestLifecycle<Request, S>) {
    this.#instance = instance;
    this.#lifecycle = lifecycle;
    this.#notify = (id, event) => instance.notify(id, event);
  }

  commit(flight: InFlight<S>, result: unknown, stepUs: ArrayLike<number>): void {
    const { executor, totals } = this.#instance;
    totals.stepsRan(stepUs);
    const run = { startedUs: flight.startedUs, stepUs };
    const rows = this.#rows;
    rows.row = 0;
    const { requests } = flight;
    for (let place = 0; place < requests.length; place++) {
      const running = requests[place];
      rows.scored = running.sequence.scoredRows;
      rows.samples = running.sequence.samplesNow;
      const arrived = !executor.sequenceFailed(result, place);
      if (!arrived || running.sequence.arriving !== undefined)
        for (const component of this.#instance.hooks.waitEnded) component.waitEnded(running, arrived);
      if (arrived && !executor.lacksMask(result, place)) this.#commitRequest(running, result, run);
      rows.row += rows.scored + Number(rows.samples);
    }
  }

  #commitRequest(running: S, result: unknown, run: StepRun): void {
    const rows: ResultRows = this.#rows;
    const failure = this.#instance.executor.failure(result, rows);
    if (failure !== undefined) this.failRows(running, failure);
    else if (rows.samples && running.relay !== undefined) this.#commitPrompt(running, result, run);
    else this.#commitRows(running, result, run);
  }

  /** The prompt of a request that another instance decodes is computed: that instance delivers the first token, unless it is the last. */
  #commitPrompt(running: S, result: unknown, run: StepRun): void {
    const { executor, scheduler, totals, hooks } = this.#instance;
    const { sequence, id, relay } = running;
    totals.computedPrompt += sequence.planned;
    totals.generated++;
    scheduler.commit(sequence);
    const events: GenerationEvent[] = [];
    const reason = executor.commit(running, result, this.#rows, run, (_, event) => events.push(event));
    for (const component of hooks.computed) component.computed(running);
    this.#instance.announce({ kind: 'prefilled', id });
    if (reason !== undefined) {
      this.#lifecycle.finish(running, [...(relay?.held ?? noEvents), ...events], reason);
      return;
    }
    scheduler.park(sequence);
    relay?.complete(events);
  }

  #commitRows(running: S, result: unknown, run: StepRun): void {
    const { executor, scheduler, totals, hooks } = this.#instance;
    const { sequence, relay } = running;
    const { computed, promptLength } = sequence;
    // In a step run every row decodes.
    if (run.stepUs.length > 1) sequence.planned = run.stepUs.length;
    const end = computed + sequence.planned;
    totals.computedPrompt += Math.max(0, Math.min(promptLength, end) - computed);
    scheduler.commit(sequence);
    if (computed < promptLength && end >= promptLength)
      for (const component of hooks.computed) component.computed(running);
    if (running.cancelled) return;
    if (this.#rows.samples) totals.generated += run.stepUs.length;
    const emit = relay === undefined ? this.#notify : holdWith(relay);
    const reason = executor.commit(running, result, this.#rows, run, emit);
    if (reason !== undefined) this.#lifecycle.finish(running, relay?.held ?? noEvents, reason);
  }

  /** Rows of the request yield no token: its blocks leave the cache. */
  failRows(running: S, failure: RowFailure): void {
    const { computed, planned, promptLength } = running.sequence;
    if (failure === 'notFinite') {
      const figures = `after ${computed + planned} tokens`;
      this.#lifecycle.fail(running, `Cannot generate: the model's logits are not finite: ${figures}`);
      return;
    }
    const figures = `after ${computed + planned - promptLength} tokens of output`;
    const message = `Cannot generate: the grammar of the request allows no token of the vocabulary: ${figures}`;
    this.#lifecycle.fail(running, message, 'GRAMMAR_FAILED');
  }

  /** The engine failed, and with it all requests of the step. @returns what to log */
  failAll(flight: InFlight<S>, message: string): Extract<InstanceEffect, { kind: 'fault' }> {
    const figures = `step ${flight.step}, ${flight.requests.length} requests, ${flight.shape.rows} rows`;
    for (const running of flight.requests)
      this.#lifecycle.fail(running, `Cannot generate: the engine failed: ${figures}`);
    return { kind: 'fault', message: `Cannot run a step: ${message}: ${figures}` };
  }
}

/** A function of its own: a closure would cost every row of a step an allocation. */
function holdWith(relay: NonNullable<RunningRequest['relay']>): Emit {
  return (_, event) => relay.hold(event);
}

const noEvents: readonly GenerationEvent[] = [];
