// The instance machine: takes requests, plans steps over its KV memory, and turns step results into events.
import { Batcher } from '../policy/batching/batcher.ts';
import type { Sequence } from '../policy/batching/sequence.ts';
import type { BatchLimits } from '../policy/batching/step-budget.ts';
import { BlockCache } from '../policy/blocks/block-cache.ts';
import { type BlockRoot, rootDigest } from '../policy/blocks/block-hash.ts';
import type { EvictionKind } from '../policy/blocks/eviction.ts';
import { StepCost, type StepShape } from '../policy/cost/step-cost.ts';
import type { LayerGroup, StepResult } from '../util/step.ts';
import { overloaded, Throughput, tooLong } from './admission.ts';
import type { InstanceEffect } from './effects.ts';
import { logprobsOf } from './logprobs.ts';
import type { InstanceEvent, StepNumber } from './messages.ts';
import type { GenerationEvent, GenerationRequest, InstanceSnapshot, RequestId } from './ports.ts';
import { ServedRequest } from './request.ts';
import { StepBuilder } from './step-builder.ts';

export interface InstanceConfig {
  /** Pages of the KV pool, and the model's layer groups, which share them. */
  readonly pages: number;
  readonly groups: readonly LayerGroup[];
  readonly eviction: EvictionKind;
  readonly limits: BatchLimits;
  /** Requests accepted and not ended, at most. */
  readonly queueMax: number;
  readonly root: BlockRoot;
  /** Four words, the same wherever blocks are exchanged. */
  readonly hashKey: Uint32Array;
}

/** A decode row is worth an abort only when its step would go on for longer than this. */
const abortDecodeUsMin = 100_000;

interface InFlight {
  readonly step: StepNumber;
  readonly startedUs: number;
  readonly predictedUs: number;
  readonly shape: StepShape;
  readonly requests: readonly ServedRequest[];
  aborting: boolean;
}

/**
 * One step is in flight at a time; it counts only when its result is committed, so an aborted one is planned again without those who left.
 * Late, doubled and unknown events change nothing and are answered with an `ignored` effect.
 */
export class Instance {
  readonly #config: InstanceConfig;
  readonly #cache: BlockCache;
  readonly #cost = new StepCost();
  readonly #batcher: Batcher;
  readonly #builder: StepBuilder;
  readonly #throughput = new Throughput();
  /** Those that hear events: accepted, not ended, not cancelled. */
  readonly #live = new Map<RequestId, ServedRequest>();
  /** Every sequence that the batcher holds: the live ones, and cancelled ones whose rows are in flight. */
  readonly #served = new Map<Sequence, ServedRequest>();
  readonly #totals = { prompt: 0, cached: 0, computedPrompt: 0, generated: 0, steps: 0, stepUs: 0 };
  #arrivals = 0;
  #steps: StepNumber = 0;
  #inFlight: InFlight | undefined;
  #abortedLast = false;
  #effects: InstanceEffect[] = [];

  constructor(config: InstanceConfig) {
    this.#config = config;
    this.#cache = new BlockCache(config);
    this.#batcher = new Batcher(this.#cache, config.limits, this.#cost);
    this.#builder = new StepBuilder(
      config.limits,
      this.#cache.groups.map(({ pool }) => pool),
    );
  }

  /** Tokens of the longest sequence that the pages hold: infinite where every layer has a window and the windows fit. */
  get capacityTokens(): number {
    return this.#cache.capacityTokens;
  }

  /** `nowUs` never goes back. The effects are to be carried out in order. */
  step(nowUs: number, event: InstanceEvent): readonly InstanceEffect[] {
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
    return this.#effects;
  }

  #submit(nowUs: number, request: GenerationRequest): void {
    if (this.#live.has(request.id)) {
      this.#ignore(`submit: request ${request.id} is live already`);
      return;
    }
    const { queueMax } = this.#config;
    const accepted = this.#live.size;
    const refusal =
      tooLong(request, this.capacityTokens) ??
      (accepted >= queueMax
        ? overloaded(accepted, queueMax, this.#throughput.retryAfterMs(nowUs, accepted))
        : undefined);
    this.#emit(request.id, refusal ?? { kind: 'accepted' });
    if (refusal !== undefined) return;
    const root = rootDigest(this.#config.root, request.salt, this.#config.hashKey);
    const served = new ServedRequest(request, root, this.#arrivals++, this.#config.groups.length);
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
    } else if (!flight.aborting && this.#worthAborting(nowUs, flight, served)) {
      flight.aborting = true;
      this.#effects.push({ kind: 'abortStep', step: flight.step });
    }
  }

  /** Is it worth losing the step's work to be rid of these rows? Never twice in a row at the expense of others: they must get on. */
  #worthAborting(nowUs: number, flight: InFlight, served: ServedRequest): boolean {
    if (flight.requests.every((other) => other.cancelled)) return true;
    if (this.#abortedLast) return false;
    return served.sequence.planned > 1 || flight.predictedUs - (nowUs - flight.startedUs) > abortDecodeUsMin;
  }

  #stepEnded(nowUs: number, event: Extract<InstanceEvent, { step: StepNumber }>): void {
    const flight = this.#inFlight;
    if (flight?.step !== event.step) {
      const current = flight === undefined ? 'none is' : `step ${flight.step} is`;
      this.#ignore(`${event.kind}: step ${event.step} is not in flight: ${current}`);
      return;
    }
    this.#inFlight = undefined;
    this.#abortedLast = event.kind === 'stepAborted';
    if (event.kind === 'stepDone') this.#commit(nowUs, flight, event.result);
    if (event.kind === 'stepFailed') this.#failStep(nowUs, flight, event.message);
    for (const served of flight.requests) if (served.cancelled) this.#remove(served, false);
  }

  #commit(nowUs: number, flight: InFlight, result: StepResult): void {
    const us = nowUs - flight.startedUs;
    this.#cost.observe(flight.shape, us);
    this.#totals.steps++;
    this.#totals.stepUs += us;
    let row = 0;
    for (const served of flight.requests) {
      const rows = served.sequence.scoredRows + (served.sequence.samplesNow ? 1 : 0);
      if (result.failed.subarray(row, row + rows).includes(1)) this.#failRow(nowUs, served);
      else this.#commitRows(nowUs, served, result, row);
      row += rows;
    }
  }

  /** The request's share of a result: its rows with logits begin at `row`. */
  #commitRows(nowUs: number, served: ServedRequest, result: StepResult, row: number): void {
    const { sequence } = served;
    const { computed, planned, promptLength, scoredRows, samplesNow } = sequence;
    this.#totals.computedPrompt += Math.max(0, Math.min(promptLength, computed + planned) - computed);
    this.#batcher.commit(sequence);
    if (served.cancelled) return;
    const { id, sampling } = served.request;
    if (scoredRows > 0) {
      sequence.scored = Math.min(computed + planned, promptLength - 1);
      const logprobs = logprobsOf(result, row, scoredRows, sampling.topLogprobs ?? 0);
      this.#emit(id, { kind: 'prompt-logprobs', logprobs });
    }
    let reason: 'stop' | 'length' | undefined;
    if (samplesNow) {
      const last = row + scoredRows;
      const token = result.tokens[last];
      reason = served.append(token);
      this.#totals.generated++;
      const width = sampling.topLogprobs;
      const logprobs = width === undefined ? undefined : logprobsOf(result, last, 1, width);
      this.#emit(id, { kind: 'tokens', tokens: Int32Array.of(token), logprobs });
    } else if (!sequence.samples && sequence.remaining === 0) {
      reason = 'length';
    }
    if (reason !== undefined) this.#end(nowUs, served, { kind: 'finished', reason }, false);
  }

  /** Its own numbers broke: whatever it computed is dropped from the cache. */
  #failRow(nowUs: number, served: ServedRequest): void {
    const position = served.sequence.computed + served.sequence.planned;
    this.#fail(nowUs, served, `Cannot generate: the model's logits are not finite: after ${position} tokens`);
  }

  #failStep(nowUs: number, flight: InFlight, message: string): void {
    const figures = `step ${flight.step}, ${flight.requests.length} requests, ${flight.shape.rows} rows`;
    this.#effects.push({ kind: 'fault', message: `Cannot run a step: ${message}: ${figures}` });
    for (const served of flight.requests) this.#fail(nowUs, served, `Cannot generate: the engine failed: ${figures}`);
  }

  #fail(nowUs: number, served: ServedRequest, message: string): void {
    if (served.cancelled) this.#remove(served, true);
    else this.#end(nowUs, served, { kind: 'failed', code: 'ENGINE_FAILED', message, retryAfterMs: undefined }, true);
  }

  #end(nowUs: number, served: ServedRequest, event: GenerationEvent, forget: boolean): void {
    this.#throughput.ended(nowUs);
    this.#live.delete(served.request.id);
    this.#emit(served.request.id, event);
    this.#remove(served, forget);
  }

  /** Frees all that it holds; with `forget` its blocks leave the cache. A second call does nothing. */
  #remove(served: ServedRequest, forget: boolean): void {
    if (!this.#served.delete(served.sequence)) return;
    this.#batcher.remove(served.sequence, forget);
  }

  #launch(nowUs: number): void {
    const planned = this.#batcher.plan();
    for (const sequence of this.#batcher.admitted) this.#start(this.#requestOf(sequence));
    if (planned.length === 0) return;
    const requests = planned.map((sequence) => this.#requestOf(sequence));
    const shape = { ...this.#batcher.shape };
    const predictedUs = Math.round(this.#cost.predictUs(shape));
    const step = ++this.#steps;
    this.#inFlight = { step, startedUs: nowUs, predictedUs, shape, requests, aborting: false };
    this.#effects.push({ kind: 'runStep', step, plan: this.#builder.build(requests), predictedUs });
  }

  /** The first time that a request runs; a preempted one has started before. */
  #start(served: ServedRequest): void {
    if (served.started) return;
    served.started = true;
    const cachedTokens = served.sequence.cachedTokens ?? 0;
    this.#totals.prompt += served.sequence.promptLength;
    this.#totals.cached += cachedTokens;
    this.#emit(served.request.id, { kind: 'started', cachedTokens });
  }

  #requestOf(sequence: Sequence): ServedRequest {
    const served = this.#served.get(sequence);
    if (served === undefined) throw new Error(`Instance broken: arrival ${sequence.arrival} belongs to no request`);
    return served;
  }

  #emit(id: RequestId, event: GenerationEvent): void {
    this.#effects.push({ kind: 'emit', id, event });
  }

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
      const { id } = served.request;
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
