// An inference port over instances of other processes: runs a conductor, and keeps a session with each instance of the cluster.

import { isEngineRoot } from '../../core/fleet/engine-root.ts';
import { EngineSteps } from '../../core/fleet/engine-steps.ts';
import type { PublishedBlocks } from '../../core/fleet/published-blocks.ts';
import { type Agreement, bitEqualForm, formsDiffer, identityOf } from '../../core/membership/agreement.ts';
import type { LossReason } from '../../core/membership/liveness.ts';
import { isOverdue, type StepState } from '../../core/membership/step-watchdog.ts';
import type { PipelineGroup, PrefixFetch, PrefixOffer } from '../../core/protocol/events.ts';
import type { InstanceIndex, PinId, RequestId } from '../../core/protocol/ids.ts';
import type { InstanceRole } from '../../core/protocol/instance-report.ts';
import type { GenerationRequest, InstanceSnapshot, PinOrder } from '../../core/protocol/ports.ts';
import type { AdmissionSettings } from '../../core/router/admission/length-admission.ts';
import { TokenAdmission } from '../../core/router/admission/token-admission.ts';
import { Conductor } from '../../core/router/conductor.ts';
import { LearnedTransfers } from '../../core/router/placement/learned-transfers.ts';
import type { PipelineSettings } from '../../core/router/placement/placer.ts';
import { TokenPlacement } from '../../core/router/placement/token-placement.ts';
import { tokenRequests } from '../../core/router/token-requests.ts';
import { batchLimits, batchLimitsWith } from '../../core/scheduler/executor/token-limits.ts';
import { JoinedHandOffs } from '../fleet/joined-hand-offs.ts';
import { CatchUpDriver } from '../snapshots/catch-up-driver.ts';
import {
  canServe,
  countsOf,
  emptySnapshot,
  snapshotAfterLoss,
  storeRoleIsFixed,
  withEarlier,
} from '../snapshots/metric-snapshots.ts';
import { readSnapshot } from '../snapshots/snapshot-store.ts';
import { nowUs } from '../threads/alarm.ts';
import { ConductorDriver, type ForwardTargets } from '../threads/conductor-driver.ts';
import type { BlockRoot } from '../threads/thread-protocol.ts';
import { encode } from '../wire/codec.ts';
import {
  type GatewayAnnouncement,
  type InstanceAnnouncement,
  type InstanceCommand,
  type NamedOffer,
  type NamedPrefix,
  readInstance,
  readOutputs,
  readStatus,
} from '../wire/messages.ts';
import type { NamedGroup, SessionName } from '../wire/names.ts';
import { departedAfterUs, indexedLinks } from './peer-links.ts';
import { type ClusterProcess, type Peer, type PeerHandler, PeerSession, silentUs } from './peer-session.ts';

/** Instances that a gateway can use at once. */
const slotsMax = 64;
/** Attempts of a request: it may itself have caused the loss of its instance. */
const attemptsMax = 4;
/** A request that no instance reports for this time is lost, even if its instance sends heartbeats. */
const reportTimeoutUs = 8 * silentUs;

export interface ClusterGatewayOptions extends ClusterProcess {
  readonly agreement: Agreement;
  /** Largest number of requests in the gateway at once. */
  readonly queueMax: number;
  /** Hot prefixes are also copied before a prompt fetches them. */
  readonly copiesHotPrefixes?: boolean | undefined;
  /** Limit of a request's duration, from submit to its end. */
  readonly timeoutUs: number;
  /** Latency targets and the admission policy. */
  readonly admission: AdmissionSettings;
  /** Maximum predicted time of a step that decodes and prefills; undefined: the default. */
  readonly stepUs?: number | undefined;
  /** Groups of prefill instances may compute long prompts. */
  readonly pipeline?: PipelineSettings | undefined;
  /** Receives the blocks of the instances, to publish them; none unless given. */
  readonly kvEvents?: PublishedBlocks | undefined;
  /** Traces are collected: instances report their steps. */
  readonly traces?: boolean;
}

const noOutputs = { events: [], prefilled: [], released: [], pins: [], kvEvents: [], kvSnapshot: undefined };

interface Slot {
  /** Undefined: the slot is free. */
  peer: Peer<InstanceAnnouncement> | undefined;
  /** Name of the current or last instance. */
  name: string;
  /** Counts sessions; the conductor treats them as incarnations of one instance. */
  incarnation: number;
  /** With the counters of `earlier`. */
  snapshot: InstanceSnapshot;
  /** Counters of earlier starts of the instance. */
  earlier: InstanceSnapshot | undefined;
  /** The start of the instance that `snapshot` is from. */
  started: number | undefined;
  /** Time of its loss; undefined while it is joined. */
  lostUs: number | undefined;
  /** As announced, or as switched since. */
  role: InstanceRole;
  /** Names of the instances to which it cannot send pages, as reported last. */
  unreachable: readonly string[];
  /** Its running step takes far longer than predicted, as reported last. */
  isOverdue: boolean;
}

export class ClusterGateway extends ConductorDriver implements PeerHandler<InstanceAnnouncement> {
  readonly #options: ClusterGatewayOptions;
  readonly #session: PeerSession<InstanceAnnouncement>;
  readonly #slots: Slot[] = [];
  readonly #catchUp: CatchUpDriver;
  /** Undefined if prefixes are not fetched. */
  #transfers: LearnedTransfers | undefined;
  #isConnected = true;
  /** Prompts between external engines; own instances hand theirs off by themselves. */
  readonly #handOffs: JoinedHandOffs;
  readonly #unwatch: () => void;
  readonly readAnnouncement = readInstance;
  /** The model form of the first instance; all others must have the same. */
  #root: BlockRoot | undefined;

  constructor(options: ClusterGatewayOptions) {
    const { bus, name, incarnation, heartbeats } = options;
    const log = (line: string): void => options.log(line);
    super({
      placement: new TokenPlacement(Uint32Array.from(options.agreement.hashKey), options.kvEvents),
      admission: new TokenAdmission(options.admission, slotsMax, batchLimitsWith(options.stepUs)),
      log,
      engineSteps: options.traces === true ? new EngineSteps(() => this.#isOfEngines) : undefined,
    });
    this.#options = options;
    this.#catchUp = this.#createCatchUp(options);
    this.#handOffs = new JoinedHandOffs({
      send: (instance, command) => this.#send(instance, command),
      cachedTokensAt: (instance, request) => this.cachedTokensAt(instance, request),
      prefilled: (instance, id) => this.onOutputs(instance, { ...noOutputs, prefilled: [id] }),
      released: (instance, id, why, refusal) => this.feed({ kind: 'released', instance, id, why, refusal }),
    });
    this.#unwatch = bus.watchConnection((up) => {
      this.#isConnected = up;
    });
    const own = { bus, name, incarnation, heartbeats, log: (line: string) => log(line) };
    this.#session = new PeerSession(own, 'gateway', this);
    this.#session.start();
  }

  /** Of external engines: no cluster has own instances too. */
  get #isOfEngines(): boolean {
    return this.#root !== undefined && isEngineRoot(this.#root);
  }

  /** Hand-offs under way between external engines. */
  get handOffs(): number {
    return this.#handOffs.size;
  }

  announcement(): Pick<GatewayAnnouncement, 'traces'> {
    return { traces: this.#options.traces ?? false };
  }

  switchRole(instance: InstanceIndex, role: InstanceRole): string | undefined {
    const slot = this.#slots[instance];
    if (slot?.peer === undefined) return 'it has not joined';
    if (slot.role === role) return undefined;
    if (slot.role === 'store') return storeRoleIsFixed;
    if (!slot.peer.member.canSwitchRole)
      return 'its role is fixed: join it with --role-switch, and without attention workers';
    this.feed({ kind: 'switchRole', instance, role });
    return this.roles()[instance] === role ? undefined : 'no instance would be left to prefill, or none to decode';
  }

  roles(): readonly InstanceRole[] {
    return this.#slots.map(({ role }) => role);
  }

  instances(): readonly InstanceSnapshot[] {
    const departedUs = nowUs() - departedAfterUs;
    return this.#slots.map(({ snapshot, name, lostUs }) => ({
      ...snapshot,
      name,
      ...(lostUs !== undefined && lostUs <= departedUs && { departed: true as const }),
    }));
  }

  /** Instances cancel the remaining requests of this gateway. */
  close(): void {
    this.stopTimers();
    this.#unwatch();
    this.#catchUp.close();
    this.#options.heartbeats?.close();
    this.#session.close();
  }

  protected notReadyReason(): ReturnType<ConductorDriver['notReadyReason']> {
    if (!this.#isConnected) return { kind: 'unreachable', message: 'the NATS server is unreachable' };
    const roles = this.#joined().map(({ role }) => role);
    if (canServe(roles)) return this.#noTransfers(roles);
    const message =
      roles.length === 0
        ? 'no instance has joined the cluster'
        : `the cluster has ${countsOf(roles)} instances; it needs a mixed one, or a prefill and a decode one: ${this.#remedy(roles)}`;
    return { kind: 'incomplete', message };
  }

  #remedy(roles: readonly InstanceRole[]): string {
    const missing = roles.includes('decode') ? 'prefill' : roles.includes('prefill') ? 'decode' : 'mixed';
    const switches = missing === 'mixed' || this.#options.admission.roleSwitch !== undefined;
    return `join one with --role ${missing}${switches ? '' : ', or start the gateway with --role-switch'}`;
  }

  /** No prefill instance can send prompts to a decode instance. */
  #noTransfers(roles: readonly InstanceRole[]): ReturnType<ConductorDriver['notReadyReason']> {
    if (roles.includes('mixed')) return undefined;
    const [decoding, computing] = ['decode', 'prefill'].map((role) =>
      this.#joined().filter((each) => each.role === role),
    );
    const cut = computing.flatMap((from) =>
      decoding.filter(({ name }) => from.unreachable.includes(name)).map((to) => [from, to]),
    );
    const [first] = cut;
    if (first === undefined || cut.length < computing.length * decoding.length) return undefined;
    const [from, to] = first;
    const where = `the KV pages of instance ${to.name} at ${to.peer?.member.pages}`;
    return { kind: 'incomplete', message: `instance ${from.name} cannot reach ${where}: give it --pages-host` };
  }

  /** Sends the new role to the instance, which reports it to the other gateways. */
  protected onRoleSwitched(instance: InstanceIndex, role: InstanceRole): void {
    const slot = this.#slots[instance];
    if (slot.role === role || role === 'store') return;
    slot.role = role;
    this.#send(instance, { kind: 'role', role });
  }

  /** Another gateway has switched the role. */
  #followRole(instance: InstanceIndex, role: InstanceRole): void {
    const slot = this.#slots[instance];
    if (slot.role === role) return;
    slot.role = role;
    this.log(`Instance ${slot.name} is ${role} from now on`);
    this.feed({ kind: 'switchRole', instance, role });
  }

  #onDraining(instance: InstanceIndex, peer: Peer<InstanceAnnouncement>): void {
    const slot = this.#slots[instance];
    // As a store it computes nothing for this gateway.
    slot.role = 'store';
    this.log(`Instance ${slot.name} drains: ${this.#serving} serve`);
    this.feed({ kind: 'instanceDraining', instance });
    // The instance waits for this: no request that was sent before is left out.
    this.#session.acknowledge(peer);
  }

  #joined(): readonly Slot[] {
    return this.#slots.filter(({ peer }) => peer !== undefined);
  }

  refuses({ root, identity, role, stageLayers }: InstanceAnnouncement): string | undefined {
    const { hashKey, modelFingerprint } = this.#options.agreement;
    const { pipeline } = this.#options;
    if (pipeline !== undefined && role !== 'store' && (stageLayers ?? 0) < pipeline.members)
      return `it cannot join a group of ${pipeline.members}: ${noGroups(stageLayers)}`;
    const differs = formsDiffer(this.#root ?? { ...root, modelFingerprint }, root);
    if (differs !== undefined) return differs;
    return identityOf(root, hashKey) === identity ? undefined : 'it computes block identities in another way';
  }

  onJoined(peer: Peer<InstanceAnnouncement>): void {
    const { name, capacityTokens, role } = peer.member;
    const instance = this.#slotFor(name);
    if (instance === undefined) {
      this.log(`Cannot add instance ${name}: the gateway has ${slotsMax}`);
      return;
    }
    this.#begin(peer.member);
    const slot = this.#slots[instance];
    if (slot.name !== name) {
      this.placement.replaced(instance);
      Object.assign(slot, { snapshot: emptySnapshot, earlier: undefined });
    } else if (slot.started !== undefined && slot.started !== peer.member.incarnation) slot.earlier = slot.snapshot;
    slot.started = peer.member.incarnation;
    slot.lostUs = undefined;
    slot.name = name;
    slot.peer = peer;
    slot.role = role;
    slot.unreachable = [];
    slot.isOverdue = false;
    this.#transfers?.setUnreachable(instance, []);
    slot.incarnation++;
    this.admission.instanceJoined(instance, capacityTokens, capacityTokens);
    this.log(`Instance ${name} has joined: ${this.#serving} serve`);
    const keepsRole = !peer.member.canSwitchRole;
    const kernels = this.#kernelsOf(peer.member);
    this.feed({
      ...{ kind: 'instanceJoined', instance, incarnation: slot.incarnation, capacityTokens },
      ...{ role, keepsRole, kernels },
    });
    // Other instances may have reported it by its name.
    for (const each of this.#slots.keys()) this.#updateUnreachable(each);
    // KV events do not include earlier blocks.
    this.#catchUp.feed({ kind: 'behind', instance });
  }

  /** The instance's previous slot, a new one, or a free one. */
  #slotFor(name: string): InstanceIndex | undefined {
    const own = this.#slots.findIndex((slot) => slot.name === name);
    if (own >= 0) return own;
    if (this.#slots.length < slotsMax)
      return (
        this.#slots.push({
          ...{ peer: undefined, name, incarnation: 0, snapshot: emptySnapshot },
          ...{
            role: 'mixed',
            unreachable: [],
            isOverdue: false,
            earlier: undefined,
            started: undefined,
            lostUs: undefined,
          },
        }) - 1
      );
    const free = this.#slots.findIndex(({ peer }) => peer === undefined);
    return free < 0 ? undefined : free;
  }

  /** Undefined: all instruction sets compute the same bits in this form. */
  #kernelsOf({ name, isa, root }: InstanceAnnouncement): string | undefined {
    if (root.inputForm === bitEqualForm || isa === undefined) return undefined;
    const other = this.#joined().find(({ peer }) => peer?.member.isa !== undefined && peer.member.isa !== isa);
    if (other !== undefined)
      this.log(
        `Instance ${name} has the instruction set ${isa}, instance ${other.name} ${other.peer?.member.isa}: after a failure requests continue on equal ones alone; --inputs ${bitEqualForm} gives equal bits on all`,
      );
    return isa;
  }

  /** Passes on to which instances one cannot send pages. */
  #updateUnreachable(instance: InstanceIndex): void {
    const { unreachable, peer } = this.#slots[instance];
    const kind = peer?.member.engine?.kind;
    // Engines of different kinds hand no prompts to each other.
    const peers = this.#slots.flatMap((slot, i) =>
      unreachable.includes(slot.name) || slot.peer?.member.engine?.kind !== kind ? [i] : [],
    );
    this.#transfers?.setUnreachable(instance, peers);
    this.feed({ kind: 'unreachable', instance, peers });
  }

  #onUnreachable(instance: InstanceIndex, names: readonly string[]): void {
    const slot = this.#slots[instance];
    if (names.length === slot.unreachable.length && names.every((name) => slot.unreachable.includes(name))) return;
    for (const name of names) {
      if (slot.unreachable.includes(name)) continue;
      const pages = this.#slots.find((each) => each.name === name)?.peer?.member.pages ?? 'an unknown address';
      this.log(
        `Instance ${slot.name} cannot reach the KV pages of instance ${name} at ${pages}: it receives none from there`,
      );
    }
    slot.unreachable = names;
    this.#updateUnreachable(instance);
  }

  /** The first instance determines the root of block identities. */
  #begin({ root, fetchBytesPerToken, stageLayers }: InstanceAnnouncement): void {
    if (this.#root !== undefined) return;
    this.#root = root;
    const { pipeline } = this.#options;
    const slots = Array.from({ length: slotsMax }, (_, slot) => slot);
    if (fetchBytesPerToken !== undefined) this.#transfers = new LearnedTransfers(slotsMax, fetchBytesPerToken);
    const groups = pipeline && stageLayers !== undefined ? { ...pipeline, layers: stageLayers } : undefined;
    this.placement.begin(root, slots, this.#transfers, groups);
    const conductor = new Conductor<GenerationRequest>({
      instances: slots.map(() => ({ capacityTokens: 0, absent: true })),
      queueMax: this.#options.queueMax,
      requests: tokenRequests,
      roleSwitch: this.#options.admission.roleSwitch,
      placement: { ...this.placement.config, copiesHotPrefixes: this.#options.copiesHotPrefixes },
      admission: this.admission.config(this.placement.prefills, this.#transfers?.config),
      batchJobs: { memoryShare: batchLimits.background.memoryShare },
      recordsPlacements: true,
      retries: {
        attemptsMax,
        detection: { reportTimeoutUs, requestTimeoutUs: this.#options.timeoutUs },
      },
    });
    this.startConductor(conductor);
  }

  /** Number of joined instances that compute. */
  get #serving(): number {
    return this.#joined().filter(({ role }) => role !== 'store').length;
  }

  onLost({ member: { name } }: Peer<InstanceAnnouncement>, why: LossReason): void {
    const instance = this.#slots.findIndex((slot) => slot.peer?.member.name === name);
    const slot = this.#slots[instance];
    if (slot === undefined) return;
    slot.peer = undefined;
    this.#catchUp.feed({ kind: 'instanceLeft', instance });
    slot.snapshot = snapshotAfterLoss(slot.snapshot);
    slot.lostUs = nowUs();
    this.log(`Instance ${name} ${why}: ${this.#serving} serve`);
    this.feed({ kind: 'instanceFailed', instance });
    this.#handOffs.instanceLeft(instance);
    const reason = this.notReadyReason();
    if (reason?.kind === 'incomplete') this.log(`Not ready: ${reason.message}`);
  }

  #slotOf(peer: Peer<InstanceAnnouncement>): InstanceIndex | undefined {
    const instance = this.#slots.findIndex((slot) => slot.peer === peer);
    return instance < 0 ? undefined : instance;
  }

  onMessage(peer: Peer<InstanceAnnouncement>, message: Uint8Array): void {
    const instance = this.#slotOf(peer);
    if (instance === undefined) return;
    const { steps, role, draining, kvEvents, kvSnapshot, snapshotNumber, others, prefills, ...outputs } =
      readOutputs(message);
    if (role !== undefined) this.#followRole(instance, role);
    if (draining === true) this.#onDraining(instance, peer);
    this.recordSteps(instance, steps);
    this.#catchUp.feed({
      kind: 'received',
      instance,
      batches: kvEvents,
      snapshot: kvSnapshot,
      storedNumber: snapshotNumber,
    });
    for (const [id, answer] of prefills ?? []) this.#handOffs.onPrefillAnswer(instance, id, answer);
    for (const [id, event] of outputs.events) this.#handOffs.observe(instance, id, event);
    const released = outputs.released.filter((each) => !this.#handOffs.onReleased(each));
    this.onOutputs(instance, { ...outputs, released, kvEvents: [], kvSnapshot: undefined });
    if (others !== undefined) {
      this.placement.observeOthers(instance, others);
      this.feed({ kind: 'othersLoad', instance, others });
    }
  }

  /** Replaces the incarnations that instances count by the conductor's, which are sessions. */
  #createCatchUp({ bus: { snapshots } }: ClusterGatewayOptions): CatchUpDriver {
    return new CatchUpDriver({
      requestSnapshot: (instance, unreadable) => this.#send(instance, { kind: 'requestSnapshot', unreadable }),
      readSnapshot: async (instance, number) => {
        const { name, incarnation } = this.#slots[instance]?.peer?.member ?? {};
        return name === undefined || incarnation === undefined
          ? undefined
          : readSnapshot(snapshots, name, incarnation, number);
      },
      onSnapshot: (instance, snapshot) => {
        const { incarnation } = this.#slots[instance];
        this.feed({ kind: 'snapshot', instance, snapshot: { ...snapshot, incarnation } });
      },
      onKvEvents: (instance, batch) => {
        const { incarnation } = this.#slots[instance];
        this.feed({ kind: 'kvEvents', instance, batch: { ...batch, incarnation } });
      },
    });
  }

  onStatus(peer: Peer<InstanceAnnouncement>, bytes: Uint8Array): void {
    const instance = this.#slotOf(peer);
    if (instance === undefined) return;
    const { snapshot, number, kvEventNumber, requests, others, unreachable = [], step } = readStatus(bytes);
    const slot = this.#slots[instance];
    this.servedAttention(instance, slot.snapshot, snapshot);
    const indexed = this.#withLinkIndices(snapshot);
    slot.snapshot = withEarlier(slot.earlier, indexed);
    this.recordReport(instance, indexed);
    this.admission.observe(instance, snapshot);
    this.placement.observe(instance, snapshot);
    this.placement.observeOthers(instance, others);
    this.#transfers?.observe(instance, snapshot, slot.snapshot.links);
    this.#onUnreachable(instance, unreachable);
    this.#onStep(instance, step);
    const report = { incarnation: slot.incarnation, number, kvEventNumber, requests, others };
    this.feed({ kind: 'report', instance, report });
  }

  #onStep(instance: InstanceIndex, step: StepState | undefined): void {
    const slot = this.#slots[instance];
    const isOverdueNow = step !== undefined && isOverdue(step);
    if (isOverdueNow === slot.isOverdue) return;
    slot.isOverdue = isOverdueNow;
    this.overdue(instance, slot.name, isOverdueNow);
  }

  /** The snapshot with its links by instance index instead of name. */
  #withLinkIndices({ links, activationLinks, ...snapshot }: InstanceSnapshot): InstanceSnapshot {
    const indexOf = (name: string): InstanceIndex | undefined => {
      const place = this.#slots.findIndex((slot) => slot.name === name);
      return place < 0 ? undefined : place;
    };
    return {
      ...snapshot,
      ...(links && { links: indexedLinks(links, indexOf) }),
      ...(activationLinks && { activationLinks: indexedLinks(activationLinks, indexOf) }),
    };
  }

  protected forwardTo(
    instance: InstanceIndex,
    request: GenerationRequest,
    { decodeAt, prefix, offer, group, cachedTokens }: ForwardTargets,
  ): void {
    if (decodeAt !== undefined && this.#isOfEngines) {
      const { engine } = this.#slots[instance]?.peer?.member ?? {};
      // Of an instance that has left, the conductor retries the requests.
      if (engine !== undefined) this.#handOffs.start(request, instance, engine, decodeAt);
      return;
    }
    const offered = offer && this.#offerName(offer);
    this.#send(instance, {
      ...{ kind: 'submit', request },
      decodeAt: this.#sessionOf(decodeAt),
      prefix: prefix && this.#prefixName(prefix),
      ...(offered && { offer: offered }),
      group: group && this.#groupName(group),
      cachedTokens,
    });
  }

  protected cancelAt(instance: InstanceIndex, id: RequestId, interrupt: boolean): void {
    this.#handOffs.cancelled(id);
    this.#send(instance, { kind: 'cancel', id, interrupt });
  }

  protected requestSnapshotFrom(instance: InstanceIndex): void {
    this.#catchUp.feed({ kind: 'behind', instance });
  }

  protected pinAt(instance: InstanceIndex, { id, request, ttlUs }: PinOrder): void {
    this.#send(instance, { kind: 'pin', id, request, ttlUs });
  }

  protected unpinAt(instance: InstanceIndex, id: PinId): void {
    this.#send(instance, { kind: 'unpin', id });
  }

  #sessionOf(instance: InstanceIndex | undefined): SessionName | undefined {
    const peer = instance === undefined ? undefined : this.#slots[instance]?.peer;
    return peer && { name: peer.member.name, incarnation: peer.member.incarnation, session: peer.session };
  }

  #prefixName({ from, ...rest }: PrefixFetch): NamedPrefix | undefined {
    const source = this.#sessionOf(from);
    return source && { name: source.name, incarnation: source.incarnation, ...rest };
  }

  /** Undefined if the instance has left: nothing is offered. */
  #offerName({ to, blocks }: PrefixOffer): NamedOffer | undefined {
    const target = this.#sessionOf(to);
    return target && { name: target.name, incarnation: target.incarnation, blocks };
  }

  /** Undefined if a member has not joined. */
  #groupName({ members, layers, chunkTokens, prefix }: PipelineGroup): NamedGroup | undefined {
    const named = members.flatMap((member) => this.#sessionOf(member) ?? []);
    if (named.length < members.length) return undefined;
    const { name, incarnation } = this.#sessionOf(prefix?.from) ?? {};
    const of = name === undefined || incarnation === undefined ? undefined : { name, incarnation };
    const groupPrefix = prefix && { blocks: prefix.blocks, patienceUs: prefix.patienceUs, of };
    return { members: named, layers, chunkTokens, prefix: groupPrefix };
  }

  #send(instance: InstanceIndex, command: InstanceCommand): void {
    const peer = this.#slots[instance]?.peer;
    if (peer !== undefined) this.#session.send(peer, encode(command));
  }
}

function noGroups(stageLayers: number | undefined): string {
  return stageLayers === undefined
    ? 'some layers of the model have a sliding window, the instance borrows memory, or it has no native kernels'
    : `the model has ${stageLayers} layers`;
}
