// An instance that serves the gateways of a cluster: passes their commands to its thread, and the thread's outputs to the gateways.
import { type Agreement, identityOf } from '../../core/membership/agreement.ts';
import type { InstanceIndex, PinId, RequestId } from '../../core/protocol/ids.ts';
import type { InstanceRole, PlacedLoad } from '../../core/protocol/instance-report.ts';
import type { KvEventBatch } from '../../core/protocol/kv-events.ts';
import type { PinState } from '../../core/protocol/pin-order.ts';
import type {
  GenerationEvent,
  GenerationRequest,
  InstanceSnapshot,
  LendingSnapshot,
} from '../../core/protocol/ports.ts';
import { sizeOf } from '../../core/protocol/request-size.ts';
import { PlacedRequests } from '../../core/scheduler/placed-requests.ts';
import { assertNever } from '../../util/assert-never.ts';
import { ArchiveDriver, limitSnapshot } from '../snapshots/archive-driver.ts';
import { emptySnapshot } from '../snapshots/metric-snapshots.ts';
import type { InstanceThread } from '../threads/instance-thread.ts';
import type { BlockRoot, OutputsMessage, StepTrace } from '../threads/thread-protocol.ts';
import type { PeerWire } from '../transfer/live-hand-offs.ts';
import { PageReachability } from '../transfer/page-reachability.ts';
import type { RequestRegistry } from '../transfer/peer-context.ts';
import { encode } from '../wire/codec.ts';
import type { EngineCallPart, EngineHandOffInfo, PrefillAnswer } from '../wire/engine-messages.ts';
import {
  type GatewayAnnouncement,
  type InstanceAnnouncement,
  type InstanceCommand,
  type InstanceOutputs,
  type InstanceStatus,
  readCommand,
  readGateway,
} from '../wire/messages.ts';
import { requestName, type SessionName } from '../wire/names.ts';
import { InstancePeers } from './instance-peers.ts';
import { type ClusterProcess, type Peer, type PeerHandler, PeerSession } from './peer-session.ts';

/** How an external engine takes its part of a hand-off. */
export interface ExternalCalls {
  readonly info: EngineHandOffInfo;
  /** A prefill ends with `onPrefillAnswer`. */
  call(request: GenerationRequest, part: EngineCallPart): void;
}

export interface ClusterInstanceOptions extends ClusterProcess {
  readonly agreement: Agreement;
  readonly root: BlockRoot;
  readonly capacityTokens: number;
  /** Token ids are less than this. */
  readonly vocabSize: number;
  /** Undefined: no prefix can be fetched from the instance, or by it. */
  readonly fetchBytesPerToken: number | undefined;
  /** Layers of the model of which a group may run ranges; undefined: the instance computes whole prompts. */
  readonly stageLayers: number | undefined;
  /** Address at which pages of other processes are received, as HOST:PORT. */
  readonly pagesAddress: string | undefined;
  /** Instruction set of its kernels; undefined: requests continue on any other instance. */
  readonly isa: string | undefined;
  readonly thread: Pick<InstanceThread, 'send' | 'interrupt'> & Partial<Pick<InstanceThread, 'step'>>;
  /** Of an external engine, which hands prompts off by calls of the gateway; undefined: the thread does. */
  readonly engine?: ExternalCalls | undefined;
  readonly role: InstanceRole;
  /** The role may change: prompts of other instances are then received in every role. */
  readonly canSwitchRole: boolean;
  /** Whether this process runs the gManager; undefined if no memory is lent. */
  isManager(): boolean | undefined;
  /** Another process has joined under this name. */
  onReplaced(): void;
}

type Gateway = Peer<GatewayAnnouncement>;

const drainPollMs = 20;
/** Least time between two messages about the load of other gateways. */
const loadReportMs = 20;

/** A gateway's session. */
interface Client {
  readonly peer: Gateway;
  readonly requests: PlacedRequests;
  reports: number;
}

/** The client of a request or pin, and its id there. */
interface Owner<Id> {
  readonly client: Client;
  readonly id: Id;
}

const noOutputs: InstanceOutputs = {
  ...{ events: [], prefilled: [], released: [], pins: [], steps: [] },
  ...{ kvEvents: [], kvSnapshot: undefined },
};

export class ClusterInstance implements PeerHandler<GatewayAnnouncement> {
  readonly #options: ClusterInstanceOptions;
  readonly #identity: string;
  readonly #session: PeerSession<GatewayAnnouncement>;
  /** By session: a gateway that starts a new session is a new client. */
  readonly #clients = new Map<Gateway, Client>();
  /** By the ids of requests here, which are unique across gateways. */
  readonly #owners = new Map<RequestId, Owner<RequestId>>();
  readonly #pinOwners = new Map<PinId, Owner<PinId>>();
  readonly #peers: InstancePeers;
  readonly #archive: ArchiveDriver<Client>;
  readonly #reachability: PageReachability;
  #role: InstanceRole;
  #snapshot: InstanceSnapshot = emptySnapshot;
  /** Number of the last batch of KV events that was sent. */
  #kvEventNumber = 0;
  #traces = false;
  #draining = false;
  #isConnected = true;
  #isClosed = false;
  /** Set while a message about changed load is due. */
  #loadReport: NodeJS.Timeout | undefined;
  #loadReportedMs = 0;
  readonly #unwatch: () => void;
  readonly readAnnouncement = readGateway;

  constructor(options: ClusterInstanceOptions) {
    this.#options = options;
    const { bus, name, incarnation, thread, role, canSwitchRole, stageLayers, fetchBytesPerToken } = options;
    this.#identity = identityOf(options.root, options.agreement.hashKey);
    this.#role = role;
    const process = { bus, name, incarnation, log: (line: string): void => options.log(line) };
    this.#session = new PeerSession(process, 'instance', this);
    this.#unwatch = bus.watchConnection((up) => {
      this.#isConnected = up;
    });
    this.#reachability = new PageReachability({ ...process, own: options.pagesAddress });
    const requests: RequestRegistry = {
      register: (gateway, request, receiving) => this.#register(gateway, request, receiving),
      onReceived: (id) => this.#onReceived(id),
      release: (id) => this.#release(id),
    };
    const fetchesPrefixes = fetchBytesPerToken !== undefined;
    this.#peers = new InstancePeers({
      ...{ process, thread, requests, canSwitchRole, fetchesPrefixes, stageLayers },
      // Engines exchange no messages.
      role: options.engine === undefined ? role : 'mixed',
    });
    this.#archive = new ArchiveDriver(process, {
      requestSnapshot: () => thread.send({ kind: 'requestSnapshot' }),
      reportStored: ({ peer }: Client, snapshotNumber, kvEvents) =>
        this.#send(peer, { ...noOutputs, snapshotNumber, kvEvents }),
    });
  }

  /** Announces that the instance serves. */
  start(snapshot: InstanceSnapshot): void {
    this.#snapshot = snapshot;
    this.#peers.start();
    if (this.#options.pagesAddress !== undefined) this.#reachability.start();
    this.#session.start();
  }

  /** Gateways send no further requests. Resolves when all requests have ended and no memory is lent, or borrowed. */
  async drain(): Promise<void> {
    if (!this.#draining) {
      this.#draining = true;
      for (const { peer } of this.#clients.values()) this.#send(peer, { ...noOutputs, draining: true });
      if (this.#snapshot.lending !== undefined) this.#options.thread.send({ kind: 'drain' });
      // Later gateways read it from the announcement.
      this.#session.announce();
    }
    await new Promise<void>((resolve) => {
      const timer = setInterval(() => {
        if (!this.#isDrained) return;
        clearInterval(timer);
        resolve();
      }, drainPollMs);
      timer.unref();
    });
  }

  /** A gateway that has acknowledged the drain sends nothing more; what it sent before has arrived. */
  get #isDrained(): boolean {
    // No gateway receives the outputs of its requests: they continue elsewhere.
    if (this.#isClosed || !this.#isConnected) return true;
    const { lending } = this.#snapshot;
    const isKnown = [...this.#clients.keys()].every((peer) => this.#session.hasDelivered(peer));
    return isKnown && this.#owners.size === 0 && (lending === undefined || owesNothing(lending));
  }

  /** Gateways retry their requests elsewhere. Resolves when the stored snapshot is removed, or cannot be. */
  close(): Promise<void> {
    this.#isClosed = true;
    this.#unwatch();
    clearTimeout(this.#loadReport);
    this.#session.close();
    this.#reachability.close();
    this.#peers.close();
    return this.#archive.close();
  }

  /** Latest figures of the thread. */
  get snapshot(): InstanceSnapshot {
    return this.#snapshot;
  }

  get role(): InstanceRole {
    return this.#role;
  }

  /** Number of gateways with a session. */
  get gateways(): number {
    return this.#clients.size;
  }

  announcement(): Omit<InstanceAnnouncement, 'version' | 'name' | 'incarnation' | 'number'> {
    const { root, canSwitchRole, capacityTokens, fetchBytesPerToken, stageLayers, isa, pagesAddress } = this.#options;
    const { engine } = this.#options;
    const { unreachable } = this.#reachability;
    return {
      ...{ root, identity: this.#identity, canSwitchRole, capacityTokens, fetchBytesPerToken, stageLayers },
      ...{ role: this.#draining ? ('store' as const) : this.#role, isa, pages: pagesAddress, unreachable },
      ...(engine && { engine: engine.info }),
    };
  }

  /** Sends a message of the thread to an instance of another process. */
  sendToPeer(to: InstanceIndex, wire: PeerWire): void {
    this.#peers.send(to, wire);
  }

  /** Sends the outputs of the thread: to each gateway those of its own requests, and to all of them the KV events. */
  onOutputs({ snapshot, kvEvents, kvSnapshot, ...outputs }: OutputsMessage): void {
    if (snapshot !== undefined) this.#snapshot = snapshot;
    this.#kvEventNumber = kvEvents.at(-1)?.number ?? this.#kvEventNumber;
    const byClient = new OutputsByClient();
    this.#addSteps(byClient, outputs.steps);
    const recipients = this.#archive.onKvEvents(kvEvents, kvSnapshot);
    const limited = kvSnapshot && limitSnapshot(kvSnapshot);
    if (kvEvents.length > 0) for (const client of this.#clients.values()) byClient.of(client);
    for (const client of recipients) byClient.of(client);
    this.#addRequests(byClient, outputs);
    for (const [localId, state] of outputs.pins) {
      const owner = this.#pinOwners.get(localId);
      if (state.kind !== 'pinned') this.#pinOwners.delete(localId);
      if (owner !== undefined) byClient.of(owner.client).pins.push([owner.id, state]);
    }
    this.#sendAll(byClient, kvEvents, recipients, limited);
  }

  /** The engine has prefilled the prompt for another one, or has failed to: its part is over. */
  onPrefillAnswer(localId: RequestId, answer: PrefillAnswer): void {
    const owner = this.#owners.get(localId);
    if (owner === undefined) return;
    this.#forget(localId, owner);
    this.#send(owner.client.peer, { ...noOutputs, prefills: [[owner.id, answer]] });
  }

  #sendAll(
    byClient: OutputsByClient,
    kvEvents: readonly KvEventBatch[],
    recipients: ReadonlySet<Client>,
    kvSnapshot: OutputsMessage['kvSnapshot'],
  ): void {
    for (const [client, outputs] of byClient)
      this.#send(client.peer, { ...outputs, kvEvents, kvSnapshot: recipients.has(client) ? kvSnapshot : undefined });
  }

  #addRequests(
    byClient: OutputsByClient,
    { prefilled, events, released }: Pick<OutputsMessage, 'prefilled' | 'events' | 'released'>,
  ): void {
    for (const localId of prefilled) {
      const owner = this.#owners.get(localId);
      if (owner === undefined) continue;
      byClient.of(owner.client).prefilled.push(owner.id);
      owner.client.requests.prefilled(owner.id);
      this.#loadChanged();
    }
    for (const [localId, event] of events) {
      const owner = this.#owners.get(localId);
      if (owner === undefined) continue;
      byClient.of(owner.client).events.push([owner.id, event]);
      this.#countOutputs(localId, owner, event);
    }
    for (const [localId, ...reasons] of released) {
      const owner = this.#owners.get(localId);
      if (owner === undefined) continue;
      byClient.of(owner.client).released.push([owner.id, ...reasons]);
      this.#forget(localId, owner);
      // A group member may still hold parts of the prompt, and gateways cannot cancel it any more.
      this.#options.thread.send({ kind: 'cancel', id: localId });
    }
  }

  /** Each gateway receives the steps with rows of its own requests: all if it collects traces, else those of prompts. */
  #addSteps(byClient: OutputsByClient, steps: readonly StepTrace[]): void {
    for (const { rows, received = [], ...step } of steps) {
      const rowsOf = new Map<Client, StepTrace['rows'][number][]>();
      const times = new Map(received);
      const receivedOf = new Map<Client, [id: RequestId, atUs: number][]>();
      for (const [localId, from, count] of rows) {
        const owner = this.#owners.get(localId);
        if (owner === undefined || (count <= 1 && !owner.client.peer.member.traces)) continue;
        const own = rowsOf.get(owner.client) ?? [];
        own.push([owner.id, from, count]);
        rowsOf.set(owner.client, own);
        const atUs = times.get(localId);
        if (atUs !== undefined)
          receivedOf.set(owner.client, [...(receivedOf.get(owner.client) ?? []), [owner.id, atUs]]);
      }
      for (const [client, own] of rowsOf) {
        const ownReceived = receivedOf.get(client);
        byClient.of(client).steps.push({ ...step, rows: own, ...(ownReceived && { received: ownReceived }) });
      }
    }
  }

  #countOutputs(localId: RequestId, owner: Owner<RequestId>, event: GenerationEvent): void {
    if (event.kind === 'finished' || event.kind === 'failed') this.#forget(localId, owner);
    else if (owner.client.requests.observe(owner.id, event)) this.#loadChanged();
  }

  #forget(localId: RequestId, { client, id }: Owner<RequestId>): void {
    client.requests.delete(id);
    this.#loadChanged();
    this.#owners.delete(localId);
    this.#peers.forget(localId);
  }

  #release(localId: RequestId): void {
    const owner = this.#owners.get(localId);
    if (owner !== undefined) this.#forget(localId, owner);
  }

  #register(
    { name, incarnation, session }: SessionName,
    request: GenerationRequest,
    receiving: boolean,
  ): RequestId | undefined {
    const refusal = this.#refusalOf(request);
    if (refusal !== undefined) throw new Error(refusal);
    for (const [peer, client] of this.#clients)
      if (peer.member.name === name && peer.member.incarnation === incarnation && peer.session === session)
        return this.#addRequest(client, request, receiving);
    return undefined;
  }

  #onReceived(localId: RequestId): void {
    const owner = this.#owners.get(localId);
    owner?.client.requests.received(owner.id);
  }

  /** @param cachedTokens predicted by the gateway */
  #addRequest(client: Client, request: GenerationRequest, receiving: boolean, cachedTokens = 0): RequestId {
    const { id, priority, tenant, batch = false } = request;
    const localId = localIdOf(client.peer, id);
    const { promptTokens } = sizeOf(request);
    client.requests.add(id, { priority, tenant, promptTokens, cachedTokens, batch }, receiving);
    this.#loadChanged();
    this.#owners.set(localId, { client, id });
    return localId;
  }

  /** Each gateway receives the load of the others soon: their next placements depend on it. */
  #loadChanged(): void {
    if (this.#isClosed || this.#loadReport !== undefined || this.#clients.size < 2) return;
    const delayMs = Math.max(0, this.#loadReportedMs + loadReportMs - performance.now());
    this.#loadReport = setTimeout(() => {
      this.#loadReport = undefined;
      this.#loadReportedMs = performance.now();
      for (const client of this.#clients.values())
        this.#send(client.peer, { ...noOutputs, others: this.#loadBeside(client) });
    }, delayMs);
    this.#loadReport.unref();
  }

  /** The load of all gateways but this one. */
  #loadBeside(client: Client | undefined): PlacedLoad {
    const others = [...this.#clients.values()].filter((each) => each !== client);
    return PlacedRequests.loadOf(others.map(({ requests }) => requests));
  }

  onReplaced(): void {
    this.#options.onReplaced();
  }

  onJoined(peer: Gateway): void {
    this.#clients.set(peer, { peer, requests: new PlacedRequests(), reports: 0 });
    this.#updateTraces();
    // The gateway may have joined by an announcement from before the drain.
    if (this.#draining) this.#send(peer, { ...noOutputs, draining: true });
  }

  /** Cancels the requests and pins of the gateway. */
  onLost(peer: Gateway): void {
    const client = this.#clients.get(peer);
    this.#clients.delete(peer);
    this.#updateTraces();
    if (client === undefined) return;
    this.#archive.onGatewayLost(client);
    for (const [localId, owner] of this.#pinOwners) {
      if (owner.client !== client) continue;
      this.#pinOwners.delete(localId);
      this.#options.thread.send({ kind: 'unpin', id: localId });
    }
    for (const id of [...client.requests.ids]) {
      const localId = localIdOf(peer, id);
      this.#release(localId);
      this.#options.thread.send({ kind: 'cancel', id: localId });
    }
  }

  onMessage(peer: Gateway, bytes: Uint8Array): void {
    const command = readCommand(bytes);
    const client = this.#clients.get(peer);
    if (client === undefined) return;
    switch (command.kind) {
      case 'submit':
        this.#submit(client, command);
        break;
      case 'cancel':
        this.#cancel(localIdOf(peer, command.id), command.interrupt);
        break;
      case 'prefilled':
        client.requests.received(command.id);
        break;
      case 'pin':
        this.#pin(client, command);
        break;
      case 'unpin':
        this.#options.thread.send({ kind: 'unpin', id: localIdOf(peer, command.id) });
        break;
      case 'requestSnapshot':
        this.#archive.onRequest(client, command.unreadable);
        break;
      case 'role':
        this.#switchRole(command.role);
        break;
      default:
        assertNever(command);
    }
  }

  #cancel(localId: RequestId, interrupt: boolean): void {
    if (!this.#owners.has(localId)) return;
    const { thread } = this.#options;
    this.#release(localId);
    thread.send({ kind: 'cancel', id: localId });
    if (interrupt) thread.interrupt();
  }

  /** Running requests continue. All gateways receive role changes in the same order. */
  #switchRole(role: InstanceRole): void {
    if (role === this.#role || !this.#options.canSwitchRole) return;
    this.#role = role;
    this.#options.log(`The role is ${role} from now on`);
    for (const { peer } of this.#clients.values()) this.#send(peer, { ...noOutputs, role });
    // Later gateways read the role from the announcement.
    this.#session.announce();
  }

  /** Every step is recorded while a gateway collects traces, else steps of prompts. */
  #updateTraces(): void {
    const on = [...this.#clients.keys()].some(({ member }) => member.traces);
    if (on === this.#traces) return;
    this.#traces = on;
    this.#options.thread.send({ kind: 'traces', on });
  }

  #pin(client: Client, { id, request, ttlUs }: Extract<InstanceCommand, { kind: 'pin' }>): void {
    const message = this.#refusalOf(request);
    if (message !== undefined) {
      const pins = [[id, { kind: 'refused', why: 'failed', message }]] as const;
      this.#send(client.peer, { ...noOutputs, pins });
      return;
    }
    const localId = localIdOf(client.peer, id);
    this.#pinOwners.set(localId, { client, id });
    this.#options.thread.send({ kind: 'pin', id: localId, request: { ...request, id: localId }, ttlUs });
  }

  #submit(client: Client, command: Extract<InstanceCommand, { kind: 'submit' }>): void {
    const { request } = command;
    const { id } = request;
    const isForeign = command.engineCall !== undefined && this.#options.engine === undefined;
    const refusal = isForeign ? 'Cannot generate: this is no external engine' : this.#refusalOf(request);
    if (refusal !== undefined) {
      const failed = { kind: 'failed', code: 'ENGINE_FAILED', message: refusal, retryAfterMs: undefined } as const;
      this.#send(client.peer, { ...noOutputs, events: [[id, failed]] });
      return;
    }
    const { engineCall, cachedTokens } = command;
    const receiving = engineCall?.leg === 'decode' && engineCall.receiving;
    const localId = this.#addRequest(client, request, receiving, cachedTokens);
    if (engineCall !== undefined) {
      this.#options.engine?.call({ ...request, id: localId }, engineCall);
      return;
    }
    const { name, incarnation } = client.peer.member;
    const targets = this.#peers.targetsOf(localId, { name, incarnation }, command);
    this.#options.thread.send({ kind: 'submit', request: { ...request, id: localId }, ...targets });
  }

  /** Kernels use token ids as indices, without a check. */
  #refusalOf({ prompt, resumed, sampling: { logitBias } }: GenerationRequest): string | undefined {
    const { vocabSize } = this.#options;
    for (const list of [prompt, resumed?.tokens ?? [], logitBias.map(([token]) => token)])
      for (const token of list)
        if (token >= vocabSize)
          return `Cannot generate: token ${token} is not in the vocabulary of ${vocabSize} tokens`;
    return undefined;
  }

  status(peer: Gateway): Uint8Array {
    const client = this.#clients.get(peer);
    const requests = client?.requests.reported() ?? [];
    if (client !== undefined) client.reports++;
    const { lending, links, activationLinks, ...rest } = this.#snapshot;
    const snapshot = {
      ...rest,
      ...this.#peers.named({ ...(links && { links }), ...(activationLinks && { activationLinks }) }),
      ...(lending && { lending: { ...lending, isManager: this.#options.isManager() === true } }),
    };
    const kvEventNumber = this.#kvEventNumber;
    const { unreachable } = this.#reachability;
    const number = client?.reports ?? 0;
    const hasOthers = this.#clients.size > (client === undefined ? 0 : 1);
    const placed = hasOthers && { others: this.#loadBeside(client) };
    const { step } = this.#options.thread;
    return encode({
      ...{ snapshot, number, kvEventNumber, requests, unreachable, ...placed },
      ...(step && { step }),
    } satisfies InstanceStatus);
  }

  #send(peer: Gateway, outputs: InstanceOutputs): void {
    this.#session.send(peer, encode(outputs));
  }
}

/** Cached blocks are not waited for: they can be computed again. */
function owesNothing({ lentBlocks, remoteBlocks, remoteCachedBlocks }: LendingSnapshot): boolean {
  return lentBlocks === 0 && remoteBlocks === remoteCachedBlocks;
}

/** Outputs of one iteration of the loop for one client. */
interface ClientOutputs {
  readonly events: [RequestId, GenerationEvent][];
  readonly prefilled: RequestId[];
  readonly released: OutputsMessage['released'][number][];
  readonly pins: [PinId, PinState][];
  readonly steps: StepTrace[];
}

class OutputsByClient {
  readonly #outputs = new Map<Client, ClientOutputs>();

  of(client: Client): ClientOutputs {
    const known = this.#outputs.get(client);
    if (known !== undefined) return known;
    const outputs: ClientOutputs = { events: [], prefilled: [], released: [], pins: [], steps: [] };
    this.#outputs.set(client, outputs);
    return outputs;
  }

  [Symbol.iterator](): Iterator<[Client, ClientOutputs]> {
    return this.#outputs.entries();
  }
}

function localIdOf({ member: { name, incarnation }, session }: Gateway, id: RequestId | PinId): string {
  return requestName({ name, incarnation, session }, id);
}
