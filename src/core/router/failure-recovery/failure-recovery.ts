// Failure recovery: detects failed instances, lost attempts and timeouts, and retries the requests of lost attempts.

import { assertNever } from '../../../util/assert-never.ts';
import type { ConductorEvent } from '../../protocol/events.ts';
import type { InstanceIndex, RequestId } from '../../protocol/ids.ts';
import type { InstanceReport, ReportedRequest } from '../../protocol/instance-report.ts';
import type { Refusal } from '../../protocol/refusals.ts';
import {
  type Attempt,
  assignedInstances,
  attemptId,
  type EarlierAttempts,
  isAssigned,
  isReportedByAll,
  outputInstance,
  type TrackedRequest,
} from '../attempts.ts';
import type { FailureDetection } from '../conductor-config.ts';
import type { ConductorContext } from '../conductor-context.ts';
import type { RequestRouter } from '../request-router.ts';
import type { RoutingDecision } from '../route-planner.ts';

type MembershipEvent<Request> = Extract<
  ConductorEvent<Request>,
  | { kind: 'instanceFailed' | 'instanceJoined' | 'instanceDraining' | 'unreachable' | 'overdue' }
  | { kind: 'report' | 'othersLoad' | 'servedAttention' | 'released' | 'wake' }
>;

const stopped = 'the instance stopped';
/** Longest interval between two checks where only time limits of requests are checked. */
const checkUsMax = 5_000_000;
const none: ReadonlySet<never> = new Set();

/**
 * Heartbeats list the attempts of an instance. An attempt that no heartbeat lists is lost and retried, a listed attempt without a request
 * is cancelled, and an instance without heartbeats is failed.
 */
export class FailureRecovery<Request extends { readonly id: RequestId }> {
  readonly #context: ConductorContext<Request>;
  readonly #router: RequestRouter<Request>;
  readonly #detection: FailureDetection | undefined;
  readonly #requestTimeoutUs: number | undefined;
  #nextCheckUs = 0;

  constructor(context: ConductorContext<Request>, router: RequestRouter<Request>) {
    this.#context = context;
    this.#router = router;
    const { detection, requestTimeoutUs } = context.config.retries ?? {};
    this.#detection = detection;
    this.#requestTimeoutUs = detection?.requestTimeoutUs ?? requestTimeoutUs;
  }

  /** Time of the next `wake`. */
  get nextUs(): number {
    return this.#requestTimeoutUs === undefined ? Number.POSITIVE_INFINITY : this.#nextCheckUs;
  }

  handle(event: MembershipEvent<Request>): void {
    const { instances } = this.#context;
    switch (event.kind) {
      case 'instanceFailed':
        if (instances.isUp(event.instance)) this.#instanceFailed(event.instance, event.why);
        else this.#context.ignore(`instanceFailed: instance ${event.instance} is unknown or has failed already`);
        break;
      case 'instanceJoined':
        this.#instanceJoined(event);
        break;
      case 'unreachable':
        instances.setUnreachable(event.instance, event.peers);
        this.#routeAllWaiting();
        break;
      case 'overdue':
        instances.setOverdue(event.instance, event.isOverdue);
        break;
      case 'report':
        this.#report(event.instance, event.report);
        break;
      case 'othersLoad':
        this.#router.observeOthers(event.instance, event.others);
        break;
      case 'servedAttention':
        this.#router.observeServedAttention(event.instance, event.permille);
        break;
      case 'instanceDraining':
        this.#router.roles.drain(event.instance);
        break;
      case 'released': {
        const tracked = this.#router.assigned(event.id, event.instance);
        if (tracked === undefined) this.#router.countUnassigned(event.id, 'released');
        else {
          if (event.refusal !== undefined)
            tracked.refusals = new Map(tracked.refusals).set(event.instance, event.refusal);
          this.#retry(tracked, event.why, event.refusal);
        }
        break;
      }
      case 'wake':
        this.#detect();
        break;
      default:
        assertNever(event);
    }
  }

  #instanceFailed(instance: InstanceIndex, why = stopped): void {
    this.#router.instanceFailed(instance);
    this.#router.roles.replaceFailed();
    this.#retryAll(instance, none, why);
    if (this.#detection !== undefined) return;
    for (const id of this.#router.jobs.unservable) {
      const tracked = this.#context.requests.get(id);
      if (tracked !== undefined) this.#fail(tracked, why);
    }
  }

  /** Retries the attempts of an instance that it no longer has: all but those in `kept`. */
  #retryAll(instance: InstanceIndex, kept: ReadonlySet<RequestId>, why = stopped): void {
    for (const tracked of [...this.#context.requests.values()]) {
      const { attempt } = tracked;
      if (attempt === undefined || kept.has(attempt.id)) continue;
      if (isAssigned(attempt, instance)) this.#retry(tracked, why);
    }
  }

  /** An instance has joined without requests and with an empty cache. */
  #instanceJoined({
    instance,
    incarnation,
    capacityTokens,
    role,
    keepsRole,
    kernels,
  }: Extract<MembershipEvent<Request>, { kind: 'instanceJoined' }>): void {
    const { nowUs, instances } = this.#context;
    if (!instances.health.joined(nowUs, instance, incarnation)) {
      this.#context.ignore(
        `instanceJoined: instance ${instance} is unknown, or its incarnation ${incarnation} has joined or ended`,
      );
      return;
    }
    this.#retryAll(instance, none);
    const state = instances.at(instance);
    if (keepsRole !== undefined) state.keepsRole = keepsRole;
    state.kernels = kernels;
    instances.setUnreachable(instance, []);
    instances.setOverdue(instance, false);
    if (role !== undefined) this.#router.roles.assign(instance, role);
    this.#routeWaiting(instance, capacityTokens);
  }

  /** The instance takes requests: those that wait for an instance are routed. */
  #routeWaiting(instance: InstanceIndex, capacityTokens?: number): void {
    this.#router.instanceJoined(instance, capacityTokens);
    this.#routeAllWaiting();
  }

  #routeAllWaiting(): void {
    for (const tracked of [...this.#context.requests.values()])
      if (tracked.attempt === undefined && !this.#router.jobs.isHeld(tracked.id))
        this.#routeNextAttempt(tracked, stopped);
  }

  #report(instance: InstanceIndex, report: InstanceReport): void {
    const { nowUs, instances } = this.#context;
    const verdict = instances.health.reported(nowUs, instance, report);
    if (verdict === 'late' || verdict === 'orphan') {
      this.#context.countMessage(verdict, 'report');
      const { incarnation, number } = report;
      this.#context.ignore(
        `report: of instance ${instance}, incarnation ${incarnation}, number ${number}: it is ${verdict}`,
      );
      return;
    }
    this.#router.observeOthers(instance, report.others);
    if (verdict === 'restarted') this.#retryAll(instance, new Set(report.requests.map(({ id }) => id)));
    for (const reported of report.requests) this.#reportedRequest(instance, reported);
    if (verdict !== 'current') this.#routeWaiting(instance);
    this.#router.kvEvents.compare(instance, report);
  }

  #reportedRequest(instance: InstanceIndex, { id, outputs, receiving }: ReportedRequest): void {
    const tracked = this.#router.assigned(id, instance);
    if (tracked?.attempt === undefined) {
      if (this.#router.endedAttempts.has(id)) this.#context.countMessage('lost', 'cancel');
      else this.#context.countMessage('orphan', 'submit');
      this.#router.cancelAt(instance, id, false);
    } else if (!receiving) this.#reportedAttempt(instance, tracked, tracked.attempt, outputs);
  }

  #reportedAttempt(
    instance: InstanceIndex,
    { progress }: TrackedRequest<Request>,
    attempt: Attempt<Request>,
    outputs: number,
  ): void {
    if (isReportedByAll(attempt, instance)) attempt.reportedUs = this.#context.nowUs;
    if (instance !== outputInstance(attempt)) return;
    if (outputs > 0) progress?.advance(outputs);
    if (outputs === 0 && attempt.decodeAt === undefined) return;
    if (attempt.phase !== 'decode')
      this.#context.countMessage('lost', attempt.decodeAt === undefined ? 'tokens' : 'prefilled');
    this.#router.decodeStarted(attempt);
  }

  #detectSilent(sinceUs: number): void {
    for (const instance of this.#context.instances.health.silentSince(sinceUs)) {
      this.#context.countMessage('lost', 'report');
      this.#instanceFailed(instance);
    }
    this.#router.kvEvents.forgetStale(sinceUs);
  }

  /** Declares silent instances failed, retries unreported attempts, and fails requests past their timeout. */
  #detect(): void {
    const { nowUs, requests } = this.#context;
    const requestTimeoutUs = this.#requestTimeoutUs;
    if (requestTimeoutUs === undefined || nowUs < this.#nextCheckUs) return;
    const reportTimeoutUs = this.#detection?.reportTimeoutUs ?? Number.POSITIVE_INFINITY;
    const intervalUs = Math.ceil(Math.min(reportTimeoutUs, requestTimeoutUs) / 4);
    this.#nextCheckUs = nowUs + (this.#detection === undefined ? Math.min(checkUsMax, intervalUs) : intervalUs);
    if (this.#detection !== undefined) this.#detectSilent(nowUs - reportTimeoutUs);
    for (const tracked of [...requests.values()]) {
      const { attempt, submittedUs, attempts } = tracked;
      if (nowUs - submittedUs >= requestTimeoutUs) {
        this.#router.cancelAttempt(tracked, false);
        this.#fail(tracked, `it has not ended in time: ${requestTimeoutUs / 1e6} s, attempts: ${attempts}`);
      } else if (attempt !== undefined && nowUs - attempt.reportedUs >= reportTimeoutUs) {
        this.#context.countMessage('lost', attempt.phase === 'queued' ? 'submit' : 'ended');
        this.#retry(tracked, `no instance reported it for ${reportTimeoutUs / 1e6} s`);
      }
    }
  }

  /** The current attempt is lost. @param refusal ends the request when no attempt is left */
  #retry(tracked: TrackedRequest<Request>, reason: string, refusal?: Refusal): void {
    this.#router.cancelAttempt(tracked, false);
    const finishReason = tracked.progress?.ended;
    if (finishReason !== undefined) {
      this.#router.endRequest(tracked, { kind: 'finished', reason: finishReason });
    } else if (tracked.attempts >= (this.#context.config.retries?.attemptsMax ?? 1)) {
      if (refusal !== undefined) this.#router.endRequest(tracked, refusal);
      else this.#fail(tracked, tracked.attempts === 1 ? reason : `${reason}: tried ${tracked.attempts} times`);
    } else {
      tracked.attempts++;
      this.#routeNextAttempt(tracked, reason);
    }
  }

  #routeNextAttempt(tracked: TrackedRequest<Request>, reason: string): void {
    const request = tracked.progress?.resume(attemptId(tracked.id, tracked.attempts));
    if (request === undefined) return;
    const decision = this.#router.plan(request, tracked);
    const noCapacity = this.#router.planner.capacityRefusal(decision);
    const refusal = noCapacity === undefined && isUnrefused(decision, tracked) ? undefined : lastRefusal(tracked);
    if (refusal !== undefined) this.#router.endRequest(tracked, refusal);
    else if (noCapacity === 'no-instance') {
      // With failure detection the request waits for an instance to join.
      if (this.#detection === undefined) this.#fail(tracked, reason);
    } else if (noCapacity !== undefined) this.#router.endRequest(tracked, noCapacity);
    else this.#router.dispatchOrHold(tracked, request, decision);
  }

  #fail(tracked: TrackedRequest<Request>, reason: string): void {
    const message = `Cannot generate: ${reason}`;
    this.#router.endRequest(tracked, { kind: 'failed', code: 'ENGINE_FAILED', message, retryAfterMs: undefined });
  }
}

/** The decision has a route over instances that have not refused the request. */
function isUnrefused({ route }: RoutingDecision, { refusals }: EarlierAttempts): boolean {
  return route !== undefined && !assignedInstances(route).some((each) => refusals?.has(each) === true);
}

function lastRefusal({ refusals }: EarlierAttempts): Refusal | undefined {
  return [...(refusals?.values() ?? [])].at(-1);
}
