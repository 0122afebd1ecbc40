// An inference port over a conductor, on one thread: feeds it requests and outputs of instances, and carries out its effects.

import type { EngineSteps } from '../../core/fleet/engine-steps.ts';
import type { ConductorEffect } from '../../core/protocol/effects.ts';
import type { ConductorEvent, PipelineGroup, PrefixFetch, PrefixOffer } from '../../core/protocol/events.ts';
import type { InstanceIndex, PinId, RequestId } from '../../core/protocol/ids.ts';
import type { InstanceRole } from '../../core/protocol/instance-report.ts';
import type {
  ClusterPort,
  GenerationEvent,
  GenerationRequest,
  InferencePort,
  InstanceSnapshot,
  PinListener,
  PinOrder,
  Readiness,
  RecentTraces,
  SharedPrefix,
} from '../../core/protocol/ports.ts';
import type { RequestTrace } from '../../core/protocol/request-trace.ts';
import type { TokenAdmission } from '../../core/router/admission/token-admission.ts';
import type { Conductor } from '../../core/router/conductor.ts';
import type { TokenPlacement } from '../../core/router/placement/token-placement.ts';
import { RequestLog } from '../../core/router/request-log.ts';
import { assertNever } from '../../util/assert-never.ts';
import { digestWords } from '../../util/blake2s.ts';
import { SlotMap } from '../../util/slot-map.ts';
import { pageTokens } from '../../util/step.ts';
import { sumOf } from '../snapshots/metric-snapshots.ts';
import { Alarm, carryOutStep, nowUs } from './alarm.ts';
import type { OutputsMessage } from './thread-protocol.ts';

/** Other instances that take part in a forwarded request. */
export interface ForwardTargets {
  readonly decodeAt: InstanceIndex | undefined;
  /** The prefix to fetch before it starts. */
  readonly prefix?: PrefixFetch | undefined;
  /** The proactive copy that it offers. */
  readonly offer?: PrefixOffer | undefined;
  /** The group that computes its prompt. */
  readonly group?: PipelineGroup | undefined;
  /** Leading tokens of the prompt that are predicted to be cached when it starts. */
  readonly cachedTokens: number;
}

/** Traces kept of ended requests. */
const tracesMax = 1024;

type Unready = Exclude<Readiness, { readonly kind: 'ready' | 'draining' }>;
type Refusal = Extract<GenerationEvent, { kind: 'failed' }>;
type Sink = (event: GenerationEvent) => void;
type StepListener = (instance: InstanceIndex, steps: OutputsMessage['steps']) => void;
type ReportListener = (instance: InstanceIndex, snapshot: InstanceSnapshot) => void;

/** Announces the steps of instances as they end, and their reports as they arrive. */
export type StepSource = Pick<ConductorDriver, 'onSteps' | 'onReports'>;

/** Retry-After of requests that arrive before the port is ready. */
const retryAfterMs = 1000;

export interface ConductorDriverOptions {
  readonly placement: TokenPlacement;
  readonly admission: TokenAdmission;
  log(message: string): void;
  /** Steps of external engines, which report none; undefined: they are not recorded. */
  readonly engineSteps?: EngineSteps | undefined;
}

/** Subclasses own the instances and the transport to them. */
export abstract class ConductorDriver implements InferencePort, ClusterPort {
  protected readonly placement: TokenPlacement;
  protected readonly admission: TokenAdmission;
  protected readonly log: (message: string) => void;
  readonly #engineSteps: EngineSteps | undefined;
  readonly #sinks = new SlotMap<RequestId, Sink>();
  /** Ids of current attempts, by the ids of their requests. */
  readonly #attempts = new Map<RequestId, RequestId>();
  readonly #pins = new Map<PinId, PinListener>();
  readonly #listeners: ((trace: RequestTrace) => void)[] = [];
  readonly #stepListeners: StepListener[] = [];
  readonly #reportListeners: ReportListener[] = [];
  readonly #requestLog = new RequestLog(tracesMax, (trace) => {
    for (const listener of this.#listeners) listener(trace);
  });
  readonly #alarm = new Alarm(() => this.feed({ kind: 'wake' }));
  #conductor: Conductor<GenerationRequest> | undefined;
  /** Nesting depth of the events in progress. */
  #depth = 0;
  readonly #cancels: RequestId[] = [];
  #draining = false;
  #closing = false;
  #drained: (() => void) | undefined;

  constructor({ placement, admission, log, engineSteps }: ConductorDriverOptions) {
    this.placement = placement;
    this.admission = admission;
    this.log = log;
    this.#engineSteps = engineSteps;
  }

  abstract instances(): readonly InstanceSnapshot[];

  abstract roles(): readonly InstanceRole[];

  abstract switchRole(instance: InstanceIndex, role: InstanceRole): string | undefined;

  /** Why the port cannot serve, apart from draining; undefined if it can. */
  protected abstract notReadyReason(): Unready | undefined;

  /** The conductor has switched the role of an instance. */
  protected abstract onRoleSwitched(instance: InstanceIndex, role: InstanceRole): void;

  protected abstract forwardTo(instance: InstanceIndex, request: GenerationRequest, targets: ForwardTargets): void;

  /** @param interrupt the running step is probably the request's own prefill: stop it */
  protected abstract cancelAt(instance: InstanceIndex, id: RequestId, interrupt: boolean): void;

  protected abstract requestSnapshotFrom(instance: InstanceIndex): void;

  protected abstract pinAt(instance: InstanceIndex, order: PinOrder): void;

  protected abstract unpinAt(instance: InstanceIndex, id: PinId): void;

  /** Accepts requests from now on. */
  protected startConductor(conductor: Conductor<GenerationRequest>): void {
    this.#conductor = conductor;
  }

  /** Leading prompt tokens of a request that an instance holds, as far as its KV events report. */
  protected cachedTokensAt(instance: InstanceIndex, request: GenerationRequest): number {
    const { blocks, words } = this.placement.chainOf(request);
    let held = 0;
    while (held < blocks && this.#conductor?.indexHas(instance, words, held * digestWords) === true) held++;
    return Math.min(held * pageTokens, request.prompt.length - 1);
  }

  protected get isStarted(): boolean {
    return this.#conductor !== undefined;
  }

  readiness(): Readiness {
    if (this.#draining) return { kind: 'draining', message: 'running requests finish, new ones are refused' };
    return this.notReadyReason() ?? { kind: 'ready' };
  }

  snapshot(): InstanceSnapshot {
    return { ...sumOf(this.instances()), ready: this.readiness().kind === 'ready' };
  }

  /** Fails the request if no instance can serve it. While the connection is down requests are accepted, and forwarded later. */
  submit(request: GenerationRequest, sink: Sink): void {
    const reason = this.notReadyReason();
    if (reason !== undefined && reason.kind !== 'unreachable') {
      const message = `Cannot admit request: ${reason.message}: /ready reports when it can`;
      sink({ kind: 'failed', code: 'NOT_READY', message, retryAfterMs });
      return;
    }
    this.#sinks.set(request.id, sink);
    this.#requestLog.submitted(nowUs(), request);
    this.feed({ kind: 'submit', request });
  }

  overload(ahead: number): Refusal | undefined {
    return this.#conductor?.overload(nowUs(), ahead);
  }

  cancel(id: RequestId): void {
    if (!this.#sinks.delete(id)) return;
    this.#requestLog.cancelled(nowUs(), id);
    this.#endAttempt(id);
    // Within a sink, the remaining effects of its event come first: otherwise the cancel could precede the request's `forward`.
    if (this.#depth > 0) this.#cancels.push(id);
    else this.feed({ kind: 'cancel', id });
  }

  /** Calls the listener with every state of the pin until it is refused or unpinned. */
  pin(order: PinOrder, listener: PinListener): void {
    if (this.#conductor === undefined) {
      const message = 'Cannot pin a prefix: no instance has joined';
      listener({ kind: 'refused', why: 'failed', message }, undefined);
      return;
    }
    this.#pins.set(order.id, listener);
    this.feed({ kind: 'pin', ...order });
  }

  unpin(id: PinId): void {
    this.feed({ kind: 'unpin', id });
  }

  onEnded(listener: (trace: RequestTrace) => void): void {
    this.#listeners.push(listener);
  }

  /** The listener receives the steps of an instance before their outputs; all of them only where steps are recorded. */
  onSteps(listener: StepListener): void {
    this.#stepListeners.push(listener);
  }

  /** The listener receives what an instance reports of itself in a heartbeat. */
  onReports(listener: ReportListener): void {
    this.#reportListeners.push(listener);
  }

  requestTrace(id: RequestId): RequestTrace | undefined {
    return this.#requestLog.find(id);
  }

  recentTraces(sinceUs: number, most: number): RecentTraces {
    return { nowUs: nowUs(), traces: this.#requestLog.recent(sinceUs, most) };
  }

  sharedPrefixes(most: number): readonly SharedPrefix[] {
    return this.#conductor?.sharedPrefixes(most) ?? [];
  }

  /** Entries kept for requests in flight: all zero once every request has ended. */
  get inFlight(): {
    readonly sinks: number;
    readonly attempts: number;
    readonly prefills: number;
    readonly outputs: number;
  } {
    const { placement, admission } = this;
    return {
      ...{ sinks: this.#sinks.size, attempts: this.#attempts.size },
      ...{ prefills: placement.observed, outputs: admission.counted },
    };
  }

  drain(): Promise<void> {
    this.#draining = true;
    if (this.#conductor === undefined) return Promise.resolve();
    return new Promise((resolve) => {
      this.#drained = resolve;
      this.feed({ kind: 'drain' });
    });
  }

  /** Ends all timers of the conductor. */
  protected stopTimers(): void {
    this.#closing = true;
    this.#alarm.set(Number.POSITIVE_INFINITY);
  }

  /** Feeds the outputs of one iteration of an instance's loop. */
  protected onOutputs(
    instance: InstanceIndex,
    { events, prefilled, released, pins, kvEvents, kvSnapshot }: Omit<OutputsMessage, 'kind' | 'snapshot' | 'steps'>,
  ): void {
    const { placement, admission } = this;
    for (const batch of kvEvents) this.feed({ kind: 'kvEvents', instance, batch });
    if (kvSnapshot !== undefined) this.feed({ kind: 'snapshot', instance, snapshot: kvSnapshot });
    for (const [id, event] of events) {
      placement.received(nowUs(), instance, id, event);
      admission.received(id, event);
      this.feed({ kind: 'generationEvent', instance, id, event });
    }
    for (const id of prefilled) {
      placement.prefilled(nowUs(), id);
      this.#requestLog.prefilled(nowUs(), id);
      this.feed({ kind: 'prefilled', instance, id });
    }
    for (const [id, why, refusal] of released) this.feed({ kind: 'released', instance, id, why, refusal });
    for (const [id, state] of pins) this.feed({ kind: 'pinUpdated', instance, id, state });
  }

  /** The conductor receives the share of attention for debtors of a new snapshot. */
  protected servedAttention(instance: InstanceIndex, before: InstanceSnapshot, now: InstanceSnapshot): void {
    const { servedAttentionPermille: permille = 0 } = now;
    if (permille > 0 || before.servedAttentionPermille !== undefined)
      this.feed({ kind: 'servedAttention', instance, permille });
  }

  /** The running step of an instance takes far longer than predicted (`isOverdue`), or does so no longer. */
  protected overdue(instance: InstanceIndex, name: string | number, isOverdue: boolean): void {
    const what = isOverdue
      ? 'its step takes far longer than predicted: new requests avoid it'
      : 'its steps advance again, and it receives new requests';
    this.log(`Instance ${name}: ${what}`);
    this.feed({ kind: 'overdue', instance, isOverdue });
  }

  /** To be called before the predictors observe the snapshot of a heartbeat. @param snapshot links by instance index */
  protected recordReport(instance: InstanceIndex, snapshot: InstanceSnapshot): void {
    for (const listener of this.#reportListeners) listener(instance, snapshot);
  }

  /** To be called before `onOutputs` of the same iteration. */
  protected recordSteps(instance: InstanceIndex, steps: OutputsMessage['steps']): void {
    if (steps.length > 0) for (const listener of this.#stepListeners) listener(instance, steps);
    for (const { rows, ...step } of steps)
      for (const [id, from, count] of rows) this.#requestLog.addStep(id, { ...step, instance, from, rows: count });
  }

  protected feed(event: ConductorEvent): void {
    const conductor = this.#conductor;
    if (conductor === undefined) return;
    this.#engineSteps?.received(nowUs(), event);
    this.#recordEngineSteps();
    this.#depth++;
    carryOutStep(
      () => conductor.step(nowUs(), event),
      (effect) => this.#carryOut(effect),
      () => {
        this.#depth--;
        if (this.#depth === 0) this.#afterEvent(conductor);
      },
    );
  }

  #recordEngineSteps(): void {
    if (this.#engineSteps === undefined) return;
    const epochUs = performance.timeOrigin * 1000;
    for (const [instance, steps] of this.#engineSteps.take()) {
      const own = steps.map(({ startedUs, endedUs, rows }) => {
        const times = { startedUs: Math.round(epochUs + startedUs), endedUs: Math.round(epochUs + endedUs) };
        return { kind: 'step', ...times, aborted: false, rows } as const;
      });
      this.recordSteps(instance, own);
    }
  }

  #afterEvent({ nextUs }: Conductor<GenerationRequest>): void {
    const cancel = this.#cancels.shift();
    if (cancel !== undefined) {
      // The conductor may have forwarded it meanwhile.
      this.#endAttempt(cancel);
      this.feed({ kind: 'cancel', id: cancel });
    } else this.#alarm.set(this.#closing ? Number.POSITIVE_INFINITY : nextUs);
  }

  #carryOut(effect: ConductorEffect): void {
    const { placement, admission, log } = this;
    this.#requestLog.record(nowUs(), effect);
    switch (effect.kind) {
      case 'emit':
        this.#emit(effect.id, effect.event);
        break;
      case 'forward':
        this.#endAttempt(effect.id);
        this.#attempts.set(effect.id, effect.request.id);
        // The duration of a group's prefill does not predict that of one instance.
        placement.forwarded(effect.instance, effect.request, effect.group === undefined);
        this.#engineSteps?.forwarded(nowUs(), effect.instance, effect.request, effect.decodeAt);
        this.forwardTo(effect.instance, admission.forwarded(effect.request), effect);
        break;
      case 'cancel':
        this.#engineSteps?.cancelled(effect.id);
        this.cancelAt(effect.instance, effect.id, effect.interrupt);
        break;
      case 'requestSnapshot':
        this.requestSnapshotFrom(effect.instance);
        break;
      case 'pin':
        this.pinAt(effect.instance, effect);
        break;
      case 'unpin':
        this.unpinAt(effect.instance, effect.id);
        break;
      case 'pinUpdated':
        this.#onPinUpdated(effect);
        break;
      case 'roleSwitched':
        this.onRoleSwitched(effect.instance, effect.role);
        break;
      case 'drained':
        this.#drained?.();
        break;
      case 'ignored':
        log(effect.message);
        break;
      case 'placed':
      case 'found':
        break;
      default:
        assertNever(effect);
    }
  }

  /** Removes the current attempt. */
  #endAttempt(id: RequestId): void {
    const name = this.#attempts.get(id);
    if (name === undefined) return;
    this.#attempts.delete(id);
    this.placement.forget(name);
    this.admission.forget(name);
  }

  #onPinUpdated({ id, instance, state }: Extract<ConductorEffect, { kind: 'pinUpdated' }>): void {
    const listener = this.#pins.get(id);
    if (state.kind !== 'pinned') this.#pins.delete(id);
    listener?.(state, instance);
  }

  #emit(id: RequestId, event: GenerationEvent): void {
    const sink = this.#sinks.get(id);
    if (event.kind === 'finished' || event.kind === 'failed') {
      this.#sinks.delete(id);
      this.#endAttempt(id);
    }
    try {
      sink?.(event);
    } catch (error) {
      // A sink that throws must not stop the events of other requests.
      this.log(`Request ${id} is cancelled: its sink failed: ${error instanceof Error ? error.stack : String(error)}`);
      this.cancel(id);
    }
  }
}
