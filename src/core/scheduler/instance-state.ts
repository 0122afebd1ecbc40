// The state that the parts and the components of an instance share.

import { wideZero } from '../../util/wide-zero.ts';
import type { BlockCache } from '../kvcache/block-cache.ts';
import { chunkShare } from '../kvcache/eviction.ts';
import { KvCaches } from '../kvcache/kv-caches.ts';
import type { InstanceEffect } from '../protocol/effects.ts';
import type { InstanceEvent } from '../protocol/events.ts';
import type { RequestId } from '../protocol/ids.ts';
import type { GenerationEvent } from '../protocol/ports.ts';
import type { FailureCode } from '../protocol/refusal-cause.ts';
import { Batcher } from './batching/batcher.ts';
import {
  type ComponentHooks,
  type Continuation,
  hooksOf,
  type Identified,
  type InstanceComponent,
} from './component.ts';
import type { Executor, RowFailure, RunningRequest } from './executor/executor.ts';
import { HostTraffic } from './host-traffic.ts';
import type { InstanceConfig } from './instance-config.ts';
import type { InstanceInternals } from './instance-internals.ts';
import { InstanceTotals } from './instance-totals.ts';
import { RequestLifecycle } from './request-lifecycle.ts';
import { RequestTable } from './request-table.ts';
import { type EffectSink, type InFlight, StepInFlight } from './step-in-flight.ts';
import { StepLauncher } from './step-launcher.ts';
import { StepResults } from './step-results.ts';

/** Plans go from the executor to the driver unchanged. */
export type AnyExecutor<Request, S extends RunningRequest> = Executor<Request, S, never, unknown>;

export class InstanceState<Request extends Identified, S extends RunningRequest>
  implements InstanceInternals<Request, S>
{
  readonly config: InstanceConfig;
  readonly kvCaches: KvCaches;
  readonly kvCache: BlockCache;
  readonly totals = new InstanceTotals();
  readonly steps: StepInFlight<S>;
  readonly hooks: ComponentHooks<Request, S>;
  readonly scheduler: Batcher;
  readonly hostTraffic: HostTraffic;
  readonly requests: RequestTable<S>;
  readonly executor: AnyExecutor<Request, S>;
  readonly lifecycle: RequestLifecycle<Request, S>;
  readonly results: StepResults<Request, S>;
  readonly launcher: StepLauncher<Request, S>;
  /** A client or conductor receives an event: the KV events are sent with it. */
  isReporting = false;
  #effects: InstanceEffect<never, Request>[] = [];
  #nowUs: number = wideZero;
  #arrivals = 0;

  constructor(
    config: InstanceConfig,
    register: (state: InstanceState<Request, S>) => readonly InstanceComponent<Request, S>[],
    createExecutor: (state: InstanceState<Request, S>) => AnyExecutor<Request, S>,
  ) {
    this.config = config;
    this.kvCaches = createCaches(config, this);
    this.kvCache = this.kvCaches.first;
    this.steps = new StepInFlight(this);
    this.hooks = hooksOf(register(this));
    const overflow = this.hooks.overflow.find((component) => component.overflow !== undefined)?.overflow;
    const placement = this.hooks.placement.find((component) => component.placement !== undefined)?.placement;
    this.scheduler = new Batcher(this.kvCaches, config.limits, config.cost, overflow, placement);
    this.hostTraffic = new HostTraffic(this.scheduler, this.kvCache);
    this.requests = new RequestTable(this.scheduler);
    this.executor = createExecutor(this);
    this.lifecycle = new RequestLifecycle(this);
    this.results = new StepResults(this, this.lifecycle);
    this.launcher = new StepLauncher(this, this.lifecycle, this.results);
  }

  enter(nowUs: number): void {
    this.#effects = [];
    this.isReporting = false;
    this.#nowUs = nowUs;
    this.kvCaches.enter(nowUs);
    this.totals.addPageTime(nowUs, this.kvCaches.usedPages);
  }

  get effects(): readonly InstanceEffect<never, Request>[] {
    return this.#effects;
  }

  get nowUs(): number {
    return this.#nowUs;
  }

  get flight(): InFlight<S> | undefined {
    return this.steps.flight;
  }

  get ownCapacityTokens(): number {
    let tokens = this.kvCache.capacityTokens;
    for (const { extraTokens } of this.hooks.extraTokens) tokens += extraTokens;
    return tokens;
  }

  get capacityTokens(): number {
    let tokens = this.ownCapacityTokens;
    for (const { continuedTokens } of this.hooks.continuedTokens) tokens = Math.max(tokens, continuedTokens);
    return tokens;
  }

  emit(effect: InstanceEffect<never, Request>): void {
    this.#effects.push(effect);
  }

  announce(effect: InstanceEffect<never, never>): void {
    this.isReporting = true;
    this.#effects.push(effect);
  }

  notify(id: RequestId, event: GenerationEvent): void {
    if (this.requests.isInternal(id)) return;
    this.isReporting = true;
    this.#effects.push({ kind: 'emit', id, event });
  }

  ignore(event: InstanceEvent<Request, unknown>, why: string): void {
    this.config.messageCounts?.ignored(event, this.requests);
    const kind = event.kind === 'peer' ? event.message.kind : event.kind;
    this.emit({ kind: 'ignored', message: `Ignored ${kind}: ${why}` });
  }

  create(request: Request): S {
    return this.executor.create(request, this.#arrivals++);
  }

  resume(request: Request, events: readonly GenerationEvent[], inParts: boolean): S {
    const running = this.executor.resume(request, this.#arrivals++, events, inParts);
    running.received = events;
    for (const component of this.hooks.resumed) component.resumed(running);
    return running;
  }

  schedule(request: Request, continuation: Continuation): void {
    this.lifecycle.schedule(request, continuation);
  }

  begin(running: S): void {
    this.lifecycle.begin(running);
  }

  cancel(id: RequestId): void {
    this.lifecycle.cancel({ kind: 'cancel', id });
  }

  handedOff(running: S): void {
    this.lifecycle.handedOff(running);
  }

  handOffDeclined(running: S): void {
    this.lifecycle.handOffDeclined(running);
  }

  finish(running: S, events: readonly GenerationEvent[], reason: 'stop' | 'length'): void {
    this.lifecycle.finish(running, events, reason);
  }

  failRows(running: S, failure: RowFailure): void {
    this.results.failRows(running, failure);
  }

  fail(running: S, message: string, code: FailureCode): void {
    this.lifecycle.fail(running, message, code);
  }

  failTooLong(): void {
    this.lifecycle.failTooLong();
  }

  abortStep(): void {
    this.steps.abort();
  }

  limitToOneStep(): void {
    this.steps.limitToOneStep();
  }
}

/** Where blocks have contents, the decisions of the cache become effects. */
function createCaches(config: InstanceConfig, sink: EffectSink): KvCaches {
  const { tiers, contents, eviction, blockTokens, cost, limits, futureUses } = config;
  const mover = contents && {
    copy: (from: Int32Array, to: Int32Array) => sink.emit({ kind: 'copyPages', from, to }),
    load: (from: Int32Array, to: Int32Array) => sink.emit({ kind: 'loadPages', from, to }),
    store: (from: Int32Array, to: Int32Array) => sink.emit({ kind: 'storePages', from, to }),
    erase: (slot: number) => sink.emit({ kind: 'eraseSsd', slot }),
  };
  const computeUs = chunkShare(cost, blockTokens, limits.tokensMax);
  const facts = typeof eviction === 'string' ? undefined : { blockTokens, computeUs, futureUses };
  return new KvCaches({ ...config, facts, tiers: tiers && { ...tiers, mover } }, config.cacheParts);
}
