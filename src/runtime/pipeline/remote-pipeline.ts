// Prompts that instances of different processes compute together: what the thread and the other members tell each other, over links on the bus.
import type { PipelineGroup, PipelineMessage } from '../../core/protocol/events.ts';
import type { InstanceIndex, RequestId } from '../../core/protocol/ids.ts';
import type { GenerationRequest } from '../../core/protocol/ports.ts';
import { type Peer, PeerSession } from '../processes/peer-session.ts';
import { requestName } from '../processes/request-names.ts';
import type { InstanceThread } from '../threads/instance-thread.ts';
import type { HandOffEnd } from '../transfer/hand-off-session.ts';
import type { PeerWire } from '../transfer/live-hand-offs.ts';
import type { DepartingPrompt } from '../transfer/remote-prompts-out.ts';
import { encode } from '../wire/codec.ts';
import { type PeerAnnouncement, readPeer } from '../wire/messages.ts';
import type { NamedGroup, SessionName } from '../wire/names.ts';
import { type PipelineWire, readPipelineWire } from '../wire/pipeline-messages.ts';
import { isActivationWire } from './pipeline-runner.ts';

export interface RemoteStagesOptions extends HandOffEnd {
  readonly thread: Pick<InstanceThread, 'send'>;
  /** An instance has this number from now on, for good. */
  readonly met: (index: InstanceIndex, name: string) => void;
  /** A gateway's request is computed here with others: the name that it has here; undefined where the session is not known. @throws Error where it cannot be taken */
  readonly expect: (gateway: SessionName, request: GenerationRequest) => RequestId | undefined;
  /** Layers of the model. */
  readonly layers: number;
  /** Of an instance that prefixes are fetched from: its index; undefined where it is not known (any more). */
  readonly sourceOf: (instance: Pick<SessionName, 'name' | 'incarnation'>) => InstanceIndex | undefined;
  /** It is to go on at that instance, whose index this gives. */
  readonly leaves: (leaving: DepartingPrompt, decodeAt: SessionName) => InstanceIndex;
}

type Other = Peer<PeerAnnouncement>;

/** A prompt of which this instance computes a part. */
export interface PipelineShare {
  /** The gateway, without its sessions. */
  readonly gateway: Pick<SessionName, 'name' | 'incarnation'>;
  /** As the gateway calls it. */
  readonly request: GenerationRequest;
  readonly group: NamedGroup;
  /** Of the members, this one. */
  readonly index: number;
  readonly decodeAt: SessionName;
}

/** One of them, with the members as the thread knows them. */
interface Joint extends PipelineShare {
  readonly members: readonly InstanceIndex[];
}

type ToMember = Extract<PeerWire, { kind: 'message' | 'rows' | 'rowsLand' | 'rowsUnwanted' }>;

/** The thread's indices of members, not to be taken for those of hand-offs and prefixes; the first is its own. */
const indicesFrom = 2 ** 21;

export class RemotePipeline {
  readonly #options: RemoteStagesOptions;
  readonly #station: PeerSession<PeerAnnouncement>;
  /** As the thread knows them: another index for each session. */
  readonly #others = new Map<InstanceIndex, Other>();
  readonly #joint = new Map<RequestId, Joint>();
  #indices = indicesFrom;

  constructor(options: RemoteStagesOptions) {
    this.#options = options;
    const { bus, name, incarnation, log } = options;
    this.#station = new PeerSession<PeerAnnouncement>({
      ...{ bus, name, incarnation, log, about: {} },
      kind: 'stage',
      read: readPeer,
      onJoined: (peer) => this.#join(peer),
      onLost: (peer) => this.#lose(peer),
      onMessage: (peer, message) => this.#hear(peer, readPipelineWire(message)),
    });
  }

  #join(peer: Other): void {
    this.#others.set(++this.#indices, peer);
    this.#options.met(this.#indices, peer.member.name);
  }

  start(): void {
    this.#station.start();
  }

  close(): void {
    this.#station.close();
  }

  /** Does the thread speak to a member by this index? */
  reaches(to: InstanceIndex): boolean {
    return to >= indicesFrom;
  }

  /** The group as the thread knows it; undefined where one of the members is not known (yet, or any more), or its layers are not those of the model. */
  join(here: RequestId, share: PipelineShare): PipelineGroup | undefined {
    const { group, index, gateway, request, decodeAt } = share;
    const { layers, prefix } = group;
    if (layers !== undefined && layers.reduce((sum, each) => sum + each, 0) !== this.#options.layers) return undefined;
    const members: InstanceIndex[] = [];
    for (const [place, { name, incarnation }] of group.members.entries()) {
      const member = place === index ? indicesFrom : this.#indexOf(name, incarnation);
      if (member === undefined) return undefined;
      members.push(member);
    }
    this.#joint.set(here, { ...share, members });
    const senders = group.members.map(({ name, incarnation }, place) => ({
      name,
      incarnation,
      id: nameOf(share, place),
    }));
    const leaving = { kind: 'reserve', id: here, gateway: { ...gateway, session: decodeAt.session }, request } as const;
    const to = this.#options.leaves({ ...leaving, senders }, decodeAt);
    // Of one's own nothing is fetched: nobody is asked.
    const from = prefix?.of && this.#options.sourceOf(prefix.of);
    const behind = prefix && { blocks: prefix.blocks, patienceUs: prefix.patienceUs, from };
    return { members, layers, chunkTokens: group.chunkTokens, decodeAt: to, prefix: behind };
  }

  /** It has ended here, or is cancelled. */
  forget(here: RequestId): void {
    this.#joint.delete(here);
  }

  /** The thread speaks. */
  send(to: InstanceIndex, wire: PeerWire): void {
    if (wire.kind !== 'message' && !isActivationWire(wire))
      throw new Error(`Cannot tell ${wire.kind} to a member of a group`);
    const other = this.#others.get(to);
    const told = other && this.#outward(to, wire);
    if (other !== undefined && told !== undefined) this.#station.send(other, encode(told));
    else if (wire.kind === 'rows') this.#unwanted(to, wire, other);
    if (wire.kind === 'message' && wire.message.kind === 'declinePipeline') this.#letGo(wire.message.id);
  }

  /** It is over, or the other one is gone: nobody is to keep rows for an answer, nor room for rows. */
  #unwanted(to: InstanceIndex, wire: Extract<ToMember, { kind: 'rows' }>, other: Other | undefined): void {
    this.#say(to, { kind: 'rowsUnwanted', number: wire.number });
    // By the name that it has here the other side knows no other request.
    if (other !== undefined && wire.landing !== undefined)
      this.#station.send(other, encode(wire satisfies PipelineWire));
  }

  /** Its gateway goes on hearing of it, or it would take the prompt for lost while another computes it, and cancels it when that one has. */
  #letGo(here: RequestId): void {
    this.#joint.delete(here);
  }

  #outward(to: InstanceIndex, wire: ToMember): PipelineWire | undefined {
    if (wire.kind === 'rowsLand' || wire.kind === 'rowsUnwanted') return wire;
    const here = wire.kind === 'rows' ? wire.id : wire.message.id;
    const joint = this.#joint.get(here);
    const place = joint?.members.indexOf(to) ?? -1;
    if (joint === undefined || place < 0) return undefined;
    const id = nameOf(joint, place);
    if (wire.kind === 'rows') return { ...wire, id };
    const { message } = wire;
    switch (message.kind) {
      case 'joinPipeline': {
        const { gateway, request, group, decodeAt } = joint;
        return { kind: 'joinPipeline', gateway, request, group, index: message.index, decodeAt };
      }
      case 'joinedPipeline':
        return { kind: 'joinedPipeline', id, cachedTokens: message.cachedTokens };
      case 'declinePipeline':
      case 'leavePipeline':
        return { kind: message.kind, id };
      default:
        throw new Error(`Cannot tell ${message.kind} to a member of a group`);
    }
  }

  #hear(peer: Other, told: PipelineWire): void {
    const from = this.#of(peer);
    if (from === undefined) return;
    switch (told.kind) {
      case 'joinPipeline':
        this.#enlisted(from, peer, told);
        break;
      case 'rows':
      case 'rowsLand':
      case 'rowsUnwanted':
        this.#say(from, told);
        break;
      default:
        if (this.#joint.get(told.id)?.members.includes(from) !== true) return;
        this.#tell(from, told);
        if (told.kind === 'leavePipeline') this.#letGo(told.id);
    }
  }

  #enlisted(from: InstanceIndex, peer: Other, told: Extract<PipelineWire, { kind: 'joinPipeline' }>): void {
    const { gateway, request, group, index } = told;
    const [{ name, incarnation }] = group.members;
    if (peer.member.name !== name || peer.member.incarnation !== incarnation)
      throw new Error('Cannot hear enlist: it leads no group');
    const here = this.#options.expect({ ...gateway, session: group.members[index].session }, request);
    const pipeline = here === undefined ? undefined : this.join(here, told);
    if (here === undefined || pipeline === undefined) {
      this.#station.send(peer, encode({ kind: 'declinePipeline', id: nameOf(told, 0) } satisfies PipelineWire));
      return;
    }
    this.#tell(from, { kind: 'joinPipeline', id: here, request: { ...request, id: here }, group: pipeline, index });
  }

  #tell(from: InstanceIndex, message: PipelineMessage): void {
    this.#say(from, { kind: 'message', message, landing: undefined });
  }

  #say(from: InstanceIndex, wire: PeerWire): void {
    this.#options.thread.send({ kind: 'peerMessage', from, wire });
  }

  /** What it computes with this one comes to nothing: gateways try it anew. */
  #lose(peer: Other): void {
    const index = this.#of(peer);
    if (index === undefined) return;
    this.#others.delete(index);
    this.#say(index, { kind: 'gone' });
    for (const [id, { members }] of this.#joint)
      if (members.includes(index)) this.#options.thread.send({ kind: 'streamBroken', id, to: index, passes: true });
  }

  #indexOf(name: string, incarnation: number): InstanceIndex | undefined {
    for (const [index, { member }] of this.#others)
      if (member.name === name && member.incarnation === incarnation) return index;
    return undefined;
  }

  #of(peer: Other): InstanceIndex | undefined {
    for (const [index, each] of this.#others) if (each === peer) return index;
    return undefined;
  }
}

/** What the member at that place calls the request. */
function nameOf(
  { gateway, group, request }: Pick<PipelineShare, 'gateway' | 'group' | 'request'>,
  place: number,
): RequestId {
  return requestName({ ...gateway, session: group.members[place].session }, request.id);
}
