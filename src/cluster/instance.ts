// The instance machine: takes requests, plans steps over its KV memory, and turns step results into events.
import { Batcher } from '../policy/batching/batcher.ts';
import type { Sequence } from '../policy/batching/sequence.ts';
import type { BatchLimits } from '../policy/batching/step-budget.ts';
import { BlockCache } from '../policy/blocks/block-cache.ts';
import type { BlockPool } from '../policy/blocks/block-pool.ts';
import type { EvictionKind } from '../policy/blocks/eviction.ts';
import type { StepPredictor, StepShape } from '../policy/cost/step-shape.ts';
import type { LayerGroup } from '../util/step.ts';
import { overloaded, Throughput, tooLong } from './admission.ts';
import type { InstanceEffect } from './effects.ts';
import type { InstanceEvent, StepNumber } from './messages.ts';
import type { GenerationEvent, InstanceSnapshot, RequestId } from './ports.ts';
import type { Emit, ResultRows, Served, StepRun, Work } from './work.ts';

export interface InstanceConfig {
  /** Pages of the KV pool, and the model's layer groups, which share them. */
  readonly pages: number;
  readonly groups: readonly LayerGroup[];
  readonly blockTokens: number;
  readonly eviction: EvictionKind;
  readonly limits: BatchLimits;
  /** Predicts steps, and learns from those that ran if it can. */
  readonly cost: StepPredictor;
  /** Requests accepted and not ended, at most. */
  readonly queueMax: number;
}

/** A decode row is worth an abort only when its step would go on for longer than this. */
const abortDecodeUsMin = 100_000;

interface InFlight<S> {
  readonly step: StepNumber;
  readonly startedUs: number;
  readonly predictedUs: number;
  readonly shape: StepShape;
  readonly requests: readonly S[];
  /** Equal steps that may follow one another before anything has to be decided. */
  readonly stepsMax: number;
  /** It was asked to stop: by an abort, or at the end of the step that runs. */
  ending: boolean;
}

/**
 * One step, or one run of equal steps, is in flight at a time; it counts only when its result is committed, so an aborted one is planned again without those who left.
 * Late, doubled and unknown events change nothing and are answered with an `ignored` effect.
 */
export class Instance<Request extends { readonly id: RequestId }, S extends Served, Plan, Result> {
  readonly #config: InstanceConfig;
  readonly #cache: BlockCache;
  readonly #cost: StepPredictor;
  readonly #batcher: Batcher;
  readonly #work: Work<Request, S, Plan, Result>;
  readonly #throughput = new Throughput();
  /** Those that hear events: accepted, not ended, not cancelled. */
  readonly #live = new Map<RequestId, S>();
  /** Every sequence that the batcher holds: the live ones, and cancelled ones whose rows are in flight. */
  readonly #served = new Map<Sequence, S>();
  /** (sequencesMax): those that run, by the slots of their sequences. */
  readonly #bySlot: S[] = [];
  readonly #rows = { row: 0, scored: 0, samples: false };
  readonly #totals = { prompt: 0, cached: 0, computedPrompt: 0, generated: 0, steps: 0, stepUs: 0 };
  #arrivals = 0;
  #steps: StepNumber = 0;
  #inFlight: InFlight<S> | undefined;
  #abortedLast = false;
  #effects: InstanceEffect<Plan>[] = [];

  /** @param work made over the pools of the layer groups */
  constructor(config: InstanceConfig, work: (pools: readonly BlockPool[]) => Work<Request, S, Plan, Result>) {
    this.#config = config;
    this.#cost = config.cost;
    this.#cache = new BlockCache(config);
    this.#batcher = new Batcher(this.#cache, config.limits, this.#cost);
    this.#work = work(this.#cache.groups.map(({ pool }) => pool));
  }

  /** Tokens of the longest sequence that the pages hold: infinite where every layer has a window and the windows fit. */
  get capacityTokens(): number {
    return this.#cache.capacityTokens;
  }

  /** `nowUs` never goes back. The effects are to be carried out in order. */
  step(nowUs: number, event: InstanceEvent<Request, Result>): readonly InstanceEffect<Plan>[] {
    this.#effects = [];
    switch (event.kind) {
      case 'submit':
        this.#submit(nowUs, event.request);
        break;
      case 'cancel':
        this.#cancel(nowUs, event.id);
        break;
      default:
        this.#stepEnded(nowUs, event);
    }
    if (this.#inFlight === undefined) this.#launch(nowUs);
    else if (event.kind === 'submit' || event.kind === 'cancel') this.#endRun(this.#inFlight);
    return this.#effects;
  }

  #submit(nowUs: number, request: Request): void {
    if (this.#live.has(request.id)) {
      this.#ignore(`submit: request ${request.id} is live already`);
      return;
    }
    const { queueMax } = this.#config;
    const accepted = this.#live.size;
    const refusal =
      tooLong(this.#work.size(request), this.capacityTokens) ??
      (accepted >= queueMax
        ? overloaded(accepted, queueMax, this.#throughput.retryAfterMs(nowUs, accepted))
        : undefined);
    this.#emit(request.id, refusal ?? { kind: 'accepted' });
    if (refusal !== undefined) return;
    const served = this.#work.serve(request, this.#arrivals++);
    this.#live.set(request.id, served);
    this.#served.set(served.sequence, served);
    this.#batcher.add(served.sequence);
  }

  #cancel(nowUs: number, id: RequestId): void {
    const served = this.#live.get(id);
    if (served === undefined) {
      this.#ignore(`cancel: request ${id} is not live`);
      return;
    }
    this.#live.delete(id);
    served.cancelled = true;
    const flight = this.#inFlight;
    if (flight === undefined || served.sequence.planned === 0) {
      this.#remove(served, false);
    } else if (!flight.ending && this.#worthAborting(nowUs, flight, served)) {
      flight.ending = true;
      this.#effects.push({ kind: 'abortStep', step: flight.step });
    }
  }

  /** Is it worth losing the step's work to be rid of these rows? Never twice in a row at the expense of others: they must get on. */
  #worthAborting(nowUs: number, flight: InFlight<S>, served: S): boolean {
    if (flight.requests.every((other) => other.cancelled)) return true;
    // The steps of a run are short.
    if (this.#abortedLast || flight.stepsMax > 1) return false;
    return served.sequence.planned > 1 || flight.predictedUs - (nowUs - flight.startedUs) > abortDecodeUsMin;
  }

  #stepEnded(nowUs: number, event: Extract<InstanceEvent<Request, Result>, { step: StepNumber }>): void {
    const flight = this.#inFlight;
    if (flight?.step !== event.step) {
      const current = flight === undefined ? 'none is' : `step ${flight.step} is`;
      this.#ignore(`${event.kind}: step ${event.step} is not in flight: ${current}`);
      return;
    }
    this.#inFlight = undefined;
    this.#abortedLast = event.kind === 'stepAborted';
    if (event.kind === 'stepDone')
      this.#commit(nowUs, flight, event.result, event.stepUs ?? [nowUs - flight.startedUs]);
    if (event.kind === 'stepFailed') this.#failStep(nowUs, flight, event.message);
    for (const served of flight.requests) if (served.cancelled) this.#remove(served, false);
  }

  #commit(nowUs: number, flight: InFlight<S>, result: Result, stepUs: ArrayLike<number>): void {
    this.#observe(flight.shape, stepUs);
    const run = { startedUs: flight.startedUs, stepUs };
    const rows = this.#rows;
    rows.row = 0;
    for (const served of flight.requests) {
      rows.scored = served.sequence.scoredRows;
      rows.samples = served.sequence.samplesNow;
      if (this.#work.failed(result, rows)) this.#failRow(nowUs, served);
      else this.#commitRows(nowUs, served, result, rows, run);
      rows.row += rows.scored + Number(rows.samples);
    }
  }

  #observe(shape: StepShape, stepUs: ArrayLike<number>): void {
    this.#cost.observe(shape, stepUs);
    for (let i = 0; i < stepUs.length; i++) this.#totals.stepUs += stepUs[i];
    this.#totals.steps += stepUs.length;
  }

  #commitRows(nowUs: number, served: S, result: Result, rows: ResultRows, run: StepRun): void {
    const { sequence } = served;
    const { computed, promptLength } = sequence;
    // In a run of several steps every row decodes.
    if (run.stepUs.length > 1) sequence.planned = run.stepUs.length;
    const end = computed + sequence.planned;
    this.#totals.computedPrompt += Math.max(0, Math.min(promptLength, end) - computed);
    this.#batcher.commit(sequence);
    if (served.cancelled) return;
    if (rows.samples) this.#totals.generated += run.stepUs.length;
    const reason = this.#work.commit(served, result, rows, run, this.#emit);
    if (reason !== undefined) this.#end(nowUs, served, { kind: 'finished', reason }, false);
  }

  /** Its own numbers broke: whatever it computed is dropped from the cache. */
  #failRow(nowUs: number, served: S): void {
    const position = served.sequence.computed + served.sequence.planned;
    this.#fail(nowUs, served, `Cannot generate: the model's logits are not finite: after ${position} tokens`);
  }

  #failStep(nowUs: number, flight: InFlight<S>, message: string): void {
    const figures = `step ${flight.step}, ${flight.requests.length} requests, ${flight.shape.rows} rows`;
    this.#effects.push({ kind: 'fault', message: `Cannot run a step: ${message}: ${figures}` });
    for (const served of flight.requests) this.#fail(nowUs, served, `Cannot generate: the engine failed: ${figures}`);
  }

  #fail(nowUs: number, served: S, message: string): void {
    if (served.cancelled) this.#remove(served, true);
    else this.#end(nowUs, served, { kind: 'failed', code: 'ENGINE_FAILED', message, retryAfterMs: undefined }, true);
  }

  #end(nowUs: number, served: S, event: GenerationEvent, forget: boolean): void {
    this.#throughput.ended(nowUs);
    this.#live.delete(served.id);
    this.#emit(served.id, event);
    this.#remove(served, forget);
  }

  /** Frees all that it holds; with `forget` its blocks leave the cache. A second call does nothing. */
  #remove(served: S, forget: boolean): void {
    if (!this.#served.delete(served.sequence)) return;
    this.#batcher.remove(served.sequence, forget);
  }

  #launch(nowUs: number): void {
    const planned = this.#batcher.plan();
    for (const sequence of this.#batcher.admitted) {
      const served = this.#requestOf(sequence);
      this.#bySlot[sequence.slot] = served;
      this.#start(served);
    }
    if (planned.length === 0) return;
    const requests = new Array<S>(planned.length);
    for (let i = 0; i < planned.length; i++) requests[i] = this.#bySlot[planned[i].slot];
    const shape = { ...this.#batcher.shape };
    const predictedUs = Math.round(this.#cost.predictUs(shape));
    const step = ++this.#steps;
    const stepsMax = this.#stepsMax(requests);
    this.#inFlight = { step, startedUs: nowUs, predictedUs, shape, requests, stepsMax, ending: false };
    this.#effects.push({ kind: 'runStep', step, plan: this.#work.plan(requests), predictedUs, shape, stepsMax });
  }

  /** How many equal steps may follow one another: until a request may end or the batcher has something to decide. */
  #stepsMax(requests: readonly S[]): number {
    let most = this.#batcher.steadySteps();
    for (let i = 0; i < requests.length && most > 1; i++) most = Math.min(most, this.#work.growthMax(requests[i]));
    return most;
  }

  /** What was just heard may change what the next step computes. */
  #endRun(flight: InFlight<S>): void {
    if (flight.stepsMax === 1 || flight.ending) return;
    flight.ending = true;
    this.#effects.push({ kind: 'endRun', step: flight.step });
  }

  /** The first time that a request runs; a preempted one has started before. */
  #start(served: S): void {
    if (served.started) return;
    served.started = true;
    const cachedTokens = served.sequence.cachedTokens ?? 0;
    this.#totals.prompt += served.sequence.promptLength;
    this.#totals.cached += cachedTokens;
    this.#emit(served.id, { kind: 'started', cachedTokens });
  }

  #requestOf(sequence: Sequence): S {
    const served = this.#served.get(sequence);
    if (served === undefined) throw new Error(`Instance broken: arrival ${sequence.arrival} belongs to no request`);
    return served;
  }

  readonly #emit: Emit = (id, event) => {
    this.#effects.push({ kind: 'emit', id, event });
  };

  #ignore(message: string): void {
    this.#effects.push({ kind: 'ignored', message: `Ignored ${message}` });
  }

  snapshot(): InstanceSnapshot {
    const { usedPages, cachedPages, pages } = this.#cache;
    const totals = this.#totals;
    return {
      ready: true,
      waiting: this.#batcher.waiting.length,
      running: this.#batcher.running.length,
      pages: { total: pages.total, used: usedPages, cached: cachedPages, free: pages.free },
      promptTokens: totals.prompt,
      cachedTokens: totals.cached,
      computedPromptTokens: totals.computedPrompt,
      generatedTokens: totals.generated,
      preemptions: this.#batcher.preemptions,
      steps: totals.steps,
      stepMsTotal: totals.stepUs / 1_000,
      evictedBlocks: this.#cache.evicted,
    };
  }

  /** Throws unless every page is accounted for, every request is in exactly one state, and something runs while anyone waits. */
  check(): void {
    this.#batcher.check();
    const held = [...this.#batcher.waiting, ...this.#batcher.running];
    if (held.length !== this.#served.size || !held.every((sequence) => this.#served.has(sequence))) {
      throw new Error(`Instance broken: ${this.#served.size} requests, ${held.length} sequences`);
    }
    const flying = new Set(this.#inFlight?.requests);
    for (const served of this.#served.values()) {
      const { id } = served;
      if (served.cancelled ? !flying.has(served) : this.#live.get(id) !== served)
        throw new Error(`Instance broken: request ${id} is in no state`);
      if (served.sequence.planned > 0 !== flying.has(served))
        throw new Error(`Instance broken: request ${id} has rows in no step`);
    }
    const cancelled = [...this.#served.values()].filter((served) => served.cancelled).length;
    if (this.#live.size + cancelled !== this.#served.size)
      throw new Error(`Instance broken: ${this.#live.size} requests live, ${this.#served.size} held`);
    if (this.#inFlight === undefined && held.length > 0)
      throw new Error(`Instance broken: ${held.length} requests wait and nothing runs`);
  }
}
