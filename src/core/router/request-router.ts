// Where the conductor sends requests: which instances each try of one has something at, how many each has, and what they are told.

import type { ConductorEffect } from '../protocol/effects.ts';
import type { InstanceIndex, RequestId } from '../protocol/ids.ts';
import type { InstanceRole } from '../protocol/instance-report.ts';
import type { FatedMessage, MessageCounts } from '../protocol/message-counts.ts';
import type { PinOrder } from '../protocol/pin-order.ts';
import type { GenerationEvent } from '../protocol/ports.ts';
import type { RequestSize } from '../protocol/request-size.ts';
import { RecentIds } from '../scheduler/recent-ids.ts';
import { AdmissionController, type PoolLoads } from './admission/admission-controller.ts';
import { type Attempt, isLegOf, legsOf, type Tracked } from './attempts.ts';
import { BatchJobs } from './batch-jobs.ts';
import type { ConductorConfig } from './conductor.ts';
import { InstanceHealth } from './failure-recovery/instance-health.ts';
import { StandbyFleet } from './failure-recovery/standby-fleet.ts';
import { KvEventConsumer } from './kv-event-consumer.ts';
import { PinDirectory } from './pin-directory.ts';
import type { BlockCounts } from './placed.ts';
import { fetchOf, Placer } from './placement/placer.ts';
import { accountOf } from './request-trace.ts';
import { Roles } from './roles/roles.ts';
import { decoderOf, RoutePlanner, type RoutingDecision } from './route-planner.ts';

interface InstanceView {
  capacityTokens: number;
  requests: number;
  /** Something was computed since the last interrupt: interrupts cannot hold the others up for ever. */
  progressed: boolean;
}

function takesPrompts(role: InstanceRole | undefined): boolean {
  return role === 'prefill' || role === 'mixed';
}

const unjudged = { slo: undefined, predicted: undefined };

export class RequestRouter<Request extends { readonly id: RequestId }> {
  readonly watch: InstanceHealth;
  readonly fates: MessageCounts | undefined;
  /** What instances tell of their caches. */
  readonly hearsay: KvEventConsumer<Request>;
  /** Names of tries that are over, where fates are counted. */
  readonly over = new RecentIds();
  readonly pins: PinDirectory<Request>;
  readonly roles: Roles;
  readonly jobs: BatchJobs<Request>;
  readonly fleet: StandbyFleet;
  readonly proposals: RoutePlanner<Request>;
  /** Requests whose prompts were computed where they decode. */
  inlinePrefills = 0;
  /** Requests whose prompts went to groups. */
  groupPrefills = 0;
  readonly #size: (request: Request) => RequestSize;
  readonly #explains: boolean;
  readonly #instances: readonly InstanceView[];
  readonly #placer: Placer<Request>;
  readonly #gate: AdmissionController<Request>;
  /** Requests by the names of their current tries. */
  readonly #tries = new Map<RequestId, Tracked<Request>>();
  readonly #push: (effect: ConductorEffect<Request>) => void;

  constructor(config: ConductorConfig<Request>, push: (effect: ConductorEffect<Request>) => void) {
    this.#size = config.size;
    this.#explains = config.explains ?? false;
    this.fates = config.fates;
    this.#push = push;
    this.#instances = config.instances.map(({ capacityTokens }) => ({ capacityTokens, requests: 0, progressed: true }));
    const roles = config.instances.map(({ role = 'mixed' }) => role);
    this.roles = new Roles(roles, config.roleSwitch, {
      isUp: (i) => this.watch.isUp(i),
      requestsAt: (i) => this.#instances[i].requests,
      waitUs: (nowUs) => this.#placer.waitUs(nowUs),
      decodeDemand: (nowUs) => this.#gate.decodeDemand(nowUs),
      changed: (instance, role) => this.#changeRole(instance, role),
    });
    this.pins = new PinDirectory(push);
    this.watch = new InstanceHealth(config.instances.length);
    this.#placer = new Placer(roles.map(takesPrompts), config.placement);
    this.hearsay = new KvEventConsumer(this.#placer, this.watch, config.fates, push);
    this.#gate = new AdmissionController(roles, config.admission);
    this.jobs = new BatchJobs(config.jobs, {
      instances: this.#instances.length,
      capacityTokens: (i) => this.#instances[i].capacityTokens,
      takes: (i) => takesPrompts(this.roles.of(i)) && this.watch.isUp(i),
    });
    this.proposals = new RoutePlanner({
      instances: this.#instances.length,
      ...{ size: config.size, placer: this.#placer, gate: this.#gate, roles: this.roles, jobs: this.jobs },
      capacityTokens: (i) => this.#instances[i].capacityTokens,
    });
    this.fleet = new StandbyFleet(config.instances, { divert: (id, to) => this.#divert(id, to) });
    for (const [i, { absent }] of config.instances.entries()) if (absent === true) this.lose(i);
  }

  get blocks(): BlockCounts {
    return this.#placer.blocks;
  }

  loads(nowUs: number): PoolLoads | undefined {
    return this.#gate.loads(nowUs, this.#placer.waitUs(nowUs));
  }

  /** Batch jobs that are held go where there is room now; a long one is not overtaken. */
  goHeld(nowUs: number): void {
    for (const { tracked, request } of this.jobs.takeFreed()) {
      const proposal = this.proposals.ofJob(nowUs, this.#size(request), false);
      if (proposal.route === undefined) return;
      this.explain(nowUs, request.id, proposal);
      this.go(nowUs, tracked, request, proposal);
    }
  }

  /** Of the request that was proposed for last: tells whoever keeps accounts. */
  explain(nowUs: number, id: RequestId, proposal: RoutingDecision): void {
    if (!this.#explains) return;
    const considered = proposal.job ? [] : this.#placer.considered(proposal.size.promptTokens);
    this.#push({ kind: 'placed', id, account: accountOf(nowUs, proposal, considered, this.#placer.blockTokens) });
  }

  /** A try begins: `request`, under the name that it has there, goes where was proposed. */
  go(nowUs: number, tracked: Tracked<Request>, request: Request, proposal: RoutingDecision): void {
    const { size, decision, route, verdict, workUs, inlineTokens, job } = proposal;
    if (route === undefined || (decision === undefined && !job))
      throw new Error('Conductor broken: a try that goes nowhere');
    const { instance, decodeAt, group } = route;
    const predicted = verdict?.predicted;
    const { promptTokens } = size;
    for (const leg of legsOf(route)) this.#instances[leg].requests++;
    const share = workUs === undefined ? undefined : { members: group?.members ?? [], workUs, prefix: group?.prefix };
    const placed = decision && this.#placer.place(nowUs, request, promptTokens, decision, { decodeAt, share });
    if (decision !== undefined && inlineTokens === 0) this.roles.sent(decision.prefillUs);
    const jobTokens = job ? this.jobs.add(instance, size) : 0;
    this.jobs.drop(tracked.id);
    const member = predicted === undefined && inlineTokens === 0 ? decodeAt : decoderOf(route, this.roles);
    const coming = member === undefined ? undefined : { member, tokens: promptTokens };
    const decoding = coming && this.#gate.add(nowUs, request, verdict ?? unjudged, coming);
    const { id } = request;
    const now: Attempt = {
      id,
      instance,
      decodeAt,
      group,
      placed,
      decoding,
      inlineTokens,
      jobTokens,
      stage: 'queued',
      started: false,
      joined: false,
      heardUs: nowUs,
    };
    tracked.now = now;
    this.#tries.set(id, tracked);
    if (group !== undefined) this.groupPrefills++;
    if (inlineTokens > 0) {
      this.inlinePrefills++;
      this.#gate.inlined(instance, inlineTokens);
    }
    const incarnation = this.watch.incarnationOf(instance);
    const decodeIncarnation = decodeAt === undefined ? undefined : this.watch.incarnationOf(decodeAt);
    const prefix = decision && fetchOf(decision);
    const withIncarnation = group && { ...group, decodeIncarnation };
    this.#push({
      kind: 'forward',
      id: tracked.id,
      request,
      instance,
      decodeAt,
      predicted,
      prefix,
      group: withIncarnation,
      incarnation,
      decodeIncarnation,
    });
  }

  #inlineDone(now: Attempt): void {
    if (now.inlineTokens > 0) this.#gate.inlineDone(now.instance, now.inlineTokens);
    now.inlineTokens = 0;
  }

  /** Whose current try this is, where the instance has something of it. */
  find(id: RequestId, instance: InstanceIndex): Tracked<Request> | undefined {
    const tracked = this.#tries.get(id);
    return tracked?.now !== undefined && isLegOf(tracked.now, instance) ? tracked : undefined;
  }

  /** Whose current try began at the instance, whether or not that still has something of it: its words may be overtaken. */
  beganAt(id: RequestId, instance: InstanceIndex): Tracked<Request> | undefined {
    const tracked = this.#tries.get(id);
    return tracked?.now?.instance === instance ? tracked : this.find(id, instance);
  }

  /** False when it is not under way. */
  outgrows({ instance, id, tokens }: { instance: InstanceIndex; id: RequestId; tokens: number }): boolean {
    const known = this.find(id, instance) !== undefined;
    if (known) this.fleet.outgrows({ id, from: instance, tokens });
    return known;
  }

  /** The request continues on another instance once that has received all of it. */
  #divert(id: RequestId, to: InstanceIndex): { readonly incarnation: number | undefined } | undefined {
    const now = this.#tries.get(id)?.now;
    if (now === undefined || now.joined) return undefined;
    if (now.decodeAt !== to) {
      now.decodeAt = to;
      this.#instances[to].requests++;
      if (now.decoding !== undefined) this.#gate.move(now.decoding, to);
    }
    return { incarnation: this.watch.incarnationOf(to) };
  }

  migrated(nowUs: number, { instance, id }: { instance: InstanceIndex; id: RequestId }): void {
    const now = this.find(id, instance)?.now;
    if (now === undefined) this.fate(id, 'migrated');
    else this.decodes(nowUs, now);
  }

  /** What came about a try that is not under way. */
  fate(id: RequestId, message: FatedMessage): void {
    this.fates?.met(this.over.has(id) ? 'late' : 'orphan', message);
  }

  /** Its current try ends: whoever has something of it lets go. With `interrupt`, its prefill is not waited for if it runs and others get on. */
  leave(tracked: Tracked<Request>, interrupt: boolean): void {
    const { now } = tracked;
    if (now === undefined) return;
    for (const leg of legsOf(now).toReversed()) {
      const view = this.#instances[leg];
      const prefills = leg === now.instance && now.stage === 'prefill';
      const interrupts = interrupt && prefills && (view.progressed || view.requests === 1);
      if (interrupts) view.progressed = false;
      this.cancelAt(leg, now.id, interrupts);
    }
    this.settle(tracked, now);
  }

  cancelAt(instance: InstanceIndex, id: RequestId, interrupt: boolean): void {
    if (this.watch.isUp(instance)) this.#push({ kind: 'cancel', instance, id, interrupt });
  }

  /** The current try is over, and nobody has anything of it. */
  settle(tracked: Tracked<Request>, now: Attempt): void {
    for (const leg of legsOf(now)) this.#instances[leg].requests--;
    if (now.placed !== undefined) this.#placer.ended(now.placed);
    if (now.jobTokens > 0) this.jobs.remove(now.instance, now.jobTokens);
    this.#inlineDone(now);
    if (now.decoding !== undefined) this.#gate.ended(now.decoding);
    this.#tries.delete(now.id);
    this.fleet.left(now.id);
    if (this.fates !== undefined) this.over.add(now.id);
    tracked.now = undefined;
  }

  /** What comes of it is learned from. */
  ending(nowUs: number, { decoding }: Attempt, event: GenerationEvent): void {
    if (decoding !== undefined) this.#gate.ending(nowUs, decoding, event);
  }

  /** False when that is known. @param instance that says so: the one where it began, or the one that decodes, by when all is computed */
  started(nowUs: number, now: Attempt, cachedTokens: number, instance: InstanceIndex): boolean {
    if (now.started) return false;
    now.started = true;
    const overtaken = now.stage !== 'queued' || instance !== now.instance;
    if (!overtaken) now.stage = 'prefill';
    const blocks = now.placed && this.#placer.started(nowUs, now.placed, cachedTokens, overtaken);
    if (blocks !== undefined && this.#explains) this.#push({ kind: 'found', id: now.id, blocks });
    return true;
  }

  /** What the prompt's instance still has of it is only a copy under way. */
  prefilled(nowUs: number, instance: InstanceIndex, id: RequestId): void {
    const now = this.find(id, instance)?.now;
    if (now === undefined) this.fate(id, 'prefilled');
    if (now === undefined || instance === now.decodeAt || now.stage === 'decode') return;
    now.heardUs = nowUs;
    // Every member of a group says so of its layers.
    if (now.group === undefined || instance === now.group.members.at(-1)) this.#computed(nowUs, now);
    else if (now.placed !== undefined) this.#placer.sharePrefilled(now.placed, instance);
  }

  /** It is where it decodes: nobody else has anything of it that is needed. */
  decodes(nowUs: number, now: Attempt): void {
    this.#computed(nowUs, now);
    this.#inlineDone(now);
    if (now.decoding !== undefined) this.#gate.joined(nowUs, now.decoding);
    if (now.decodeAt === undefined || now.joined) return;
    for (const leg of legsOf(now)) if (leg !== now.decodeAt) this.#instances[leg].requests--;
    now.joined = true;
  }

  #computed(nowUs: number, now: Attempt): void {
    now.stage = 'decode';
    if (now.placed !== undefined) this.#placer.prefilled(nowUs, now.placed);
    this.progressed(now.instance);
  }

  progressed(instance: InstanceIndex): void {
    this.#instances[instance].progressed = true;
  }

  lose(instance: InstanceIndex): void {
    this.watch.lose(instance);
    this.#placer.lost(instance);
    this.hearsay.lost(instance);
    this.#gate.lost(instance);
    this.pins.lose(instance);
    this.fleet.lost(instance);
  }

  /** What it has ends there. */
  #changeRole(instance: InstanceIndex, role: InstanceRole): void {
    this.#placer.setTakesPrompts(instance, takesPrompts(role), this.watch.isUp(instance));
    this.#gate.setRole(instance, role);
    this.jobs.joined();
    this.#push({ kind: 'roleSwitched', instance, role });
  }

  pin(nowUs: number, order: PinOrder<Request>): void {
    const { promptTokens } = this.#size(order.request);
    const first = this.#placer.choose(nowUs, order.request, promptTokens)?.instance;
    this.pins.pin(order, promptTokens, first === undefined ? [] : [first, ...this.roles.computing]);
  }

  /** It takes requests, and nothing is known of what its cache has. @param capacityTokens of another one that has come in its place */
  admit(instance: InstanceIndex, capacityTokens = this.#instances[instance].capacityTokens): void {
    this.#instances[instance].capacityTokens = capacityTokens;
    this.#placer.joined(instance, this.watch.incarnationOf(instance));
    this.#gate.back(instance);
    this.fleet.joined(instance);
    this.jobs.joined();
  }

  /** Throws unless these are counted at their instances, and none at a lost one. */
  check(requests: readonly Tracked<Request>[]): void {
    const counts = this.#instances.map(() => 0);
    const inlineTokens = new Float64Array(this.#instances.length);
    const jobTokens = new Float64Array(this.#instances.length);
    for (const { now } of requests) {
      if (now === undefined) continue;
      for (const leg of legsOf(now)) counts[leg]++;
      inlineTokens[now.instance] += now.inlineTokens;
      jobTokens[now.instance] += now.jobTokens;
    }
    const trying = requests.filter(({ now }) => now !== undefined);
    if (
      trying.length !== this.#tries.size ||
      trying.some((tracked) => this.#tries.get(tracked.now?.id ?? '') !== tracked)
    )
      throw new Error(`Conductor broken: ${trying.length} requests are tried, ${this.#tries.size} tries are known`);
    this.#placer.check();
    this.#gate.check(inlineTokens);
    this.jobs.check(jobTokens);
    this.fleet.check();
    const wrong = this.#instances.findIndex(
      ({ requests }, i) => requests !== counts[i] || (!this.watch.isUp(i) && counts[i] > 0),
    );
    if (wrong >= 0) {
      throw new Error(
        `Conductor broken: instance ${wrong} has ${counts[wrong]} requests, counted ${this.#instances[wrong].requests}`,
      );
    }
  }
}
