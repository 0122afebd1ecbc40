// An inference port over instances of other processes: a conductor of its own, and a link to each instance that has joined the cluster.

import { type Agreement, formsDiffer, identityOf } from '../../core/membership/agreement.ts';
import type { Departure } from '../../core/membership/liveness.ts';
import type { PipelineGroup, PrefixFetch } from '../../core/protocol/events.ts';
import type { InstanceIndex } from '../../core/protocol/ids.ts';
import type { InstanceRole } from '../../core/protocol/instance-report.ts';
import type { GenerationRequest, InstanceSnapshot } from '../../core/protocol/ports.ts';
import type { AdmissionSettings } from '../../core/router/admission/length-admission.ts';
import { TokenAdmission } from '../../core/router/admission/token-admission.ts';
import { Conductor } from '../../core/router/conductor.ts';
import { LearnedTransfers } from '../../core/router/placement/learned-transfers.ts';
import type { PipelineSettings } from '../../core/router/placement/placer.ts';
import { TokenPlacement } from '../../core/router/placement/token-placement.ts';
import { tokenRequests } from '../../core/router/token-requests.ts';
import { batchLimits } from '../../core/scheduler/executor/token-limits.ts';
import type { Bus } from '../bus/bus.ts';
import {
  canServe,
  countsOf,
  emptySnapshot,
  snapshotAfterLoss,
  storeRoleIsFixed,
} from '../snapshots/metric-snapshots.ts';
import { CatchUpDriver } from '../snapshots/snapshot-reader.ts';
import { readSnapshot } from '../snapshots/snapshot-store.ts';
import { ConductorDriver, type Reach } from '../threads/conductor-driver.ts';
import type { BlockRoot } from '../threads/thread-protocol.ts';
import { encode } from '../wire/codec.ts';
import {
  type InstanceAnnouncement,
  type InstanceCommand,
  type NamedPrefix,
  readInstance,
  readOutputs,
  readStatus,
} from '../wire/messages.ts';
import type { NamedGroup, SessionName } from '../wire/names.ts';
import { placedLinks } from './peer-links.ts';
import { type Peer, PeerSession, silentUs } from './peer-session.ts';

/** Instances that the conductor has places for. */
const slotsMax = 64;
/** A request may be what its instance died of. */
const triesMax = 4;
/** Instances are given up when they fall silent; what none of them has told of for so long is lost besides. */
const patienceUs = 8 * silentUs;

export interface ClusterGatewayOptions {
  readonly bus: Bus;
  readonly name: string;
  readonly incarnation: number;
  readonly agreement: Agreement;
  /** Requests accepted at once. */
  readonly queueMax: number;
  /** Of a request, from submit to its end. */
  readonly timeoutUs: number;
  /** What requests may wait, and who is taken. */
  readonly admission: AdmissionSettings;
  /** Long prompts may be computed by groups of instances that prefill. */
  readonly pipeline?: PipelineSettings | undefined;
  /** Somebody collects traces: instances tell of their steps. */
  readonly traces?: boolean;
  readonly log: (message: string) => void;
}

interface Slot {
  /** Undefined: it is free. */
  peer: Peer<InstanceAnnouncement> | undefined;
  /** Whose it is, or was last. */
  name: string;
  /** Sessions that it has had: the conductor knows them as lives of one instance. */
  incarnation: number;
  snapshot: InstanceSnapshot;
  /** As it says, or has been told. */
  role: InstanceRole;
}

export class ClusterGateway extends ConductorDriver {
  readonly #options: ClusterGatewayOptions;
  readonly #station: PeerSession<InstanceAnnouncement>;
  protected readonly reach = this.#reach();
  readonly #slots: Slot[] = [];
  readonly #blocks: CatchUpDriver;
  /** Undefined where prefixes stay where they are. */
  #transfers: LearnedTransfers | undefined;
  #isConnected = true;
  readonly #unwatch: () => void;
  /** Form of the first instance that joined: the others have it too. */
  #root: BlockRoot | undefined;

  constructor(options: ClusterGatewayOptions) {
    const { bus, name, incarnation, log } = options;
    super({
      placement: new TokenPlacement(Uint32Array.from(options.agreement.hashKey)),
      admission: new TokenAdmission(options.admission, slotsMax, batchLimits),
      log,
    });
    this.#options = options;
    this.#blocks = this.#catchUp(options);
    this.#unwatch = bus.watchConnection((up) => {
      this.#isConnected = up;
    });
    this.#station = new PeerSession<InstanceAnnouncement>({
      ...{ bus, name, incarnation, log },
      kind: 'gateway',
      about: { traces: options.traces ?? false },
      read: readInstance,
      refuses: (member) => this.#refuses(member),
      onJoined: (peer) => this.#join(peer),
      onLost: (peer, why) => this.#lose(peer, why),
      onMessage: (peer, message) => this.#hear(peer, message),
      onStatus: (peer, status) => this.#hearStatus(peer, status),
    });
    this.#station.start();
  }

  switchRole(instance: InstanceIndex, role: InstanceRole): string | undefined {
    const slot = this.#slots[instance];
    if (slot?.peer === undefined) return 'it is not there';
    if (slot.role === role) return undefined;
    if (slot.role === 'store') return storeRoleIsFixed;
    if (!slot.peer.member.canSwitchRole) return 'it keeps the role that it joined with: join with --role-switch';
    this.feed({ kind: 'switchRole', instance, role });
    return this.roles()[instance] === role ? undefined : 'nobody would be left to prefill, or nobody to decode';
  }

  roles(): readonly InstanceRole[] {
    return this.#slots.map(({ role }) => role);
  }

  instances(): readonly InstanceSnapshot[] {
    return this.#slots.map(({ snapshot, name }) => ({ ...snapshot, name }));
  }

  /** Instances cancel what they still have of its requests. */
  close(): void {
    this.stopTimers();
    this.#unwatch();
    this.#blocks.close();
    this.#station.close();
  }

  protected notReadyReason(): ReturnType<ConductorDriver['notReadyReason']> {
    if (!this.#isConnected) return { kind: 'unreachable', message: 'the NATS server is out of reach' };
    const roles = this.#present().map(({ role }) => role);
    if (canServe(roles)) return undefined;
    const message =
      roles.length === 0
        ? 'no instance of the cluster is there'
        : `the cluster has ${countsOf(roles)} instances: one that is mixed, or one that prefills and one that decodes are needed`;
    return { kind: 'incomplete', message };
  }

  /** Its own doing, or that of the work: the instance tells all other gateways. */
  protected onRoleSwitched(instance: InstanceIndex, role: InstanceRole): void {
    const slot = this.#slots[instance];
    if (slot.role === role || role === 'store') return;
    slot.role = role;
    this.#tell(instance, { kind: 'role', role });
  }

  /** Another gateway has given it that role. */
  #follow(instance: InstanceIndex, role: InstanceRole): void {
    const slot = this.#slots[instance];
    if (slot.role === role) return;
    slot.role = role;
    this.log(`Instance ${slot.name} is ${role} from now on`);
    this.feed({ kind: 'switchRole', instance, role });
  }

  #present(): readonly Slot[] {
    return this.#slots.filter(({ peer }) => peer !== undefined);
  }

  #refuses({ root, identity, role, stageLayers }: InstanceAnnouncement): string | undefined {
    const { hashKey, modelFingerprint } = this.#options.agreement;
    const { pipeline } = this.#options;
    if (pipeline !== undefined && role !== 'store' && (stageLayers ?? 0) < pipeline.members)
      return `it can be in no group of ${pipeline.members}: ${noGroups(stageLayers)}`;
    const differs = formsDiffer(this.#root ?? { ...root, modelFingerprint }, root);
    if (differs !== undefined) return differs;
    return identityOf(root, hashKey) === identity ? undefined : 'it keys the identities of blocks in another way';
  }

  #join(peer: Peer<InstanceAnnouncement>): void {
    const { name, capacityTokens, role } = peer.member;
    const instance = this.#slotFor(name);
    if (instance === undefined) {
      this.log(`Cannot take instance ${name}: ${slotsMax} are there`);
      return;
    }
    this.#begin(peer.member);
    const slot = this.#slots[instance];
    if (slot.name !== name) this.placement.replaced(instance);
    slot.name = name;
    slot.peer = peer;
    slot.role = role;
    slot.incarnation++;
    this.admission.instanceJoined(instance, capacityTokens, capacityTokens);
    this.log(`Instance ${name} has joined: ${this.#serving} serve`);
    this.feed({ kind: 'instanceJoined', instance, incarnation: slot.incarnation, capacityTokens, role });
    // What it had before, no journal tells.
    this.#blocks.feed({ kind: 'wanted', instance });
  }

  /** The one that it had before, a new one, or one that nobody has now. */
  #slotFor(name: string): InstanceIndex | undefined {
    const own = this.#slots.findIndex((slot) => slot.name === name);
    if (own >= 0) return own;
    if (this.#slots.length < slotsMax)
      return this.#slots.push({ peer: undefined, name, incarnation: 0, snapshot: emptySnapshot, role: 'mixed' }) - 1;
    const free = this.#slots.findIndex(({ peer }) => peer === undefined);
    return free < 0 ? undefined : free;
  }

  /** The first instance says what blocks chain from. */
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
      placement: this.placement.config,
      admission: this.admission.config(this.placement.prefills),
      batchJobs: { memoryShare: batchLimits.background.memoryShare },
      recordsPlacements: true,
      retries: {
        attemptsMax: triesMax,
        detection: { reportTimeoutUs: patienceUs, requestTimeoutUs: this.#options.timeoutUs },
      },
    });
    this.startConductor(conductor);
  }

  /** Stores do not. */
  get #serving(): number {
    return this.#present().filter(({ role }) => role !== 'store').length;
  }

  #lose({ member: { name } }: Peer<InstanceAnnouncement>, why: Departure): void {
    const instance = this.#slots.findIndex((slot) => slot.peer?.member.name === name);
    const slot = this.#slots[instance];
    if (slot === undefined) return;
    slot.peer = undefined;
    this.#blocks.feed({ kind: 'gone', instance });
    slot.snapshot = snapshotAfterLoss(slot.snapshot);
    this.log(`Instance ${name} ${why}: ${this.#serving} serve`);
    this.feed({ kind: 'instanceLost', instance });
  }

  #slotOf(peer: Peer<InstanceAnnouncement>): InstanceIndex | undefined {
    const instance = this.#slots.findIndex((slot) => slot.peer === peer);
    return instance < 0 ? undefined : instance;
  }

  #hear(peer: Peer<InstanceAnnouncement>, message: Uint8Array): void {
    const instance = this.#slotOf(peer);
    if (instance === undefined) return;
    const {
      steps,
      role,
      kvEvents: journals,
      kvSnapshot: blocks,
      snapshotNumber: stored,
      ...turn
    } = readOutputs(message);
    if (role !== undefined) this.#follow(instance, role);
    this.recordSteps(instance, steps);
    this.#blocks.feed({ kind: 'told', instance, journals, blocks, stored });
    this.onOutputs(instance, { ...turn, kvEvents: [], kvSnapshot: undefined });
  }

  /** The conductor knows sessions as lives, whatever instances call theirs. */
  #catchUp({ bus: { snapshots } }: ClusterGatewayOptions): CatchUpDriver {
    return new CatchUpDriver({
      ask: (instance, unread) => this.#tell(instance, { kind: 'requestSnapshot', unread }),
      read: async (instance, number) => {
        const { name, incarnation } = this.#slots[instance]?.peer?.member ?? {};
        return name === undefined || incarnation === undefined
          ? undefined
          : readSnapshot(snapshots, name, incarnation, number);
      },
      snapshot: (instance, snapshot) => {
        const { incarnation } = this.#slots[instance];
        this.feed({ kind: 'snapshot', instance, snapshot: { ...snapshot, incarnation } });
      },
      journal: (instance, journal) => {
        const { incarnation } = this.#slots[instance];
        this.feed({ kind: 'journal', instance, journal: { ...journal, incarnation } });
      },
    });
  }

  #hearStatus(peer: Peer<InstanceAnnouncement>, bytes: Uint8Array): void {
    const instance = this.#slotOf(peer);
    if (instance === undefined) return;
    const { snapshot, number, kvEventNumber: journal, requests } = readStatus(bytes);
    const slot = this.#slots[instance];
    slot.snapshot = this.#placed(snapshot);
    this.admission.observe(instance, snapshot);
    this.#transfers?.observe(instance, snapshot);
    const report = {
      incarnation: slot.incarnation,
      ...{ number, journal, requests },
    };
    this.feed({ kind: 'report', instance, report });
  }

  /** Its links by the places that others have here. */
  #placed({ links, rowLinks, ...snapshot }: InstanceSnapshot): InstanceSnapshot {
    const placeOf = (name: string): InstanceIndex | undefined => {
      const place = this.#slots.findIndex((slot) => slot.name === name);
      return place < 0 ? undefined : place;
    };
    return {
      ...snapshot,
      ...(links && { links: placedLinks(links, placeOf) }),
      ...(rowLinks && { rowLinks: placedLinks(rowLinks, placeOf) }),
    };
  }

  #reach(): Reach {
    return {
      forward: (instance, request, { decodeAt, prefix, group }) =>
        this.#tell(instance, {
          ...{ kind: 'submit', request },
          decodeAt: this.#sessionOf(decodeAt),
          prefix: prefix && this.#named(prefix),
          group: group && this.#namedGroup(group),
        }),
      cancel: (instance, id, interrupt) => this.#tell(instance, { kind: 'cancel', id, interrupt }),
      tellBlocks: (instance) => this.#blocks.feed({ kind: 'wanted', instance }),
      pin: (instance, { id, request, ttlUs }) => this.#tell(instance, { kind: 'pin', id, request, ttlUs }),
      unpin: (instance, id) => this.#tell(instance, { kind: 'unpin', id }),
    };
  }

  #sessionOf(instance: InstanceIndex | undefined): SessionName | undefined {
    const peer = instance === undefined ? undefined : this.#slots[instance]?.peer;
    return peer && { name: peer.member.name, incarnation: peer.member.incarnation, session: peer.session };
  }

  #named({ from, ...wanted }: PrefixFetch): NamedPrefix | undefined {
    const source = this.#sessionOf(from);
    return source && { name: source.name, incarnation: source.incarnation, ...wanted };
  }

  /** Undefined where one of them has gone. */
  #namedGroup({ members, layers, chunkTokens, prefix }: PipelineGroup): NamedGroup | undefined {
    const named = members.flatMap((member) => this.#sessionOf(member) ?? []);
    if (named.length < members.length) return undefined;
    const { name, incarnation } = this.#sessionOf(prefix?.from) ?? {};
    const of = name === undefined || incarnation === undefined ? undefined : { name, incarnation };
    const behind = prefix && { blocks: prefix.blocks, patienceUs: prefix.patienceUs, of };
    return { members: named, layers, chunkTokens, prefix: behind };
  }

  #tell(instance: InstanceIndex, order: InstanceCommand): void {
    const peer = this.#slots[instance]?.peer;
    if (peer !== undefined) this.#station.send(peer, encode(order));
  }
}

function noGroups(stageLayers: number | undefined): string {
  return stageLayers === undefined
    ? 'some layers of the model keep a window alone, it borrows memory, or it has no native kernels'
    : `the model has ${stageLayers} layers`;
}
