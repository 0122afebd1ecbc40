// What came of a simulated run: latencies, rates, and a hash of all that happened.

import type { ConductorEffect } from '../../core/protocol/effects.ts';
import type { GenerationEvent } from '../../core/protocol/ports.ts';
import type { RefusalCause } from '../../core/protocol/refusal-cause.ts';

import type { BlockCounts, MissReasons } from '../../core/router/placement/placed-prompt.ts';
import type { LengthRequest } from '../../core/scheduler/executor/length-request.ts';
import { meanOfLongest } from '../../util/longest-gaps.ts';
import { scramble } from '../../util/scramble.ts';
import { wideZero } from '../../util/wide-zero.ts';
import type { TierFigures } from '../engine/tiers.ts';
import type { ByteKind } from '../network/network.ts';
import type { Retries } from '../workload/retries.ts';
import { type Group, Groups, inTime } from './groups.ts';
import { Histogram } from './histogram.ts';
import { LoadSwing } from './load-swing.ts';
import type { MigrationFigures } from './migration-figures.ts';
import { PredictionAudit } from './prediction-audit.ts';

export interface Latency {
  readonly mean: number;
  readonly p50: number;
  readonly p90: number;
  readonly p99: number;
}

interface InstanceFigures {
  readonly pinHitTokens: number;
  snapshot(): { readonly steps: number; readonly evictedBlocks: number; readonly preemptions: number };
}

export class Outcome {
  readonly ttftUs = new Histogram();
  readonly tbtUs = new Histogram();
  readonly predictedTtft = new PredictionAudit();
  readonly predictedTbt = new PredictionAudit();
  readonly predictedOutputs = new PredictionAudit();
  readonly swing = new LoadSwing();
  /** Undefined: who is refused does not come again. */
  retries: Retries | undefined;
  /** Of requests that name one. */
  readonly classes = new Groups();
  readonly tenants = new Groups();
  requests = 0;
  completedRequests = 0;
  readonly refused = { atPrefill: 0, atDecode: 0 };
  /** Those refused, by reason; a failure of another kind is `failed`. */
  readonly refusedByReason: Partial<Record<RefusalCause['reason'] | 'failed', number>> = {};
  /** Prompt tokens computed for requests that were refused after that. */
  wastedPrefillTokens = 0;
  /** Completed with first token and gaps in time. */
  withinSlo = 0;
  bytesMoved: Readonly<Record<ByteKind, number>> = { prefix: 0, handoff: 0, borrow: 0, settle: 0, activations: 0 };
  /** Requests whose prompts were computed where they decode. */
  inlinePrefills = 0;
  /** Instances that changed between prefill and decode. */
  roleSwitches = 0;
  /** What became of pinned prefixes, and tokens of prompts that were found in their blocks. */
  readonly pins = { pinned: 0, refused: 0, unpinned: 0, hitTokens: 0 };
  /** Batch jobs: they count nowhere else. */
  readonly batch = { requests: 0, completed: 0, outputTokens: 0, completionUs: new Histogram() };
  /** When the last request completed that is no batch job. */
  servedUntilUs: number = wideZero;
  /** Undefined where blocks are kept in device memory alone. */
  tiers: TierFigures | undefined;
  /** Bigger instances that were started, and the requests that went on there; undefined where none could be. */
  migration: MigrationFigures | undefined;
  /** Prompts that went to groups. */
  groupPrefills = 0;
  promptTokens = 0;
  cachedTokens = 0;
  outputTokens = 0;
  steps = 0;
  preemptions = 0;
  endUs = 0;
  /** Blocks of prompts that were in a cache, and why the others were not. */
  hitBlocks = 0;
  /** At the end. */
  replication: BlockCounts['replication'] = { blocks: 0, onSeveral: 0, copies: 0 };
  missReasons: Readonly<MissReasons> = { neverSeen: 0, evicted: 0, elsewhere: 0, partial: 0 };
  #hash = 0x811c9dc5;
  #hashHigh = 0x01000193;

  told(effect: Extract<ConductorEffect, { kind: 'roleSwitched' | 'pinUpdated' }>): void {
    if (effect.kind === 'roleSwitched') this.roleSwitches++;
    else this.pins[effect.state.kind]++;
  }

  completed(request: LengthRequest): void {
    if (request.trace.batch === true) {
      this.#jobCompleted(request);
      return;
    }
    this.servedUntilUs = request.lastTokenUs;
    const { trace, firstTokenUs = 0, lastTokenUs, cachedTokens } = request;
    this.retries?.ended(request);
    this.requests++;
    this.completedRequests++;
    this.promptTokens += trace.inputTokens;
    this.cachedTokens += cachedTokens;
    this.outputTokens += trace.outputTokens;
    this.ttftUs.add(firstTokenUs - trace.arrivalUs);
    const gaps = request.outputs - 1;
    const tbtUs = gaps > 0 ? Math.round(meanOfLongest(request.gapUs, gaps)) : 0;
    if (gaps > 0) this.tbtUs.add(tbtUs);
    const { slo, predicted } = request;
    if (predicted !== undefined) {
      this.predictedTtft.add(predicted.ttftUs, firstTokenUs - trace.arrivalUs);
      if (gaps > 0) this.predictedTbt.add(predicted.tbtUs, tbtUs);
      this.predictedOutputs.add(predicted.outputTokens, trace.outputTokens);
    }
    const served = { ttftUs: firstTokenUs - trace.arrivalUs, tbtUs, completionUs: lastTokenUs - trace.arrivalUs };
    if (inTime(slo, served)) this.withinSlo++;
    for (const group of this.#groupsOf(trace)) group.serve(request, served);
    this.#mix(trace.index, trace.arrivalUs, firstTokenUs, lastTokenUs, cachedTokens);
  }

  #jobCompleted({ trace, firstTokenUs = 0, lastTokenUs, cachedTokens }: LengthRequest): void {
    this.batch.requests++;
    this.batch.completed++;
    this.batch.outputTokens += trace.outputTokens;
    this.batch.completionUs.add(lastTokenUs - trace.arrivalUs);
    this.#mix(trace.index, trace.arrivalUs, firstTokenUs, lastTokenUs, cachedTokens);
  }

  /** Says when it comes again, where it does: then its end is still to come. */
  failed(
    nowUs: number,
    request: LengthRequest,
    event: Extract<GenerationEvent, { kind: 'failed' }>,
  ): number | undefined {
    const { trace, outputs, cachedTokens } = request;
    const { cause } = event;
    if (trace.batch === true) {
      this.batch.requests++;
      this.#mix(trace.index, -1, trace.arrivalUs, 0);
      return undefined;
    }
    if (outputs > 0) this.wastedPrefillTokens += trace.inputTokens - cachedTokens;
    const againUs = this.retries?.refused(nowUs, request, event);
    if (againUs !== undefined) return againUs;
    this.requests++;
    this.refused[cause?.at === 'decode' ? 'atDecode' : 'atPrefill']++;
    const reason = cause?.reason ?? 'failed';
    this.refusedByReason[reason] = (this.refusedByReason[reason] ?? 0) + 1;
    for (const group of this.#groupsOf(trace)) group.refuse();
    this.#mix(trace.index, -1, trace.arrivalUs, 0);
    return undefined;
  }

  #groupsOf({ sloClass, tenant }: LengthRequest['trace']): readonly Group[] {
    if (sloClass === undefined && tenant === undefined) return nobody;
    const ofClass = sloClass === undefined ? nobody : [this.classes.of(sloClass)];
    return tenant === undefined ? ofClass : [...ofClass, this.tenants.of(tenant)];
  }

  get refusedRequests(): number {
    return this.refused.atPrefill + this.refused.atDecode;
  }

  /** An instance is gone with its counts; `steps` of what it was doing had ended. */
  lost(instance: InstanceFigures, steps: number): void {
    const { evictedBlocks, preemptions, ...counts } = instance.snapshot();
    this.steps += counts.steps + steps;
    this.preemptions += preemptions;
    this.#mix(counts.steps + steps, evictedBlocks, preemptions);
  }

  /** @param underWay (instances): steps that had ended of what was running at the end */
  close(
    nowUs: number,
    instances: readonly InstanceFigures[],
    moved: Readonly<Record<ByteKind, number>>,
    blocks: BlockCounts,
    underWay: readonly number[],
  ): void {
    this.bytesMoved = { ...moved };
    const { activations, ...others } = moved;
    this.#mix(...Object.values(others));
    if (activations > 0) this.#mix(activations);
    this.endUs = nowUs;
    this.hitBlocks = blocks.hits;
    this.missReasons = blocks.misses;
    this.replication = blocks.replication;
    for (const [i, instance] of instances.entries()) {
      const { steps: committed, evictedBlocks, preemptions } = instance.snapshot();
      const steps = committed + underWay[i];
      this.pins.hitTokens += instance.pinHitTokens;
      this.steps += steps;
      this.preemptions += preemptions;
      this.#mix(steps, evictedBlocks, preemptions);
    }
  }

  /** 64 bits over every request's times in the order of their ends, and every instance's counts. */
  get stateHash(): string {
    return [this.#hash, this.#hashHigh].map((half) => (half >>> 0).toString(16).padStart(8, '0')).join('');
  }

  #mix(...values: readonly number[]): void {
    for (const value of values) {
      const low = (value % 2 ** 32) | 0;
      const high = Math.floor(value / 2 ** 32) | 0;
      this.#hash = scramble(this.#hash ^ low) ^ high;
      this.#hashHigh = scramble(Math.imul(this.#hashHigh, 31) ^ this.#hash ^ high);
    }
  }
}

const nobody: readonly Group[] = [];

export function latencyMs(histogram: Histogram): Latency {
  const ms = (us: number) => us / 1000;
  return {
    mean: ms(histogram.mean),
    p50: ms(histogram.percentile(0.5)),
    p90: ms(histogram.percentile(0.9)),
    p99: ms(histogram.percentile(0.99)),
  };
}
