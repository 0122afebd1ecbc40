// The conductor machine: answers at once whether a request is taken, passes it to an instance, and follows it to its end.

import type { ConductorEffect, StandbyEffect } from '../protocol/effects.ts';
import type { ConductorEvent } from '../protocol/events.ts';
import type { InstanceIndex, RequestId } from '../protocol/ids.ts';
import type { InstanceRole } from '../protocol/instance-report.ts';
import type { FatedMessage, MessageCounts } from '../protocol/message-counts.ts';
import type { GenerationEvent } from '../protocol/ports.ts';
import type { Refusal } from '../protocol/refusals.ts';
import { queueFull } from '../protocol/refusals.ts';
import type { RequestSize } from '../protocol/request-size.ts';
import { Throughput } from '../scheduler/throughput.ts';
import type { AdmissionConfig, PoolLoads } from './admission/admission-controller.ts';
import { type RetryConfig, speaksFor, type Tracked } from './attempts.ts';
import type { BatchJobsConfig } from './batch-jobs.ts';
import { FailureRecovery } from './failure-recovery/failure-recovery.ts';
import type { BlockCounts } from './placed.ts';
import type { PlacerConfig } from './placement/placer.ts';
import { RequestRouter } from './request-router.ts';
import type { RoleSwitchLimits } from './roles/role-switch.ts';
import type { RoutingDecision } from './route-planner.ts';

export type { InstanceRole };

export interface ConductorConfig<Request> {
  readonly instances: readonly {
    /** Tokens whose keys and values fit at once. */
    readonly capacityTokens: number;
    readonly role?: InstanceRole;
    /** Not there until it joins, or reports. */
    readonly absent?: boolean;
    /** In the simulator: started when a request outgrows its instance, to continue there (`takeStandbyEffects`). */
    readonly standby?: boolean;
  }[];
  /** Requests accepted and not ended, over all instances. */
  readonly queueMax: number;
  readonly size: (request: Request) => RequestSize;
  /** Undefined: the instance with the fewest requests is taken. */
  readonly placement?: PlacerConfig<Request>;
  /** Undefined: whatever fits is taken. */
  readonly admission?: AdmissionConfig<Request> | undefined;
  /** Undefined: what is lost with an instance fails. */
  readonly retries?: RetryConfig<Request> | undefined;
  /** Instances change between prefill and decode as the work does; undefined: none does unless told to. */
  readonly roleSwitch?: RoleSwitchLimits | undefined;
  /** Counts what messages met. */
  readonly fates?: MessageCounts | undefined;
  /** Which requests are batch jobs; undefined: none is. */
  readonly jobs?: BatchJobsConfig<Request> | undefined;
  /** Tells why requests went where they went: `placed` and `found`. */
  readonly explains?: boolean;
}

/**
 * Lives beside the gateway, so that it can refuse at once while instances compute elsewhere.
 * A request is counted from submit to its last event; after that, and after a cancel, what an instance still says of it is dropped.
 * What is lost with an instance is tried elsewhere, from the tokens on that its client has heard.
 */
export class Conductor<Request extends { readonly id: RequestId }> {
  readonly #queueMax: number;
  readonly #retries: RetryConfig<Request> | undefined;
  readonly #requests = new Map<RequestId, Tracked<Request>>();
  readonly #throughput = new Throughput();
  readonly #dispatch: RequestRouter<Request>;
  readonly #rescue: FailureRecovery<Request>;
  #draining = false;
  #effects: ConductorEffect<Request>[] = [];

  constructor(config: ConductorConfig<Request>) {
    this.#queueMax = config.queueMax;
    this.#retries = config.retries;
    const push = (effect: ConductorEffect<Request>) => this.#effects.push(effect);
    this.#dispatch = new RequestRouter(config, push);
    this.#rescue = new FailureRecovery(config.retries, this.#dispatch, this.#requests, {
      push,
      end: (nowUs, tracked, event) => this.#end(nowUs, tracked, event),
    });
  }

  /** When a `wake` is due, if nothing comes before. */
  get nextUs(): number {
    return this.#rescue.nextUs;
  }

  /** Blocks of prompts that were found in caches, why the others were not, and how many copies there are of what. */
  get blocks(): BlockCounts {
    return this.#dispatch.blocks;
  }

  /** Requests whose prompts were computed where they decode. */
  get inlinePrefills(): number {
    return this.#dispatch.inlinePrefills;
  }

  /** Requests whose prompts went to groups. */
  get groupPrefills(): number {
    return this.#dispatch.groupPrefills;
  }

  /** Bigger instances that were started for requests that outgrew their own. */
  get instancesStarted(): number {
    return this.#dispatch.fleet.started;
  }

  /** How full the pools are; undefined where no request has said what it may wait. */
  loads(nowUs: number): PoolLoads | undefined {
    return this.#dispatch.loads(nowUs);
  }

  /** Is the instance taken to have the block of the digest at `words[at..at+4]`? */
  names(instance: InstanceIndex, words: Uint32Array, at: number): boolean {
    return this.#dispatch.hearsay.names(instance, words, at);
  }

  /** Requests accepted and not ended. */
  get accepted(): number {
    return this.#requests.size;
  }

  /** Was it accepted, and has it not ended? */
  has(id: RequestId): boolean {
    return this.#requests.has(id);
  }

  /** `nowUs` never goes back. The effects are to be carried out in order; a submit is answered by `accepted` or `failed` among them. */
  step(nowUs: number, event: ConductorEvent<Request>): readonly ConductorEffect<Request>[] {
    this.#effects = [];
    switch (event.kind) {
      case 'submit':
        this.#submit(nowUs, event.request);
        this.#dispatch.roles.balance(nowUs);
        break;
      case 'cancel':
        this.#cancel(event.id);
        break;
      case 'heard':
        this.#hear(nowUs, event.instance, event.id, event.event);
        break;
      case 'prefilled':
        this.#dispatch.prefilled(nowUs, event.instance, event.id);
        break;
      case 'journal':
        this.#dispatch.hearsay.journal(event.instance, event.journal);
        break;
      case 'snapshot':
        this.#dispatch.hearsay.snapshot(event.instance, event.snapshot);
        break;
      case 'instanceLost':
      case 'instanceJoined':
      case 'report':
      case 'released':
      case 'wake':
        this.#rescue.hear(nowUs, event);
        break;
      case 'outgrows':
        if (!this.#dispatch.outgrows(event)) this.#ignore(`outgrows: request ${event.id} is not live`);
        break;
      case 'migrated':
        this.#dispatch.migrated(nowUs, event);
        break;
      case 'switchRole':
        if (!this.#dispatch.roles.switch(event.instance, event.role))
          this.#ignore(`switchRole: instance ${event.instance} cannot change to ${event.role}`);
        break;
      case 'pin':
        this.#dispatch.pin(nowUs, event);
        break;
      case 'unpin':
        if (!this.#dispatch.pins.unpin(event.id)) this.#ignore(`unpin: ${event.id} is not pinned`);
        break;
      case 'pinUpdated':
        this.#dispatch.pins.hear(event.instance, event.id, event.state);
        break;
      case 'drain':
        this.#draining = true;
        this.#sayDrained();
        break;
    }
    this.#dispatch.goHeld(nowUs);
    return this.#effects;
  }

  /** What the last steps require of standby instances; empty where the configuration has none. */
  takeStandbyEffects(): readonly StandbyEffect[] {
    return this.#dispatch.fleet.takeEffects();
  }

  #submit(nowUs: number, request: Request): void {
    if (this.#requests.has(request.id)) {
      this.#ignore(`submit: request ${request.id} is live already`);
      return;
    }
    const proposal = this.#dispatch.proposals.of(nowUs, request);
    this.#dispatch.explain(nowUs, request.id, proposal);
    const refusal = this.#refuse(nowUs, proposal) ?? proposal.verdict?.refusal;
    this.#effects.push({ kind: 'emit', id: request.id, event: refusal ?? { kind: 'accepted' } });
    if (refusal !== undefined) return;
    const progress = this.#retries?.progressOf(request);
    const tracked = { id: request.id, progress, submittedUs: nowUs, tries: 1, started: false, now: undefined };
    this.#requests.set(request.id, tracked);
    if (proposal.route === undefined) this.#dispatch.jobs.hold(tracked, request);
    else this.#dispatch.go(nowUs, tracked, request, proposal);
  }

  /** The refusal that a request would meet now, were `ahead` others taken before it; undefined while there is room. */
  overload(nowUs: number, ahead: number): Refusal | undefined {
    const accepted = this.#requests.size + ahead;
    if (accepted < this.#queueMax) return undefined;
    return queueFull(accepted, this.#queueMax, this.#throughput.retryAfterMs(nowUs, accepted));
  }

  #refuse(nowUs: number, proposal: RoutingDecision): Refusal | undefined {
    if (this.#draining) return failure('SHUTTING_DOWN', 'Cannot admit request: the server is shutting down');
    const unfit = this.#dispatch.proposals.unfit(proposal);
    if (unfit === 'nobody') return failure('ENGINE_FAILED', 'Cannot admit request: no instance is left to serve it');
    return unfit ?? this.overload(nowUs, 0);
  }

  #cancel(id: RequestId): void {
    const tracked = this.#requests.get(id);
    if (tracked === undefined) {
      this.#ignore(`cancel: request ${id} is not live`);
      return;
    }
    this.#dispatch.leave(tracked, true);
    this.#forget(id);
  }

  #hear(nowUs: number, instance: InstanceIndex, id: RequestId, event: GenerationEvent): void {
    const { kind } = event;
    const tracked = kind === 'started' ? this.#dispatch.beganAt(id, instance) : this.#dispatch.find(id, instance);
    // Words about a try that was given up may still be under way: nothing is wrong.
    if (event.kind === 'accepted') return;
    if (tracked?.now === undefined) {
      this.#dispatch.fate(id, wordOf(event));
      return;
    }
    const { now, progress } = tracked;
    now.heardUs = nowUs;
    if (event.kind === 'started' && !this.#dispatch.started(nowUs, now, event.cachedTokens, instance)) {
      // Whoever decodes says it once more: the other word may have been overtaken.
      if (instance === now.instance) this.#dispatch.fates?.met('doubled', 'started');
      return;
    }
    if (progress?.hear(event) === false) {
      this.#dispatch.fates?.met('doubled', wordOf(event));
      return;
    }
    // The tokens of whoever decodes may overtake it.
    if (event.kind === 'started') {
      if (tracked.started) return;
      tracked.started = true;
    }
    if (event.kind === 'finished' || event.kind === 'failed') {
      this.#dispatch.ending(nowUs, now, event);
      // Of a group the others still have something when one fails, or ends it with the first token.
      const decoded = event.kind === 'finished' && instance === speaksFor(now);
      if (now.group !== undefined && !decoded) this.#dispatch.leave(tracked, false);
      else this.#dispatch.settle(tracked, now);
      this.#end(nowUs, tracked, event);
      return;
    }
    this.#effects.push({ kind: 'emit', id: tracked.id, event });
    // A prompt whose first token is its last ends where it was computed.
    if (event.kind === 'tokens' && instance === speaksFor(now)) this.#dispatch.decodes(nowUs, now);
    if (event.kind !== 'started') this.#dispatch.progressed(speaksFor(now));
  }

  /** Its last event; nobody has anything of it. */
  #end(nowUs: number, { id }: Tracked<Request>, event: GenerationEvent): void {
    this.#effects.push({ kind: 'emit', id, event });
    this.#throughput.ended(nowUs);
    this.#forget(id);
  }

  #forget(id: RequestId): void {
    this.#requests.delete(id);
    this.#dispatch.jobs.drop(id);
    this.#sayDrained();
  }

  #sayDrained(): void {
    if (this.#draining && this.#requests.size === 0) this.#effects.push({ kind: 'drained' });
  }

  #ignore(message: string): void {
    this.#effects.push({ kind: 'ignored', message: `Ignored ${message}` });
  }

  /** Throws unless every request is counted at its instances, and none at a lost one. */
  check(): void {
    this.#dispatch.check([...this.#requests.values()]);
  }
}

function wordOf({ kind }: GenerationEvent): FatedMessage {
  return kind === 'started' || kind === 'tokens' ? kind : 'ended';
}

function failure(code: Refusal['code'], message: string): Refusal {
  return { kind: 'failed', code, message, retryAfterMs: undefined };
}
