// What a step computed, taken over request by request: sequences grow, clients hear, prompts leave.

import type { InstanceEffect } from '../protocol/effects.ts';
import type { RequestId } from '../protocol/ids.ts';
import type { GenerationEvent } from '../protocol/ports.ts';
import type { KvSender } from '../transfer/hand-off/kv-sender.ts';
import type { Batcher } from './batching/batcher.ts';
import type { Emit, Executor, ResultRows, RunningRequest, StepRun } from './executor/executor.ts';
import type { InstanceTotals } from './instance-totals.ts';
import type { InFlight } from './step-in-flight.ts';

/** The instance, as the results of its steps see it. */
interface Owner<S> {
  readonly emit: Emit;
  /** The request is over; with `forget` its blocks leave the cache. */
  readonly end: (nowUs: number, served: S, event: GenerationEvent, forget: boolean) => void;
  /** A creditor did not answer: its rows are to be computed again. */
  readonly unanswered: (served: S) => void;
  /** It computed behind blocks that were on their way: they have come, or it is to be computed without. */
  readonly behind: (served: S, answered: boolean) => void;
  /** Frees all that it holds. */
  readonly remove: (served: S, forget: boolean) => void;
  /** Its prompt is computed, and goes on elsewhere unless it ends with its first token. */
  readonly prefilled: (id: RequestId) => void;
  /** All of its prompt is computed. */
  readonly computed: (served: S) => void;
}

interface Parts<Request, S extends RunningRequest, Plan, Result> {
  readonly work: Executor<Request, S, Plan, Result>;
  readonly batcher: Batcher;
  readonly totals: InstanceTotals;
  readonly departures: KvSender<Request, S>;
}

export class StepResults<Request, S extends RunningRequest, Plan, Result> {
  readonly #parts: Parts<Request, S, Plan, Result>;
  readonly #owner: Owner<S>;
  readonly #rows = { row: 0, scored: 0, samples: false };

  constructor(parts: Parts<Request, S, Plan, Result>, owner: Owner<S>) {
    this.#parts = parts;
    this.#owner = owner;
  }

  commit(nowUs: number, flight: InFlight<S>, result: Result, stepUs: ArrayLike<number>): void {
    const { work, totals, departures } = this.#parts;
    totals.ran(stepUs);
    const run = { startedUs: flight.startedUs, stepUs };
    const rows = this.#rows;
    rows.row = 0;
    const departing = departures.size > 0;
    for (let place = 0; place < flight.requests.length; place++) {
      const served = flight.requests[place];
      rows.scored = served.sequence.scoredRows;
      rows.samples = served.sequence.samplesNow;
      const unanswered = work.isUnanswered(result, place);
      if (served.sequence.arriving !== undefined) this.#owner.behind(served, !unanswered);
      if (unanswered) this.#owner.unanswered(served);
      else if (work.failed(result, rows)) this.failRow(nowUs, served);
      else if (rows.samples && departing && departures.has(served.id))
        this.#commitPrompt(nowUs, served, result, rows, run);
      else this.#commitRows(nowUs, served, result, rows, run);
      rows.row += rows.scored + Number(rows.samples);
    }
  }

  /** A prompt that goes on elsewhere is computed: there its client will hear the first token, unless that is the last. */
  #commitPrompt(nowUs: number, served: S, result: Result, rows: ResultRows, run: StepRun): void {
    const { work, batcher, totals, departures } = this.#parts;
    const { sequence } = served;
    totals.computedPrompt += sequence.planned;
    totals.generated++;
    batcher.commit(sequence);
    const held: GenerationEvent[] = [];
    const reason = work.commit(served, result, rows, run, (_, event) => held.push(event));
    this.#owner.computed(served);
    this.#owner.prefilled(served.id);
    if (reason === undefined) {
      batcher.park(sequence);
      departures.compute(served.id, held);
    } else {
      this.endPrompt(nowUs, served, [...departures.toldOf(served.id), ...held], reason);
    }
  }

  /** The first token of a prompt that was to go on elsewhere is its last. */
  endPrompt(nowUs: number, served: S, told: readonly GenerationEvent[], reason: 'stop' | 'length'): void {
    for (const event of told) this.#owner.emit(served.id, event);
    this.#owner.end(nowUs, served, { kind: 'finished', reason }, false);
  }

  #commitRows(nowUs: number, served: S, result: Result, rows: ResultRows, run: StepRun): void {
    const { work, batcher, totals, departures } = this.#parts;
    const { sequence } = served;
    const { computed, promptLength } = sequence;
    // In a run of several steps every row decodes.
    if (run.stepUs.length > 1) sequence.planned = run.stepUs.length;
    const end = computed + sequence.planned;
    totals.computedPrompt += Math.max(0, Math.min(promptLength, end) - computed);
    batcher.commit(sequence);
    if (computed < promptLength && end >= promptLength) this.#owner.computed(served);
    if (served.cancelled) return;
    if (rows.samples) totals.generated += run.stepUs.length;
    const leaves = departures.size > 0 && departures.has(served.id);
    const emit: Emit = leaves ? (id, event) => departures.tell(id, event) : this.#owner.emit;
    const reason = work.commit(served, result, rows, run, emit);
    if (reason !== undefined) this.endPrompt(nowUs, served, leaves ? departures.toldOf(served.id) : nothing, reason);
  }

  /** Its own numbers broke: whatever it computed is dropped from the cache. */
  failRow(nowUs: number, served: S): void {
    const position = served.sequence.computed + served.sequence.planned;
    this.#fail(nowUs, served, `Cannot generate: the model's logits are not finite: after ${position} tokens`);
  }

  /** The step came to nothing, and takes its requests with it. Returns what to log. */
  failAll(nowUs: number, flight: InFlight<S>, message: string): Extract<InstanceEffect, { kind: 'fault' }> {
    const figures = `step ${flight.step}, ${flight.requests.length} requests, ${flight.shape.rows} rows`;
    for (const served of flight.requests) this.#fail(nowUs, served, `Cannot generate: the engine failed: ${figures}`);
    return { kind: 'fault', message: `Cannot run a step: ${message}: ${figures}` };
  }

  #fail(nowUs: number, served: S, message: string): void {
    if (served.cancelled) this.#owner.remove(served, true);
    else
      this.#owner.end(nowUs, served, { kind: 'failed', code: 'ENGINE_FAILED', message, retryAfterMs: undefined }, true);
  }
}

const nothing: readonly GenerationEvent[] = [];
