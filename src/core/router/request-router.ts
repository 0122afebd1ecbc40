// Routes requests: sends each attempt to its instances, follows its phases, and counts the attempts of every instance.

import { SlotMap } from '../../util/slot-map.ts';
import type { PrefixOffer } from '../protocol/events.ts';
import type { InstanceIndex, RequestId } from '../protocol/ids.ts';
import type { PlacedLoad } from '../protocol/instance-report.ts';
import type { CountedMessage } from '../protocol/message-counts.ts';
import type { PinOrder } from '../protocol/pin-order.ts';
import type { GenerationEvent, SharedPrefix } from '../protocol/ports.ts';
import { RecentIds } from '../scheduler/recent-ids.ts';
import { Throughput } from '../scheduler/throughput.ts';
import { AdmissionController, type PoolLoads } from './admission/admission-controller.ts';
import {
  type Attempt,
  assignedInstances,
  type EarlierAttempts,
  isAssigned,
  newAttempt,
  type Route,
  type TrackedRequest,
} from './attempts.ts';
import { BatchJobs } from './batch-jobs.ts';
import type { ConductorContext } from './conductor-context.ts';
import { KvEventConsumer } from './kv-event-consumer.ts';
import { type MigrationTarget, StandbyFleet } from './migration/standby-fleet.ts';
import { PinDirectory } from './pin-directory.ts';
import type { BlockCounts } from './placement/placed-prompt.ts';
import { fetchOf, Placer } from './placement/placer.ts';
import { RoleController } from './roles/role-controller.ts';
import { placementTrace, RoutePlanner, type RoutingDecision } from './route-planner.ts';

const unjudged = { slo: undefined, predicted: undefined };

export class RequestRouter<Request extends { readonly id: RequestId }> {
  readonly planner: RoutePlanner<Request>;
  readonly kvEvents: KvEventConsumer<Request>;
  readonly pins: PinDirectory<Request>;
  readonly roles: RoleController<Request>;
  readonly jobs: BatchJobs<Request>;
  readonly fleet: StandbyFleet;
  readonly throughput = new Throughput();
  /** Ids of attempts that have ended; filled where messages are counted. */
  readonly endedAttempts = new RecentIds();
  /** Requests with inline prefill: computed on the instance that decodes them. */
  inlinePrefills = 0;
  /** Requests with prompts that went to pipeline groups. */
  groupPrefills = 0;
  readonly #context: ConductorContext<Request>;
  readonly #placer: Placer<Request>;
  readonly #admission: AdmissionController<Request>;
  /** Requests by the ids of their current attempts. */
  readonly #attempts = new SlotMap<RequestId, TrackedRequest<Request>>();

  constructor(context: ConductorContext<Request>) {
    const { config, instances } = context;
    this.#context = context;
    const placer = new Placer(
      config.instances.map((_, i) => instances.computesPrompts(i)),
      config.placement,
    );
    const admission = new AdmissionController(instances.roles, config.admission);
    this.#placer = placer;
    this.#admission = admission;
    this.jobs = new BatchJobs(context);
    this.pins = new PinDirectory(context);
    this.kvEvents = new KvEventConsumer(context, placer);
    const parts = { placer, admission, jobs: this.jobs };
    this.roles = new RoleController(context, parts);
    this.planner = new RoutePlanner(context, parts);
    this.fleet = new StandbyFleet(config.instances, this);
    for (const [i, { absent }] of config.instances.entries()) if (absent === true) this.instanceFailed(i);
  }

  get blocks(): BlockCounts {
    return this.#placer.blocks;
  }

  sharedPrefixes(most: number): readonly SharedPrefix[] {
    return this.#placer.sharedPrefixes(most);
  }

  loads(nowUs: number): PoolLoads | undefined {
    return this.#admission.loads(nowUs, this.#placer.meanWaitUs(nowUs));
  }

  /** The load that other conductors have placed on an instance, by its report. */
  observeOthers(instance: InstanceIndex, others: PlacedLoad | undefined): void {
    if (!this.#context.instances.isUp(instance)) return;
    this.#placer.setOthers(instance, others);
    this.#admission.setOthers(instance, others);
  }

  /** The share of an instance's steps that attention for its debtors takes. */
  observeServedAttention(instance: InstanceIndex, permille: number): void {
    if (!this.#context.instances.isUp(instance)) return;
    this.#placer.setServedAttention(instance, permille);
    this.#admission.setServedAttention(instance, permille);
  }

  /** True when the prefix index has the block of the digest at `words[at..at+4]` for the instance. */
  indexHas(instance: InstanceIndex, words: Uint32Array, at: number): boolean {
    return this.#placer.indexHas(instance, words, at);
  }

  plan(request: Request, earlier?: EarlierAttempts): RoutingDecision {
    const decision = this.planner.plan(request, earlier);
    this.#record(request.id, decision);
    return decision;
  }

  /** Emits the decision that was planned last for the trace of its request. */
  #record(id: RequestId, decision: RoutingDecision): void {
    if (this.#context.config.recordsPlacements !== true) return;
    const candidates = decision.job ? [] : this.#placer.candidates(decision.size.promptTokens);
    const placement = placementTrace(this.#context.nowUs, decision, candidates, this.#placer.blockTokens);
    this.#context.emit({ kind: 'placed', id, placement });
  }

  /** Sends held batch jobs where memory was released; shorter jobs do not overtake a long one. */
  dispatchHeldJobs(): void {
    for (const { tracked, request } of this.jobs.takeRetryable()) {
      const decision = this.planner.planJob(this.#context.config.requests.size(request), false);
      if (decision.route === undefined) return;
      this.#record(request.id, decision);
      this.#dispatch(tracked, request, decision);
    }
  }

  /** Holds a batch job without memory; sends every other request. */
  dispatchOrHold(tracked: TrackedRequest<Request>, request: Request, decision: RoutingDecision): void {
    if (decision.route === undefined) this.jobs.hold(tracked, request);
    else this.#dispatch(tracked, request, decision);
  }

  /** Starts an attempt. @param request under the id of the attempt */
  #dispatch(tracked: TrackedRequest<Request>, request: Request, decision: RoutingDecision): void {
    const { nowUs, instances } = this.#context;
    const { size, placement, route, verdict, groupWorkUs, inlineTokens, job } = decision;
    if (route === undefined || (placement === undefined && !job))
      throw new Error('Conductor broken: an attempt without a route');
    const { id } = request;
    const { instance, decodeAt, group } = route;
    const predicted = verdict?.predicted;
    const { promptTokens } = size;
    for (const each of assignedInstances(route)) instances.at(each).requests++;
    const share =
      groupWorkUs === undefined
        ? undefined
        : { members: group?.members ?? [], workUs: groupWorkUs, prefix: group?.prefix };
    const placed = placement && this.#placer.place(nowUs, request, promptTokens, placement, { decodeAt, share });
    if (placement !== undefined && inlineTokens === 0) this.roles.prefillSent(placement.prefillUs);
    const jobTokens = job ? this.jobs.reserve(instance, size) : 0;
    this.jobs.unhold(tracked.id);
    // The decode pool counts a request that is predicted, prefilled inline or handed off.
    const isCounted = predicted !== undefined || inlineTokens > 0 || decodeAt !== undefined;
    const member = isCounted ? this.planner.decoderOf(route) : undefined;
    const arrival = member === undefined ? undefined : { member, tokens: promptTokens };
    const admitted = arrival && this.#admission.add(nowUs, request, verdict ?? unjudged, arrival);
    tracked.attempt = newAttempt(nowUs, id, route, { placed, admitted, inlineTokens, jobTokens });
    this.#attempts.set(id, tracked);
    if (group !== undefined) this.groupPrefills++;
    if (inlineTokens > 0) {
      this.inlinePrefills++;
      this.#admission.addInline(instance, inlineTokens);
    }
    const hot = groupWorkUs === undefined && inlineTokens === 0 ? placement : undefined;
    const capacityTokens = (i: InstanceIndex) => instances.at(i).capacityTokens;
    const offer = hot && this.#placer.hotPrefix(request, promptTokens, hot, capacityTokens);
    this.#forward(tracked.id, request, decision, { ...route, offer });
  }

  #forward(
    id: RequestId,
    request: Request,
    { placement, verdict }: RoutingDecision,
    { instance, decodeAt, group, offer }: Route & { readonly offer: PrefixOffer | undefined },
  ): void {
    const { health } = this.#context.instances;
    const decodeIncarnation = decodeAt === undefined ? undefined : health.incarnationOf(decodeAt);
    this.#context.emit({
      kind: 'forward',
      id,
      request,
      instance,
      decodeAt,
      predicted: verdict?.predicted,
      cachedTokens: placement === undefined ? 0 : this.#placer.cachedTokensOf(placement),
      prefix: placement && fetchOf(placement),
      offer,
      group: group && { ...group, decodeIncarnation },
      incarnation: health.incarnationOf(instance),
      decodeIncarnation,
    });
  }

  /** The request with this current attempt, when the instance is assigned to it. */
  assigned(id: RequestId, instance: InstanceIndex): TrackedRequest<Request> | undefined {
    const tracked = this.#attempts.get(id);
    return tracked?.attempt !== undefined && isAssigned(tracked.attempt, instance) ? tracked : undefined;
  }

  /** As `assigned`; includes the prefill instance after the hand-off, since later messages may overtake its `started`. */
  startedAt(id: RequestId, instance: InstanceIndex): TrackedRequest<Request> | undefined {
    const tracked = this.#attempts.get(id);
    return tracked?.attempt?.instance === instance ? tracked : this.assigned(id, instance);
  }

  /** Counts a message about an attempt that is not assigned to its sender. */
  countUnassigned(id: RequestId, message: CountedMessage): void {
    this.#context.countMessage(this.endedAttempts.has(id) ? 'late' : 'orphan', message);
  }

  /** A request may outgrow its instance; false when the attempt is not assigned to it. */
  outgrows({ instance, id, tokens }: { instance: InstanceIndex; id: RequestId; tokens: number }): boolean {
    const known = this.assigned(id, instance) !== undefined;
    if (known) this.fleet.outgrows({ id, from: instance, tokens });
    return known;
  }

  /** Makes `to` the decode instance of an attempt; undefined: the attempt has ended or was handed off before. */
  redirect(id: RequestId, to: InstanceIndex): MigrationTarget | undefined {
    const { instances } = this.#context;
    const attempt = this.#attempts.get(id)?.attempt;
    if (attempt === undefined || attempt.handedOff) return undefined;
    if (attempt.decodeAt !== to) {
      attempt.decodeAt = to;
      instances.at(to).requests++;
      if (attempt.admitted !== undefined) this.#admission.move(attempt.admitted, to);
    }
    return { incarnation: instances.health.incarnationOf(to) };
  }

  migrated({ instance, id }: { instance: InstanceIndex; id: RequestId }): void {
    const attempt = this.assigned(id, instance)?.attempt;
    if (attempt === undefined) this.countUnassigned(id, 'migrated');
    else this.decodeStarted(attempt);
  }

  /** An instance reports the start of an attempt; false when the start was reported before. */
  started(
    attempt: Attempt<Request>,
    { cachedTokens, alone }: Extract<GenerationEvent, { kind: 'started' }>,
    instance: InstanceIndex,
  ): boolean {
    if (attempt.started) return false;
    attempt.started = true;
    attempt.isAlone = alone === true;
    // A decode instance reports the start after the prefill has ended.
    const overtaken = attempt.phase !== 'queued' || instance !== attempt.instance;
    if (!overtaken) attempt.phase = 'prefill';
    const blocks = attempt.placed && this.#placer.started(this.#context.nowUs, attempt.placed, cachedTokens, overtaken);
    if (blocks !== undefined && this.#context.config.recordsPlacements === true)
      this.#context.emit({ kind: 'found', id: attempt.id, blocks });
    return true;
  }

  /** The prompt is computed; its instances keep it only until the hand-off has ended. */
  prefilled({ instance, id }: { instance: InstanceIndex; id: RequestId }): void {
    const attempt = this.assigned(id, instance)?.attempt;
    if (attempt === undefined) this.countUnassigned(id, 'prefilled');
    if (attempt === undefined || instance === attempt.decodeAt || attempt.phase === 'decode') return;
    attempt.reportedUs = this.#context.nowUs;
    // Each member of a group reports its own layers.
    if (attempt.group === undefined || attempt.isAlone || instance === attempt.group.members.at(-1))
      this.#prefillEnded(attempt);
    else if (attempt.placed !== undefined) this.#placer.sharePrefilled(attempt.placed, instance);
  }

  /** The decode instance has the whole prompt: the other instances are no longer assigned. */
  decodeStarted(attempt: Attempt<Request>): void {
    const { nowUs, instances } = this.#context;
    this.#prefillEnded(attempt);
    this.#inlineEnded(attempt);
    if (attempt.admitted !== undefined) this.#admission.decodeStarted(nowUs, attempt.admitted);
    if (attempt.decodeAt === undefined || attempt.handedOff) return;
    for (const each of assignedInstances(attempt)) if (each !== attempt.decodeAt) instances.at(each).requests--;
    attempt.handedOff = true;
  }

  #prefillEnded(attempt: Attempt<Request>): void {
    attempt.phase = 'decode';
    if (attempt.placed !== undefined) this.#placer.prefilled(this.#context.nowUs, attempt.placed);
    this.progressed(attempt.instance);
  }

  #inlineEnded(attempt: Attempt<Request>): void {
    if (attempt.inlineTokens > 0) this.#admission.removeInline(attempt.instance, attempt.inlineTokens);
    attempt.inlineTokens = 0;
  }

  /** Output arrived from the instance. */
  progressed(instance: InstanceIndex): void {
    this.#context.instances.at(instance).progressed = true;
  }

  /** Cancels the current attempt on all of its instances. @param interrupt aborts a running prefill of it, unless that starves others */
  cancelAttempt(tracked: TrackedRequest<Request>, interrupt: boolean): void {
    const { attempt } = tracked;
    if (attempt === undefined) return;
    for (const instance of assignedInstances(attempt).toReversed()) {
      const state = this.#context.instances.at(instance);
      const prefills = instance === attempt.instance && attempt.phase === 'prefill';
      const interrupts = interrupt && prefills && (state.progressed || state.requests === 1);
      if (interrupts) state.progressed = false;
      this.cancelAt(instance, attempt.id, interrupts);
    }
    this.endAttempt(tracked, attempt);
  }

  cancelAt(instance: InstanceIndex, id: RequestId, interrupt: boolean): void {
    if (this.#context.instances.isUp(instance)) this.#context.emit({ kind: 'cancel', instance, id, interrupt });
  }

  /** The attempt has ended on every instance: it is no longer counted. */
  endAttempt(tracked: TrackedRequest<Request>, attempt: Attempt<Request>): void {
    for (const each of assignedInstances(attempt)) this.#context.instances.at(each).requests--;
    if (attempt.placed !== undefined) this.#placer.ended(attempt.placed);
    if (attempt.jobTokens > 0) this.jobs.release(attempt.instance, attempt.jobTokens);
    this.#inlineEnded(attempt);
    if (attempt.admitted !== undefined) this.#admission.ended(attempt.admitted);
    this.#attempts.delete(attempt.id);
    this.fleet.ended(attempt.id);
    if (this.#context.config.messageCounts !== undefined) this.endedAttempts.add(attempt.id);
    tracked.attempt = undefined;
  }

  /** Admission learns from the last event of an attempt. */
  learn({ admitted }: Attempt<Request>, event: GenerationEvent): void {
    if (admitted !== undefined) this.#admission.learn(this.#context.nowUs, admitted, event);
  }

  /** The last event of a request without a running attempt. */
  endRequest({ id }: TrackedRequest<Request>, event: GenerationEvent): void {
    this.#context.emit({ kind: 'emit', id, event });
    this.throughput.ended(this.#context.nowUs);
    this.forget(id);
  }

  forget(id: RequestId): void {
    this.#context.requests.delete(id);
    this.jobs.ended(id);
    this.#context.reportDrained();
  }

  instanceFailed(instance: InstanceIndex): void {
    this.#context.instances.health.setFailed(instance);
    this.#placer.instanceFailed(instance);
    this.kvEvents.instanceFailed(instance);
    this.#admission.instanceFailed(instance);
    this.pins.instanceFailed(instance);
    this.fleet.instanceFailed(instance);
  }

  /** The instance takes requests, and its cache is unknown. @param capacityTokens of another machine in its place */
  instanceJoined(instance: InstanceIndex, capacityTokens?: number): void {
    const { instances } = this.#context;
    if (capacityTokens !== undefined) instances.setCapacity(instance, capacityTokens);
    this.#placer.instanceJoined(instance, instances.health.incarnationOf(instance));
    this.#admission.instanceJoined(instance);
    this.fleet.instanceJoined(instance);
    this.jobs.instanceJoined();
  }

  pin(order: PinOrder<Request>): void {
    const { nowUs, config, instances } = this.#context;
    const { promptTokens } = config.requests.size(order.request);
    const first = this.#placer.choose(nowUs, order.request, promptTokens)?.instance;
    this.pins.pin(order, promptTokens, first === undefined ? [] : [first, ...instances.computing]);
  }

  /** Throws unless every attempt is counted on its instances, and none on a failed one. */
  check(): void {
    const requests = [...this.#context.requests.values()];
    const { instances } = this.#context;
    const counts = Array.from({ length: instances.count }, () => 0);
    const inlineTokens = new Float64Array(instances.count);
    const jobTokens = new Float64Array(instances.count);
    for (const { attempt } of requests) {
      if (attempt === undefined) continue;
      for (const each of assignedInstances(attempt)) counts[each]++;
      inlineTokens[attempt.instance] += attempt.inlineTokens;
      jobTokens[attempt.instance] += attempt.jobTokens;
    }
    const running = requests.filter(({ attempt }) => attempt !== undefined);
    if (
      running.length !== this.#attempts.size ||
      running.some((tracked) => this.#attempts.get(tracked.attempt?.id ?? '') !== tracked)
    )
      throw new Error(`Conductor broken: ${running.length} requests have attempts, ${this.#attempts.size} are counted`);
    this.#placer.check();
    this.#admission.check(inlineTokens);
    this.jobs.check(jobTokens);
    this.fleet.check();
    instances.check(counts);
  }
}
