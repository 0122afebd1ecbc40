// The outcome of a simulated run: latencies, rates, and the state hash.

import type { LengthInstance } from '../../core/instance/length-instance.ts';
import type { ConductorEffect } from '../../core/protocol/effects.ts';
import type { GenerationEvent, InstanceSnapshot } from '../../core/protocol/ports.ts';
import type { RefusalCause } from '../../core/protocol/refusal-cause.ts';
import type { PoolLoads } from '../../core/router/admission/admission-controller.ts';
import type { BlockCounts, MissReasons } from '../../core/router/placement/placed-prompt.ts';
import type { LengthRequest } from '../../core/scheduler/executor/length-request.ts';
import { scramble } from '../../util/scramble.ts';
import { wideZero } from '../../util/wide-zero.ts';
import type { InstanceSpec } from '../engine/simulation-config.ts';
import type { TierFigures } from '../engine/tiers.ts';
import type { ByteKind } from '../network/network.ts';
import type { Retries } from '../workload/retries.ts';
import type { ClosedLoopFigures } from './closed-loop-figures.ts';
import { type Group, Groups, inTime } from './groups.ts';
import { Histogram } from './histogram.ts';
import { meanOfLongest } from './longest-gaps.ts';
import type { SparseFigures } from './sparse-figures.ts';

interface InstanceFigures {
  readonly components: { readonly pinning: { readonly hitTokens: number } };
  snapshot(): InstanceSnapshot;
}

/** The work of an instance. */
export interface InstanceWork {
  readonly steps: number;
  /** Time in steps. */
  readonly busySeconds: number;
  readonly promptTokens: number;
  readonly cachedTokens: number;
  readonly generatedTokens: number;
  readonly preemptions: number;
  readonly evictedBlocks: number;
  /** Pages held by sequences, integrated over time, and all pages. */
  readonly usedPageSeconds: number;
  readonly pages: number;
}

function workOf(snapshot: InstanceSnapshot): Omit<InstanceWork, 'steps'> {
  const { promptTokens, cachedTokens, generatedTokens, preemptions, evictedBlocks, usedPageSeconds } = snapshot;
  return {
    ...{ promptTokens, cachedTokens, generatedTokens, preemptions, evictedBlocks, usedPageSeconds },
    busySeconds: snapshot.stepMsTotal / 1000,
    pages: snapshot.pages.total,
  };
}

/** Between two samples. */
const swingIntervalUs = 1_000_000;

/** The loads of the prefill and the decode pool over time: their means and the deviation of their difference. */
class LoadSwing {
  #nextUs = 0;
  #count = 0;
  #mean = 0;
  #squares = 0;
  #prefill = 0;
  #decode = 0;

  /** Samples at equal distances up to `timeUs`. @param loadsAt runs everything before that time first */
  sampleUntil(timeUs: number, loadsAt: (atUs: number) => PoolLoads | undefined): void {
    for (; this.#nextUs < timeUs; this.#nextUs += swingIntervalUs) this.#sample(loadsAt(this.#nextUs));
  }

  #sample(loads: PoolLoads | undefined): void {
    if (loads === undefined) return;
    const difference = loads.prefill - loads.decode;
    this.#count++;
    this.#prefill += loads.prefill;
    this.#decode += loads.decode;
    // Welford's algorithm.
    const delta = difference - this.#mean;
    this.#mean += delta / this.#count;
    this.#squares += delta * (difference - this.#mean);
  }

  /** Means of both loads, and the standard deviation of their difference. */
  get figures() {
    const count = Math.max(1, this.#count);
    return {
      prefillMean: this.#prefill / count,
      decodeMean: this.#decode / count,
      differenceDeviation: Math.sqrt(this.#squares / count),
    };
  }
}

/** Figures of predicted counts. */
export interface CountFigures {
  readonly requests: number;
  readonly predictedMean: number;
  readonly actualMean: number;
  /** Median of the absolute error. */
  readonly errorP50: number;
  readonly errorP90: number;
}

export interface AuditFigures {
  readonly requests: number;
  readonly predictedMsMean: number;
  readonly actualMsMean: number;
  /** Median of the absolute error. */
  readonly errorMsP50: number;
  readonly errorMsP90: number;
}

/** Predictions against actual values: times in microseconds (`figures`) or counts (`counts`). */
class PredictionAudit {
  #predictedSum = 0;
  #actualSum = 0;
  readonly #errors = new Histogram();

  add(predicted: number, actual: number): void {
    this.#predictedSum += predicted;
    this.#actualSum += actual;
    this.#errors.add(Math.round(Math.abs(predicted - actual)));
  }

  get counts(): CountFigures {
    const requests = this.#errors.count;
    const mean = (sum: number) => (requests === 0 ? 0 : sum / requests);
    return {
      requests,
      predictedMean: mean(this.#predictedSum),
      actualMean: mean(this.#actualSum),
      errorP50: this.#errors.percentile(0.5),
      errorP90: this.#errors.percentile(0.9),
    };
  }

  get figures(): AuditFigures {
    const requests = this.#errors.count;
    const meanMs = (us: number) => (requests === 0 ? 0 : us / requests / 1000);
    return {
      requests,
      predictedMsMean: meanMs(this.#predictedSum),
      actualMsMean: meanMs(this.#actualSum),
      errorMsP50: this.#errors.percentile(0.5) / 1000,
      errorMsP90: this.#errors.percentile(0.9) / 1000,
    };
  }
}

export class Outcome {
  readonly ttftUs = new Histogram();
  readonly tbtUs = new Histogram();
  /** From the arrival to the begin of the prefill, where the client received that, and to the last token. */
  readonly queueUs = new Histogram();
  readonly e2eUs = new Histogram();
  /** Mean gap between the tokens of a request. */
  readonly tpotUs = new Histogram();
  readonly predictedTtft = new PredictionAudit();
  readonly predictedTbt = new PredictionAudit();
  readonly predictedOutputs = new PredictionAudit();
  readonly swing = new LoadSwing();
  /** Undefined: refused requests do not return. */
  retries: Retries | undefined;
  /** Undefined: requests arrive at the times of the workload. */
  closedLoop: ClosedLoopFigures | undefined;
  /** Requests that name a class. */
  readonly classes = new Groups();
  readonly tenants = new Groups();
  requests = 0;
  completedRequests = 0;
  readonly refused = { atPrefill: 0, atDecode: 0 };
  /** Refusals by reason; a failure of another kind is `failed`. */
  readonly refusedByReason: Partial<Record<RefusalCause['reason'] | 'failed', number>> = {};
  /** Prompt tokens computed for requests that were refused later. */
  wastedPrefillTokens = 0;
  /** Requests completed within their SLO. */
  withinSlo = 0;
  bytesMoved: Readonly<Record<ByteKind, number>> = { prefix: 0, handoff: 0, borrow: 0, settle: 0, activations: 0 };
  /** Requests with prefill on their decode instance. */
  inlinePrefills = 0;
  /** Changes of an instance between prefill and decode. */
  roleSwitches = 0;
  /** States of pinned prefixes, and prompt tokens that hit pinned blocks. */
  readonly pins = { pinned: 0, refused: 0, unpinned: 0, hitTokens: 0 };
  /** Batch jobs, which the other figures exclude. */
  readonly batch = { requests: 0, completed: 0, outputTokens: 0, completionUs: new Histogram() };
  /** Completion of the last request, without batch jobs. */
  servedUntilUs: number = wideZero;
  /** Undefined where only device memory holds blocks. */
  tiers: TierFigures | undefined;
  /** Undefined without standby instances. */
  migration: MigrationFigures | undefined;
  /** (instances): the work of each since its last start. */
  readonly instances: InstanceWork[] = [];
  /** Undefined without sparse layers. */
  sparse: SparseFigures | undefined;
  /** Prompts computed by groups. */
  groupPrefills = 0;
  promptTokens = 0;
  cachedTokens = 0;
  outputTokens = 0;
  steps = 0;
  preemptions = 0;
  endUs = 0;
  /** Blocks of prompts found in a cache; `missReasons` counts the others. */
  hitBlocks = 0;
  /** At the end. */
  replication = { blocks: 0, onSeveral: 0, copies: 0, fetched: 0, proactive: 0 };
  missReasons: Readonly<MissReasons> = { neverSeen: 0, evicted: 0, elsewhere: 0, partial: 0 };
  #hash = 0x811c9dc5;
  #hashHigh = 0x01000193;

  count(effect: Extract<ConductorEffect, { kind: 'roleSwitched' | 'pinUpdated' }>): void {
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
    if (request.startedUs !== undefined) this.queueUs.add(request.startedUs - trace.arrivalUs);
    this.e2eUs.add(lastTokenUs - trace.arrivalUs);
    if (gaps > 0) this.tpotUs.add(Math.round((lastTokenUs - firstTokenUs) / gaps));
    const { slo, predicted } = request;
    if (predicted !== undefined) {
      this.predictedTtft.add(predicted.ttftUs, firstTokenUs - trace.arrivalUs);
      if (gaps > 0) this.predictedTbt.add(predicted.tbtUs, (lastTokenUs - firstTokenUs) / gaps);
      this.predictedOutputs.add(predicted.outputTokens, trace.outputTokens);
    }
    const times = { ttftUs: firstTokenUs - trace.arrivalUs, tbtUs, completionUs: lastTokenUs - trace.arrivalUs };
    if (inTime(slo, times)) this.withinSlo++;
    for (const group of this.#groupsOf(trace)) group.addCompleted(request, times);
    this.#mix(trace.index, trace.arrivalUs, firstTokenUs, lastTokenUs, cachedTokens);
  }

  #jobCompleted({ trace, firstTokenUs = 0, lastTokenUs, cachedTokens }: LengthRequest): void {
    this.batch.requests++;
    this.batch.completed++;
    this.batch.outputTokens += trace.outputTokens;
    this.batch.completionUs.add(lastTokenUs - trace.arrivalUs);
    this.#mix(trace.index, trace.arrivalUs, firstTokenUs, lastTokenUs, cachedTokens);
  }

  /** Returns the time at which the client submits the request again; undefined: the request has ended. */
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
    const returnUs = this.retries?.refused(nowUs, request, event);
    if (returnUs !== undefined) return returnUs;
    this.requests++;
    this.refused[cause?.at === 'decode' ? 'atDecode' : 'atPrefill']++;
    const reason = cause?.reason ?? 'failed';
    this.refusedByReason[reason] = (this.refusedByReason[reason] ?? 0) + 1;
    for (const group of this.#groupsOf(trace)) group.addRefused();
    this.#mix(trace.index, -1, trace.arrivalUs, 0);
    return undefined;
  }

  #groupsOf({ sloClass, tenant }: LengthRequest['trace']): readonly Group[] {
    if (sloClass === undefined && tenant === undefined) return noGroups;
    const ofClass = sloClass === undefined ? noGroups : [this.classes.of(sloClass)];
    return tenant === undefined ? ofClass : [...ofClass, this.tenants.of(tenant)];
  }

  get refusedRequests(): number {
    return this.refused.atPrefill + this.refused.atDecode;
  }

  /** Adds the counts of a failed instance. @param steps steps of its run in flight that had ended */
  instanceFailed(instance: InstanceFigures, steps: number): void {
    const { evictedBlocks, preemptions, ...counts } = instance.snapshot();
    this.steps += counts.steps + steps;
    this.preemptions += preemptions;
    this.#mix(counts.steps + steps, evictedBlocks, preemptions);
  }

  /** @param inFlightSteps (instances): ended steps of the runs that are in flight at the end */
  close(
    nowUs: number,
    instances: readonly InstanceFigures[],
    moved: Readonly<Record<ByteKind, number>>,
    blocks: BlockCounts,
    inFlightSteps: readonly number[],
  ): void {
    this.bytesMoved = { ...moved };
    const { activations, ...others } = moved;
    this.#mix(...Object.values(others));
    if (activations > 0) this.#mix(activations);
    this.endUs = nowUs;
    this.hitBlocks = blocks.hits;
    this.missReasons = blocks.misses;
    this.replication = { ...this.replication, ...blocks.replication };
    for (const [i, instance] of instances.entries()) {
      const snapshot = instance.snapshot();
      const { steps: committed, evictedBlocks, preemptions } = snapshot;
      const steps = committed + inFlightSteps[i];
      this.replication.fetched += snapshot.prefixCopies?.fetchedBlocks ?? 0;
      this.replication.proactive += snapshot.prefixCopies?.proactiveBlocks ?? 0;
      this.pins.hitTokens += instance.components.pinning.hitTokens;
      this.steps += steps;
      this.preemptions += preemptions;
      this.#mix(steps, evictedBlocks, preemptions);
      this.instances.push({ ...workOf(snapshot), steps });
    }
  }

  /** 64 bits over every request's times, in the order of completion, and every instance's counts. */
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

const noGroups: readonly Group[] = [];

export interface MigrationFigures {
  /** Larger instances that were started. */
  readonly started: number;
  readonly moved: number;
  readonly movedBytes: number;
  /** Requests that waited for a larger instance or moved there, and their total time. */
  readonly stalls: number;
  readonly stallMs: number;
}

/** Undefined without standby instances. */
export function migrationFigures(
  specs: readonly InstanceSpec[],
  instances: readonly LengthInstance[],
  started: number,
): MigrationFigures | undefined {
  if (specs.every(({ startUs }) => startUs === undefined)) return undefined;
  let [moved, movedBytes, stalls, stallUs] = [0, 0, 0, 0];
  for (const [i, { components }] of instances.entries()) {
    const { migrator } = components;
    if (migrator === undefined) continue;
    const { totals } = migrator;
    moved += totals.moved;
    movedBytes += totals.movedTokens * specs[i].machine.cost.kvBytesPerToken;
    stalls += totals.stalls;
    stallUs += totals.stallUs;
  }
  return { started, moved, movedBytes, stalls, stallMs: stallUs / 1000 };
}
