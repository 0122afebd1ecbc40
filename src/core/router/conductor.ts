// The conductor: accepts or refuses each request at once, sends it to instances, and follows it to its last event (Mooncake, section 3).

import { assertNever } from '../../util/assert-never.ts';
import type { ConductorEffect, StandbyEffect } from '../protocol/effects.ts';
import type { ConductorEvent } from '../protocol/events.ts';
import type { InstanceIndex, RequestId } from '../protocol/ids.ts';
import type { CountedMessage } from '../protocol/message-counts.ts';
import type { GenerationEvent, SharedPrefix } from '../protocol/ports.ts';
import { queueFull, type Refusal } from '../protocol/refusals.ts';
import type { PoolLoads } from './admission/admission-controller.ts';
import { outputInstance, type TrackedRequest } from './attempts.ts';
import type { ConductorConfig } from './conductor-config.ts';
import { ConductorContext } from './conductor-context.ts';
import { FailureRecovery } from './failure-recovery/failure-recovery.ts';
import type { BlockCounts } from './placement/placed-prompt.ts';
import { RequestRouter } from './request-router.ts';
import type { RoutingDecision } from './route-planner.ts';

/**
 * Runs on the thread of the gateway, so that it refuses at once while instances compute elsewhere. A request is tracked from its submit to
 * its last event. Events of an ended or cancelled request are dropped. When an instance fails, its requests are retried and continue after
 * the tokens that their clients have received.
 */
export class Conductor<Request extends { readonly id: RequestId }> {
  readonly #context: ConductorContext<Request>;
  readonly #router: RequestRouter<Request>;
  readonly #recovery: FailureRecovery<Request>;

  constructor(config: ConductorConfig<Request>) {
    this.#context = new ConductorContext(config);
    this.#router = new RequestRouter(this.#context);
    this.#recovery = new FailureRecovery(this.#context, this.#router);
  }

  /**
   * Handles one event. The caller performs the effects in order; a submit is answered by `accepted` or `failed` among them.
   * @param nowUs microseconds, never less than in the step before
   */
  step(nowUs: number, event: ConductorEvent<Request>): readonly ConductorEffect<Request>[] {
    this.#context.beginStep(nowUs);
    this.#handle(event);
    this.#router.dispatchHeldJobs();
    return this.#context.effects;
  }

  #handle(event: ConductorEvent<Request>): void {
    const router = this.#router;
    switch (event.kind) {
      case 'submit':
        this.#submit(event.request);
        router.roles.balance();
        break;
      case 'cancel':
        this.#cancel(event.id);
        break;
      case 'drain':
        this.#context.drain();
        break;
      case 'generationEvent':
        this.#receive(event.instance, event.id, event.event);
        break;
      case 'prefilled':
        router.prefilled(event);
        break;
      case 'outgrows':
        if (!router.outgrows(event)) this.#context.ignore(`outgrows: request ${event.id} is not live`);
        break;
      case 'migrated':
        router.migrated(event);
        break;
      case 'kvEvents':
        router.kvEvents.applyBatch(event.instance, event.batch);
        break;
      case 'snapshot':
        router.kvEvents.applySnapshot(event.instance, event.snapshot);
        break;
      case 'instanceFailed':
      case 'instanceJoined':
      case 'unreachable':
      case 'overdue':
      case 'report':
      case 'othersLoad':
      case 'servedAttention':
      case 'instanceDraining':
      case 'released':
      case 'wake':
        this.#recovery.handle(event);
        break;
      case 'switchRole':
        if (!router.roles.switch(event.instance, event.role))
          this.#context.ignore(`switchRole: instance ${event.instance} cannot change to ${event.role}`);
        break;
      case 'pin':
        router.pin(event);
        break;
      case 'unpin':
        if (!router.pins.unpin(event.id)) this.#context.ignore(`unpin: ${event.id} is not pinned`);
        break;
      case 'pinUpdated':
        router.pins.reported(event.instance, event.id, event.state);
        break;
      default:
        assertNever(event);
    }
  }

  #submit(request: Request): void {
    const { nowUs, config, requests } = this.#context;
    if (requests.has(request.id)) {
      this.#context.ignore(`submit: request ${request.id} is live already`);
      return;
    }
    const decision = this.#router.plan(request);
    const refusal = this.#refusal(decision) ?? decision.verdict?.refusal;
    this.#context.emit({ kind: 'emit', id: request.id, event: refusal ?? { kind: 'accepted' } });
    if (refusal !== undefined) return;
    const progress = config.retries && config.requests.progressOf(request);
    const tracked = {
      ...{ id: request.id, progress, submittedUs: nowUs, attempts: 1, started: false },
      ...{ kernels: undefined, refusals: undefined, attempt: undefined },
    };
    requests.set(request.id, tracked);
    if (decision.job) this.#router.jobs.accepted(request.id);
    this.#router.dispatchOrHold(tracked, request, decision);
  }

  #refusal(decision: RoutingDecision): Refusal | undefined {
    if (this.#context.draining) return failure('SHUTTING_DOWN', 'the server is shutting down');
    const noCapacity = this.#router.planner.capacityRefusal(decision);
    if (noCapacity === 'no-instance') return failure('ENGINE_FAILED', 'no instance is left to serve it');
    if (decision.job) return noCapacity;
    return noCapacity ?? this.overload(this.#context.nowUs, 0);
  }

  #cancel(id: RequestId): void {
    const tracked = this.#context.requests.get(id);
    if (tracked === undefined) {
      this.#context.ignore(`cancel: request ${id} is not live`);
      return;
    }
    this.#router.cancelAttempt(tracked, true);
    this.#router.forget(id);
  }

  /** An instance reports an event of an attempt. */
  #receive(instance: InstanceIndex, id: RequestId, event: GenerationEvent): void {
    // The conductor has accepted the request itself.
    if (event.kind === 'accepted') return;
    const router = this.#router;
    const tracked = event.kind === 'started' ? router.startedAt(id, instance) : router.assigned(id, instance);
    if (tracked?.attempt === undefined) {
      router.countUnassigned(id, messageOf(event));
      return;
    }
    const { attempt } = tracked;
    attempt.reportedUs = this.#context.nowUs;
    if (event.kind === 'started' && !router.started(attempt, event, instance)) {
      // The decode instance repeats the start, since the first report may be overtaken.
      if (instance === attempt.instance) this.#context.countMessage('duplicate', 'started');
      return;
    }
    if (tracked.progress?.receive(event) === false) {
      this.#context.countMessage('duplicate', messageOf(event));
      return;
    }
    if (event.kind === 'finished' || event.kind === 'failed') this.#finish(tracked, instance, event);
    else this.#forwardOutput(tracked, instance, event);
  }

  #forwardOutput(tracked: TrackedRequest<Request>, instance: InstanceIndex, event: GenerationEvent): void {
    const { attempt, id } = tracked;
    if (attempt === undefined) return;
    if (event.kind === 'started') {
      // A later attempt starts again, and tokens of the decode instance may overtake the start.
      if (tracked.started) return;
      tracked.started = true;
    }
    this.#context.emit({ kind: 'emit', id, event });
    const output = outputInstance(attempt);
    const { instances } = this.#context;
    if (event.kind === 'tokens')
      tracked.kernels ??= { prefill: instances.at(attempt.instance).kernels, decode: instances.at(output).kernels };
    // A request with one output token ends on the instance that computed its prompt.
    if (event.kind === 'tokens' && instance === output) this.#router.decodeStarted(attempt);
    if (event.kind !== 'started') this.#router.progressed(output);
  }

  #finish(tracked: TrackedRequest<Request>, instance: InstanceIndex, event: GenerationEvent): void {
    const { attempt } = tracked;
    if (attempt === undefined) return;
    this.#router.learn(attempt, event);
    // When a member of a group fails, or ends the request with its first token, the other members still have the prompt.
    const decoded = event.kind === 'finished' && instance === outputInstance(attempt);
    if (attempt.group !== undefined && !decoded) this.#router.cancelAttempt(tracked, false);
    else this.#router.endAttempt(tracked, attempt);
    this.#router.endRequest(tracked, event);
  }

  /** The refusal of a request at the limit of accepted requests, besides batch jobs; else undefined. @param ahead requests that are accepted before it */
  overload(nowUs: number, ahead: number): Refusal | undefined {
    const accepted = this.#context.requests.size - this.#router.jobs.openCount + ahead;
    const { queueMax } = this.#context.config;
    if (accepted < queueMax) return undefined;
    return queueFull(accepted, queueMax, this.#router.throughput.retryAfterMs(nowUs, accepted));
  }

  /** Effects of the last steps for standby instances; empty where the configuration has none. */
  takeStandbyEffects(): readonly StandbyEffect[] {
    return this.#router.fleet.takeEffects();
  }

  /** Time of the next `wake`, unless an event comes before; Infinity: none is needed. */
  get nextUs(): number {
    return this.#recovery.nextUs;
  }

  /** Requests that are accepted and not ended. */
  get accepted(): number {
    return this.#context.requests.size;
  }

  /** True while the request is accepted and not ended. */
  has(id: RequestId): boolean {
    return this.#context.requests.has(id);
  }

  /** Prefix cache hits, reasons of misses, and copies of blocks. */
  get blocks(): BlockCounts {
    return this.#router.blocks;
  }

  /** The prefixes that prompts share; empty unless placement records them. */
  sharedPrefixes(most: number): readonly SharedPrefix[] {
    return this.#router.sharedPrefixes(most);
  }

  /** Requests with inline prefill: computed on the instance that decodes them. */
  get inlinePrefills(): number {
    return this.#router.inlinePrefills;
  }

  /** Requests with prompts that went to pipeline groups. */
  get groupPrefills(): number {
    return this.#router.groupPrefills;
  }

  /** Standby instances that were started for requests that outgrew their own. */
  get instancesStarted(): number {
    return this.#router.fleet.started;
  }

  /** Loads of the pools; undefined while no request has an SLO. */
  loads(nowUs: number): PoolLoads | undefined {
    return this.#router.loads(nowUs);
  }

  /** True when the prefix index has the block of the digest at `words[at..at+4]` for the instance. */
  indexHas(instance: InstanceIndex, words: Uint32Array, at: number): boolean {
    return this.#router.indexHas(instance, words, at);
  }

  /** Throws unless every request is counted on its instances, and none on a failed one. */
  check(): void {
    this.#router.check();
  }
}

function messageOf({ kind }: GenerationEvent): CountedMessage {
  return kind === 'started' || kind === 'tokens' ? kind : 'ended';
}

function failure(code: Refusal['code'], reason: string): Refusal {
  return { kind: 'failed', code, message: `Cannot admit request: ${reason}`, retryAfterMs: undefined };
}
