// An inference port over a conductor, on one thread: requests in, its effects to instances wherever they are, and what those say back to clients.

import type { ConductorEffect } from '../../core/protocol/effects.ts';
import type { ConductorEvent, PipelineGroup, PrefixFetch } from '../../core/protocol/events.ts';
import type { InstanceIndex, PinId, RequestId } from '../../core/protocol/ids.ts';
import type { InstanceRole } from '../../core/protocol/instance-report.ts';
import type { PinOrder } from '../../core/protocol/pin-order.ts';
import type {
  ClusterPort,
  GenerationEvent,
  GenerationRequest,
  InferencePort,
  InstanceSnapshot,
  PinListener,
  Readiness,
} from '../../core/protocol/ports.ts';
import type { RequestTrace } from '../../core/protocol/request-trace.ts';
import type { TokenAdmission } from '../../core/router/admission/token-admission.ts';
import type { Conductor } from '../../core/router/conductor.ts';
import type { TokenPlacement } from '../../core/router/placement/token-placement.ts';
import { RequestLog } from '../../core/router/request-log.ts';
import { assertNever } from '../../util/assert-never.ts';
import { sumOf } from '../snapshots/metric-snapshots.ts';
import { Alarm, nowUs } from './alarm.ts';
import type { OutputsMessage } from './thread-protocol.ts';

/** What a request that is forwarded has to do with other instances. */
export interface ForwardTargets {
  readonly decodeAt: InstanceIndex | undefined;
  /** What it is to fetch before it starts. */
  readonly prefix?: PrefixFetch | undefined;
  /** Who computes its prompt together. */
  readonly group?: PipelineGroup | undefined;
}

/** Instances, as the conductor reaches them. */
export interface Reach {
  forward(instance: InstanceIndex, request: GenerationRequest, legs: ForwardTargets): void;
  /** With `interrupt`, the step that runs there is likely the request's own prefill. */
  cancel(instance: InstanceIndex, id: RequestId, interrupt: boolean): void;
  tellBlocks(instance: InstanceIndex): void;
  pin(instance: InstanceIndex, order: PinOrder<GenerationRequest>): void;
  unpin(instance: InstanceIndex, id: PinId): void;
}

/** Accounts of requests that have ended. */
const accountsMax = 1024;

type Unready = Exclude<Readiness, { readonly kind: 'ready' | 'draining' }>;
type Refusal = Extract<GenerationEvent, { kind: 'failed' }>;
type Sink = (event: GenerationEvent) => void;

/** Until the client asks again, where nobody can serve yet. */
const retryAfterMs = 1000;

export interface ConductorDriverOptions {
  readonly placement: TokenPlacement;
  readonly admission: TokenAdmission;
  readonly log: (message: string) => void;
}

/** Who the instances are, and how they are reached, says whoever extends it. */
export abstract class ConductorDriver implements InferencePort, ClusterPort {
  protected readonly placement: TokenPlacement;
  protected readonly admission: TokenAdmission;
  protected readonly log: (message: string) => void;
  protected abstract readonly reach: Reach;
  readonly #sinks = new Map<RequestId, Sink>();
  /** Names of current tries, by the names of their requests. */
  readonly #attempts = new Map<RequestId, RequestId>();
  readonly #pins = new Map<PinId, PinListener>();
  readonly #listeners: ((account: RequestTrace) => void)[] = [];
  readonly #accounts = new RequestLog(accountsMax, (account) => {
    for (const listener of this.#listeners) listener(account);
  });
  readonly #alarm = new Alarm(() => this.feed({ kind: 'wake' }));
  #conductor: Conductor<GenerationRequest> | undefined;
  /** Effects of so many events are being carried out, one within another. */
  #depth = 0;
  readonly #cancels: RequestId[] = [];
  #draining = false;
  #closing = false;
  #drained: (() => void) | undefined;

  constructor({ placement, admission, log }: ConductorDriverOptions) {
    this.placement = placement;
    this.admission = admission;
    this.log = log;
  }

  abstract instances(): readonly InstanceSnapshot[];

  abstract roles(): readonly InstanceRole[];

  abstract switchRole(instance: InstanceIndex, role: InstanceRole): string | undefined;

  /** What keeps it from serving, but for draining; undefined: nothing. */
  protected abstract notReadyReason(): Unready | undefined;

  /** An instance has another role from now on. */
  protected abstract onRoleSwitched(instance: InstanceIndex, role: InstanceRole): void;

  /** Takes requests from now on. */
  protected startConductor(conductor: Conductor<GenerationRequest>): void {
    this.#conductor = conductor;
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

  /** Whoever is out of reach for a moment will be told; where nobody is there that could serve, nothing is begun. */
  submit(request: GenerationRequest, sink: Sink): void {
    const hindrance = this.notReadyReason();
    if (hindrance !== undefined && hindrance.kind !== 'unreachable') {
      const message = `Cannot admit request: ${hindrance.message}: /ready tells when it can`;
      sink({ kind: 'failed', code: 'NOT_READY', message, retryAfterMs });
      return;
    }
    this.#sinks.set(request.id, sink);
    this.#accounts.submitted(nowUs(), request);
    this.feed({ kind: 'submit', request });
  }

  overload(ahead: number): Refusal | undefined {
    return this.#conductor?.overload(nowUs(), ahead);
  }

  cancel(id: RequestId): void {
    if (!this.#sinks.delete(id)) return;
    this.#accounts.cancelled(nowUs(), id);
    this.#endAttempt(id);
    // From within a sink: what its event came with is carried out first, or an instance would hear of the cancel before the request.
    if (this.#depth > 0) this.#cancels.push(id);
    else this.feed({ kind: 'cancel', id });
  }

  /** `told` hears what becomes of it, until it is refused or unpinned. */
  pin(order: PinOrder<GenerationRequest>, told: PinListener): void {
    if (this.#conductor === undefined) {
      const message = 'Cannot pin a prefix: no instance is there to keep it';
      told({ kind: 'refused', why: 'failed', message }, undefined);
      return;
    }
    this.#pins.set(order.id, told);
    this.feed({ kind: 'pin', ...order });
  }

  unpin(id: PinId): void {
    this.feed({ kind: 'unpin', id });
  }

  onEnded(listener: (account: RequestTrace) => void): void {
    this.#listeners.push(listener);
  }

  account(id: RequestId): RequestTrace | undefined {
    return this.#accounts.find(id);
  }

  /** What is kept of requests under way: nothing once all have ended, however they did. */
  get inFlight(): {
    readonly sinks: number;
    readonly tries: number;
    readonly prefills: number;
    readonly outputs: number;
  } {
    const { placement, admission } = this;
    return {
      ...{ sinks: this.#sinks.size, tries: this.#attempts.size },
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

  /** Nothing is waited for any more. */
  protected stopTimers(): void {
    this.#closing = true;
    this.#alarm.set(Number.POSITIVE_INFINITY);
  }

  /** What one turn of an instance's loop brought. */
  protected onOutputs(
    instance: InstanceIndex,
    {
      events,
      prefilled,
      released: letGo,
      pins,
      kvEvents: journals,
      kvSnapshot: blocks,
    }: Omit<OutputsMessage, 'kind' | 'snapshot' | 'steps'>,
  ): void {
    const { placement, admission } = this;
    for (const journal of journals) this.feed({ kind: 'journal', instance, journal });
    if (blocks !== undefined) this.feed({ kind: 'snapshot', instance, snapshot: blocks });
    for (const [id, event] of events) {
      placement.received(nowUs(), instance, id, event);
      admission.received(id, event);
      this.feed({ kind: 'generationEvent', instance, id, event });
    }
    for (const id of prefilled) {
      placement.prefilled(nowUs(), id);
      this.#accounts.prefilled(nowUs(), id);
      this.feed({ kind: 'prefilled', instance, id });
    }
    for (const [id, why] of letGo) this.feed({ kind: 'released', instance, id, why });
    for (const [id, state] of pins) this.feed({ kind: 'pinUpdated', instance, id, state });
  }

  /** Before what came of them. */
  protected recordSteps(instance: InstanceIndex, steps: OutputsMessage['steps']): void {
    for (const { rows, ...step } of steps)
      for (const [id, from, count] of rows) this.#accounts.addStep(id, { ...step, instance, from, rows: count });
  }

  protected feed(event: ConductorEvent): void {
    if (this.#conductor === undefined) return;
    this.#depth++;
    for (const effect of this.#conductor.step(nowUs(), event)) this.#carryOut(effect);
    this.#depth--;
    if (this.#depth > 0) return;
    const cancel = this.#cancels.shift();
    if (cancel !== undefined) {
      // It may have been forwarded since.
      this.#endAttempt(cancel);
      this.feed({ kind: 'cancel', id: cancel });
    } else this.#alarm.set(this.#closing ? Number.POSITIVE_INFINITY : this.#conductor.nextUs);
  }

  #carryOut(effect: ConductorEffect): void {
    const { reach, placement, admission, log } = this;
    this.#accounts.record(nowUs(), effect);
    switch (effect.kind) {
      case 'emit':
        this.#emit(effect.id, effect.event);
        break;
      case 'forward':
        this.#endAttempt(effect.id);
        this.#attempts.set(effect.id, effect.request.id);
        // What a group takes says nothing of how long one instance would.
        if (effect.group === undefined) placement.forwarded(effect.instance, effect.request);
        reach.forward(effect.instance, admission.forwarded(effect.request), effect);
        break;
      case 'cancel':
        reach.cancel(effect.instance, effect.id, effect.interrupt);
        break;
      case 'requestSnapshot':
        reach.tellBlocks(effect.instance);
        break;
      case 'pin':
        reach.pin(effect.instance, effect);
        break;
      case 'unpin':
        reach.unpin(effect.instance, effect.id);
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

  /** Its current try is over, whoever it was lost with. */
  #endAttempt(id: RequestId): void {
    const name = this.#attempts.get(id);
    if (name === undefined) return;
    this.#attempts.delete(id);
    this.placement.forget(name);
    this.admission.forget(name);
  }

  #onPinUpdated({ id, instance, state }: Extract<ConductorEffect, { kind: 'pinUpdated' }>): void {
    const told = this.#pins.get(id);
    if (state.kind !== 'pinned') this.#pins.delete(id);
    told?.(state, instance);
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
      // One request's trouble must not end those that are heard after it.
      this.log(`Request ${id}: its events cannot be taken: ${error instanceof Error ? error.stack : String(error)}`);
      this.cancel(id);
    }
  }
}
