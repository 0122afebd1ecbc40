// An instance that serves the gateways of a cluster: what they order goes to its thread, what the thread says goes to whoever asked.
import { type Agreement, identityOf } from '../../core/membership/agreement.ts';
import type { InstanceIndex, PinId, RequestId } from '../../core/protocol/ids.ts';
import type { InstanceRole } from '../../core/protocol/instance-report.ts';
import type { GenerationEvent, GenerationRequest, InstanceSnapshot } from '../../core/protocol/ports.ts';
import type { Bus } from '../bus/bus.ts';
import { emptySnapshot } from '../snapshots/metric-snapshots.ts';
import { ArchiveDriver, limitSnapshot } from '../snapshots/snapshot-writer.ts';
import type { InstanceThread } from '../threads/instance-thread.ts';
import type { BlockRoot, OutputsMessage } from '../threads/thread-protocol.ts';
import type { PeerWire } from '../transfer/live-hand-offs.ts';
import { encode } from '../wire/codec.ts';
import {
  type GatewayAnnouncement,
  type InstanceCommand,
  type InstanceOutputs,
  type InstanceStatus,
  readCommand,
  readGateway,
} from '../wire/messages.ts';
import type { SessionName } from '../wire/names.ts';
import { GatewayPins } from './gateway-pins.ts';
import { GatewayTurns } from './gateway-turns.ts';
import { InstancePeers } from './instance-peers.ts';
import { type Peer, PeerSession } from './peer-session.ts';
import { requestName } from './request-names.ts';

export interface ClusterInstanceOptions {
  readonly bus: Bus;
  readonly name: string;
  readonly incarnation: number;
  readonly agreement: Agreement;
  readonly root: BlockRoot;
  readonly capacityTokens: number;
  /** Token ids are below. */
  readonly vocabSize: number;
  /** Undefined: no prefix can be fetched from it, or by it. */
  readonly fetchBytesPerToken: number | undefined;
  /** Layers of the model, of which a group may run ranges; undefined: it computes prompts whole. */
  readonly stageLayers: number | undefined;
  readonly thread: Pick<InstanceThread, 'send' | 'interrupt'>;
  readonly role: InstanceRole;
  /** May it be given another role? Then prompts of others may land here whatever it is. */
  readonly canSwitchRole: boolean;
  /** Is its process gManager? Undefined where nothing is lent. */
  readonly manages: () => boolean | undefined;
  /** Another process has joined under its name. */
  readonly onReplaced: () => void;
  readonly log: (message: string) => void;
}

type Gateway = Peer<GatewayAnnouncement>;

interface Standing {
  /** Tokens of output that the gateway has been told of. */
  outputs: number;
  /** There is nothing of it yet but memory for its prompt. */
  awaited: boolean;
}

/** Of a gateway, while its session lasts. */
interface Served {
  readonly peer: Gateway;
  readonly requests: Map<RequestId, Standing>;
  reports: number;
}

interface Owned {
  readonly served: Served;
  /** As the gateway calls it. */
  readonly id: RequestId;
}

const nothingToTell: InstanceOutputs = {
  ...{ events: [], prefilled: [], released: [], pins: [], steps: [] },
  ...{ kvEvents: [], kvSnapshot: undefined },
};

export class ClusterInstance {
  readonly #options: ClusterInstanceOptions;
  readonly #station: PeerSession<GatewayAnnouncement>;
  /** By session: a gateway that began anew is another one. */
  readonly #served = new Map<Gateway, Served>();
  /** By the names that requests have here: names of gateways' own may be the same. */
  readonly #owned = new Map<RequestId, Owned>();
  readonly #pins = new GatewayPins<Served>();
  readonly #peers: InstancePeers;
  readonly #blocks: ArchiveDriver<Served>;
  #role: InstanceRole;
  #snapshot: InstanceSnapshot = emptySnapshot;
  #journal = 0;
  #traces = false;

  constructor(options: ClusterInstanceOptions) {
    this.#options = options;
    const { bus, name, incarnation, log, onReplaced, root, agreement, capacityTokens, role, thread } = options;
    const { fetchBytesPerToken, stageLayers } = options;
    const own = { bus, name, incarnation, log };
    const identity = identityOf(root, agreement.hashKey);
    const about = {
      root,
      identity,
      canSwitchRole: options.canSwitchRole,
      capacityTokens,
      fetchBytesPerToken,
      stageLayers,
    };
    this.#role = role;
    const roleNow = (): InstanceRole => this.#role;
    this.#station = new PeerSession<GatewayAnnouncement>({
      ...own,
      onReplaced,
      kind: 'instance',
      get about() {
        return { ...about, role: roleNow() };
      },
      read: readGateway,
      onJoined: (peer) => {
        this.#served.set(peer, { peer, requests: new Map(), reports: 0 });
        this.#trace();
      },
      onLost: (peer) => this.#lose(peer),
      onMessage: (peer, message) => this.#take(peer, readCommand(message)),
      status: (peer) => encode(this.#status(peer)),
    });
    this.#peers = new InstancePeers({
      ...{ own, thread, role, stageLayers, switches: options.canSwitchRole, fetches: fetchBytesPerToken !== undefined },
      expect: (gateway, request, awaited) => this.#expect(gateway, request, awaited),
      landed: (here) => this.#land(here),
      left: (here) => this.#leave(here),
    });
    this.#blocks = new ArchiveDriver({
      ...{ snapshots: bus.snapshots, name, incarnation, log },
      list: () => thread.send({ kind: 'requestSnapshot' }),
      tellStored: ({ peer }, stored, journals) =>
        this.#tell(peer, { ...nothingToTell, snapshotNumber: stored, kvEvents: journals }),
    });
  }

  /** Says that it is there. */
  start(snapshot: InstanceSnapshot): void {
    this.#snapshot = snapshot;
    this.#peers.start();
    this.#station.start();
  }

  /** Gateways have their requests done elsewhere. Resolves when it has left nothing behind, or cannot help it. */
  close(): Promise<void> {
    this.#station.close();
    this.#peers.close();
    return this.#blocks.close();
  }

  /** The thread speaks to an instance of another process. */
  sendToPeer(to: InstanceIndex, wire: PeerWire): void {
    this.#peers.send(to, wire);
  }

  /** One turn of the thread's loop: to each gateway what is its own, and what the cache has to all. */
  onOutputs({
    events,
    snapshot,
    prefilled,
    released,
    pins,
    steps,
    kvEvents: journals,
    kvSnapshot: blocks,
  }: OutputsMessage): void {
    this.#snapshot = snapshot;
    this.#journal = journals.at(-1)?.number ?? this.#journal;
    const turns = new GatewayTurns<Served>();
    turns.addSteps(steps, (here) => {
      const owned = this.#owned.get(here);
      return owned?.served.peer.member.traces === true ? { gateway: owned.served, id: owned.id } : undefined;
    });
    const listens = this.#blocks.onKvEvents(journals, blocks);
    const told = blocks && limitSnapshot(blocks);
    if (journals.length > 0) for (const served of this.#served.values()) turns.of(served);
    for (const served of listens) turns.of(served);
    for (const here of prefilled) {
      const owned = this.#owned.get(here);
      if (owned !== undefined) turns.of(owned.served).prefilled.push(owned.id);
    }
    for (const [here, event] of events) {
      const owned = this.#owned.get(here);
      if (owned === undefined) continue;
      turns.of(owned.served).events.push([owned.id, event]);
      this.#count(here, owned, event);
    }
    for (const [here, why] of released) {
      const owned = this.#owned.get(here);
      if (owned === undefined) continue;
      turns.of(owned.served).released.push([owned.id, why]);
      this.#forget(here, owned);
      // Of a group it may have more: what gateways say of it is not heard any more.
      this.#options.thread.send({ kind: 'cancel', id: here });
    }
    for (const [here, state] of pins) {
      const pin = this.#pins.heard(here, state);
      if (pin !== undefined) turns.of(pin.gateway).pins.push([pin.id, state]);
    }
    for (const [served, turn] of turns)
      this.#tell(served.peer, { ...turn, kvEvents: journals, kvSnapshot: listens.has(served) ? told : undefined });
  }

  #count(here: RequestId, owned: Owned, event: GenerationEvent): void {
    if (event.kind === 'finished' || event.kind === 'failed') this.#forget(here, owned);
    if (event.kind !== 'tokens') return;
    const standing = owned.served.requests.get(owned.id);
    if (standing !== undefined) standing.outputs += event.tokens.length;
  }

  #forget(here: RequestId, { served, id }: Owned): void {
    served.requests.delete(id);
    this.#owned.delete(here);
    this.#peers.forget(here);
  }

  /** It is none of this instance's any more. */
  #leave(here: RequestId): void {
    const owned = this.#owned.get(here);
    if (owned !== undefined) this.#forget(here, owned);
  }

  /** A gateway's request of which something is to come here, from another instance. @param awaited nothing is computed of it here before it has landed */
  #expect(
    { name, incarnation, session }: SessionName,
    request: GenerationRequest,
    awaited: boolean,
  ): RequestId | undefined {
    const wrong = this.#unknownTokenOf(request);
    if (wrong !== undefined) throw new Error(wrong);
    for (const [peer, served] of this.#served)
      if (peer.member.name === name && peer.member.incarnation === incarnation && peer.session === session)
        return this.#own(served, request.id, awaited);
    return undefined;
  }

  #land(here: RequestId): void {
    const owned = this.#owned.get(here);
    const standing = owned?.served.requests.get(owned.id);
    if (standing !== undefined) standing.awaited = false;
  }

  #own(served: Served, id: RequestId, awaited: boolean): RequestId {
    const here = nameHere(served.peer, id);
    served.requests.set(id, { outputs: 0, awaited });
    this.#owned.set(here, { served, id });
    return here;
  }

  #take(peer: Gateway, order: InstanceCommand): void {
    const served = this.#served.get(peer);
    if (served === undefined) return;
    const { thread } = this.#options;
    switch (order.kind) {
      case 'submit':
        this.#submit(served, order);
        break;
      case 'cancel': {
        const here = nameHere(peer, order.id);
        if (!this.#owned.has(here)) return;
        this.#leave(here);
        thread.send({ kind: 'cancel', id: here });
        if (order.interrupt) thread.interrupt();
        break;
      }
      case 'pin':
        this.#pin(served, order);
        break;
      case 'unpin':
        thread.send({ kind: 'unpin', id: nameHere(peer, order.id) });
        break;
      case 'requestSnapshot':
        this.#blocks.onRequest(served, order.unread);
        break;
      case 'role':
        this.#switch(order.role);
    }
  }

  /** What it has goes on as it is. Gateways hear of changes in the order in which they were made. */
  #switch(role: InstanceRole): void {
    if (role === this.#role || !this.#options.canSwitchRole) return;
    this.#role = role;
    this.#options.log(`The role is ${role} from now on`);
    for (const { peer } of this.#served.values()) this.#tell(peer, { ...nothingToTell, role });
    // Whoever comes later reads it there.
    this.#station.announce();
  }

  /** Steps are recorded while a gateway wants to hear of them. */
  #trace(): void {
    const on = [...this.#served.keys()].some(({ member }) => member.traces);
    if (on === this.#traces) return;
    this.#traces = on;
    this.#options.thread.send({ kind: 'traces', on });
  }

  #pin(served: Served, { id, request, ttlUs }: Extract<InstanceCommand, { kind: 'pin' }>): void {
    const message = this.#unknownTokenOf(request);
    if (message !== undefined) {
      const pins = [[id, { kind: 'refused', why: 'failed', message }]] as const;
      this.#tell(served.peer, { ...nothingToTell, pins });
      return;
    }
    const here = nameHere(served.peer, id);
    this.#pins.add(here, served, id);
    this.#options.thread.send({ kind: 'pin', id: here, request: { ...request, id: here }, ttlUs });
  }

  #submit(served: Served, order: Extract<InstanceCommand, { kind: 'submit' }>): void {
    const { request } = order;
    const { id } = request;
    const wrong = this.#unknownTokenOf(request);
    if (wrong !== undefined) {
      const failed = { kind: 'failed', code: 'ENGINE_FAILED', message: wrong, retryAfterMs: undefined } as const;
      this.#tell(served.peer, { ...nothingToTell, events: [[id, failed]] });
      return;
    }
    const here = this.#own(served, id, false);
    const { name, incarnation } = served.peer.member;
    const legs = this.#peers.targetsOf(here, { name, incarnation }, order);
    this.#options.thread.send({ kind: 'submit', request: { ...request, id: here }, ...legs });
  }

  /** Kernels read what these ids point to. */
  #unknownTokenOf({ prompt, resumed, sampling: { logitBias } }: GenerationRequest): string | undefined {
    const { vocabSize } = this.#options;
    for (const list of [prompt, resumed?.tokens ?? [], logitBias.map(([token]) => token)])
      for (const token of list)
        if (token >= vocabSize) return `Cannot generate: token ${token} is not of the model: it has ${vocabSize}`;
    return undefined;
  }

  #lose(peer: Gateway): void {
    const served = this.#served.get(peer);
    this.#served.delete(peer);
    this.#trace();
    if (served !== undefined) {
      this.#blocks.onGatewayLost(served);
      for (const id of this.#pins.lose(served)) this.#options.thread.send({ kind: 'unpin', id });
    }
    for (const id of [...(served?.requests.keys() ?? [])]) {
      const here = nameHere(peer, id);
      this.#leave(here);
      this.#options.thread.send({ kind: 'cancel', id: here });
    }
  }

  #status(peer: Gateway): InstanceStatus {
    const served = this.#served.get(peer);
    const requests = Array.from(served?.requests ?? [], ([id, standing]) => ({ id, ...standing }));
    if (served !== undefined) served.reports++;
    const { lending, links, rowLinks, ...counted } = this.#snapshot;
    const snapshot = {
      ...counted,
      ...(links && { links: this.#peers.named(links) }),
      ...(rowLinks && { rowLinks: this.#peers.named(rowLinks) }),
      ...(lending && { lending: { ...lending, isManager: this.#options.manages() === true } }),
    };
    return { snapshot, number: served?.reports ?? 0, kvEventNumber: this.#journal, requests };
  }

  #tell(peer: Gateway, turn: InstanceOutputs): void {
    this.#station.send(peer, encode(turn));
  }
}

function nameHere({ member: { name, incarnation }, session }: Gateway, id: RequestId | PinId): string {
  return requestName({ name, incarnation, session }, id);
}
