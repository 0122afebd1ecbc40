// The instance machine: schedules requests over its KV memory, plans steps, and turns their results into events. Its components do the rest.

import { assertNever } from '../../util/assert-never.ts';
import type { BlockCache } from '../kvcache/block-cache.ts';
import { KvEventPublisher } from '../kvcache/events/kv-event-publisher.ts';
import type { KvCaches } from '../kvcache/kv-caches.ts';
import type { BlockPool } from '../kvcache/pools/block-pool.ts';
import type { InstanceEffect } from '../protocol/effects.ts';
import type { InstanceEvent } from '../protocol/events.ts';
import type { StepNumber } from '../protocol/ids.ts';
import type { InstanceSnapshot } from '../protocol/ports.ts';
import type { StepShape } from '../protocol/step-shape.ts';
import type { Handled, Identified, InstanceComponent, InstanceContext } from './component.ts';
import type { Executor, RunningRequest } from './executor/executor.ts';
import { HeartbeatReporter } from './heartbeat-reporter.ts';
import type { InstanceConfig } from './instance-config.ts';
import { type AnyExecutor, InstanceState } from './instance-state.ts';
import type { RequestTable } from './request-table.ts';
import type { InFlight } from './step-in-flight.ts';
import type { ReadyStep } from './step-launcher.ts';

/**
 * At most one step, or one step run, is in flight. It counts when its result is committed; an aborted step is planned again without cancelled
 * requests. Late, duplicate and unknown events change nothing and are answered with `ignored`.
 */
export class Instance<
  Request extends Identified,
  S extends RunningRequest,
  Plan,
  Result,
  Parts extends { readonly [Name in keyof Parts]: InstanceComponent<Request, S> | undefined },
> {
  /** By name, in the order in which their hooks are called. */
  readonly components: Parts;
  readonly #state: InstanceState<Request, S>;
  readonly #publisher: KvEventPublisher;
  readonly #heartbeat: HeartbeatReporter<S>;

  /**
   * @param register creates the components from the context
   * @param createExecutor called with the pools of the layer groups of the first cache, once the components exist
   */
  constructor(
    config: InstanceConfig,
    register: (context: InstanceContext<Request, S>) => Parts,
    createExecutor: (
      pools: readonly BlockPool[],
      components: Parts,
      kvCaches: KvCaches,
    ) => Executor<Request, S, Plan, Result>,
  ) {
    let components: Parts | undefined;
    this.#state = new InstanceState(
      config,
      (context) => {
        components = register(context);
        const all: (InstanceComponent<Request, S> | undefined)[] = Object.values(components);
        return all.filter((component) => component !== undefined);
      },
      ({ kvCache, kvCaches }) =>
        createExecutor(poolsOf(kvCache), components as Parts, kvCaches) as AnyExecutor<Request, S>,
    );
    this.components = components as unknown as Parts;
    this.#publisher = new KvEventPublisher(this.#state.kvCaches, config);
    this.#heartbeat = new HeartbeatReporter(config.incarnation, config.reportUs);
  }

  /** Handles an event. `nowUs` never decreases. The driver carries the effects out in order. */
  step(nowUs: number, event: InstanceEvent<Request, Result>): readonly InstanceEffect<Plan, Request>[] {
    this.#state.enter(nowUs);
    const handled = this.#receive(event);
    this.#advance();
    const isReport = event.kind === 'wake' && this.#heartbeat.takeDue(nowUs);
    if (isReport) this.#resend();
    if (this.#state.flight === undefined) {
      this.#admit();
      this.#launch(this.#plan());
    } else if (!('step' in event)) this.#endStepRun(handled);
    this.#advance();
    this.#report(isReport);
    return this.#state.effects;
  }

  /** Ends of steps are the instance's own, as most events are. Components handle the others first. */
  #receive(event: InstanceEvent<Request, Result>): Handled {
    if (event.kind === 'stepDone' || event.kind === 'stepAborted' || event.kind === 'stepFailed') {
      this.#commit(event);
      return undefined;
    }
    for (const component of this.#state.hooks.handle) {
      const handled = component.handle(event);
      if (handled !== undefined && handled !== 'shared') return handled;
    }
    const { lifecycle, hostTraffic } = this.#state;
    switch (event.kind) {
      case 'submit':
        lifecycle.submit(event);
        break;
      case 'cancel':
        lifecycle.cancel(event);
        break;
      case 'ssdWritten':
        hostTraffic.ssdWritten(event);
        break;
      case 'requestSnapshot':
        for (const effect of this.#publisher.snapshot()) this.#state.emit(effect);
        break;
      case 'wake':
      case 'drain':
      case 'creditorCut':
      case 'instanceFailed':
        break;
      case 'peer':
      case 'promptReceived':
      case 'arriving':
      case 'loaded':
      case 'stores':
      case 'prefixSent':
      case 'streamBroken':
      case 'pin':
      case 'unpin':
      case 'lending':
      case 'moved':
      case 'moveBroken':
      case 'remoteAttentionLoad':
      case 'servedAttention':
      case 'lenders':
      case 'links':
      case 'activations':
      case 'activationsPending':
      case 'migrate':
      case 'attentionWorkerLost':
      case 'attentionWorkerReady':
      case 'grammarCompiled':
        this.#state.ignore(event, 'this instance has no component for it');
        break;
      default:
        return assertNever(event);
    }
    return undefined;
  }

  /** A step has ended: its results count, unless it was aborted. */
  #commit(event: Extract<InstanceEvent<Request, Result>, { step: StepNumber }>): void {
    const { steps, hostTraffic, config, results, requests, hooks, nowUs } = this.#state;
    const flight = steps.ended(event);
    if (typeof flight === 'string') {
      this.#state.ignore(event, flight);
      return;
    }
    hostTraffic.stepEnded();
    let stepUs: ArrayLike<number> | undefined;
    if (event.kind === 'stepDone') {
      stepUs = event.stepUs ?? [nowUs - flight.startedUs];
      // The time of a step that waited for blocks, or for a lost worker, does not predict the next.
      const waited = flight.waitsForBlocks || flight.workerLost || this.#waitedForWorker(flight, event.result);
      if (flight.range === undefined && !waited) config.cost.observe(flight.shape, stepUs);
      flight.owner.commit(flight, event.result, stepUs);
    } else if (event.kind === 'stepFailed') this.#state.emit(results.failAll(flight, event.message));
    else this.#recomputeSlots(flight.requests);
    hostTraffic.resultsCommitted();
    for (const component of hooks.afterStep) component.afterStep(flight, stepUs);
    requests.stepEnded(flight.requests);
  }

  /** The aborted step may have evicted kept tokens: they are selected again. */
  #recomputeSlots(requests: readonly S[]): void {
    for (const { sequence, cancelled } of requests)
      if (sequence.isSelected && !cancelled) this.#state.scheduler.recompute(sequence);
  }

  /** An attention worker stood still: the sequences that it holds are repeated. */
  #waitedForWorker({ requests }: InFlight<S>, result: Result): boolean {
    const { kvCaches, executor } = this.#state;
    return kvCaches.all.length > 1 && requests.some((_, place) => executor.sequenceFailed(result, place));
  }

  #advance(): void {
    for (const component of this.#state.hooks.advance) component.advance();
  }

  #resend(): void {
    for (const component of this.#state.hooks.resend) component.resend();
  }

  /** Between two steps: block tables change, and requests from other instances are scheduled. */
  #admit(): void {
    const { hooks, requests } = this.#state;
    this.#heartbeat.count(requests.live);
    for (const component of hooks.beforeStep) component.beforeStep();
    for (const component of hooks.admit) component.admit();
  }

  #plan(): ReadyStep<S> | undefined {
    return this.#state.launcher.plan();
  }

  #launch(step: ReadyStep<S> | undefined): void {
    if (step === undefined) this.#state.launcher.idle();
    else this.#state.launcher.launch(step);
  }

  /** Ends the step run in flight if the event may change the next step: a plan depends on borrowed memory and on every waiting request. */
  #endStepRun(handled: Handled): void {
    const { hooks, scheduler, steps } = this.#state;
    const depends =
      hooks.overflow.some((component) => component.overflow !== undefined) ||
      hooks.hasWaiting.some((component) => component.hasWaiting);
    if (depends || scheduler.waiting.length > 0 || handled !== 'cacheOnly') steps.yieldTo(scheduler.waiting[0]);
  }

  /** Emits SSD writes, KV events, and a report if one is due. */
  #report(isDue: boolean): void {
    const { hostTraffic, config, requests, hooks, isReporting } = this.#state;
    hostTraffic.writeSsd(this.#state);
    const kvEvents = this.#publisher.changes(isReporting || isDue || config.isStore === true);
    if (kvEvents !== undefined) this.#state.emit(kvEvents);
    if (!isDue) return;
    const expected = hooks.expectedPrompts.flatMap((component) => [...component.expectedPrompts]);
    this.#state.emit(this.#heartbeat.report(requests.reported, expected, this.#publisher.number));
  }

  get requests(): RequestTable<S> {
    return this.#state.requests;
  }

  /** Tokens of the longest request that it accepts: in its pages, in borrowed memory, or continued at another instance. Infinite if every layer has a window. */
  get capacityTokens(): number {
    return this.#state.capacityTokens;
  }

  /** Page ids that have never been allocated, up to the end of the pool. */
  get unusedPages(): { readonly first: number; readonly end: number } {
    const { reached, ids } = this.#state.kvCache.pages;
    return { first: reached, end: ids };
  }

  /** Requests with rows in the step in flight. */
  get inFlight(): readonly S[] {
    return this.#state.flight?.requests ?? [];
  }

  /** (layer groups): pages of the blocks of each group. Readers must not change them. */
  get pools(): readonly BlockPool[] {
    return poolsOf(this.#state.kvCache);
  }

  /** For checkers: the cached blocks in all tiers. */
  get cached(): Pick<BlockCache, 'holds' | 'indexedDigests' | 'pinned'> {
    return this.#state.kvCaches;
  }

  /** Predicted time of a step. */
  predictUs(shape: StepShape): number {
    return this.#state.config.cost.predictUs(shape);
  }

  /** When a `wake` is due. */
  get nextUs(): number {
    let { nextUs } = this.#heartbeat;
    for (const component of this.#state.hooks.nextUs) nextUs = Math.min(nextUs, component.nextUs);
    return nextUs;
  }

  snapshot(): InstanceSnapshot {
    const { nowUs, totals, scheduler, kvCaches, requests, config, hooks } = this.#state;
    const { coefficients } = config.cost;
    const snapshot = totals.snapshot(nowUs, scheduler, requests.live, kvCaches);
    const learned = config.isStore !== true && coefficients !== undefined ? { stepCost: coefficients } : {};
    return Object.assign(snapshot, learned, ...hooks.snapshot.map((component) => component.snapshot()));
  }

  /** Throws unless every page is accounted for, every request is in exactly one state, and a step runs while any request waits. */
  check(): void {
    const { scheduler, kvCache, requests, hooks, flight } = this.#state;
    scheduler.check();
    let pending = kvCache.inTransit.size;
    let parked = 0;
    for (const component of hooks.check) component.check();
    for (const component of hooks.pending) pending += component.pending;
    for (const component of hooks.parked) parked += component.parked(flight);
    requests.check(flight, pending > 0, parked);
  }
}

function poolsOf({ groups }: BlockCache): readonly BlockPool[] {
  return groups.map(({ pool }) => pool);
}
