// Prompts that instances of different processes compute together: relays messages between the thread and the other members of the group.
import type { PipelineGroup, PipelineMessage } from '../../core/protocol/events.ts';
import type { InstanceIndex, RequestId } from '../../core/protocol/ids.ts';
import type { GenerationRequest } from '../../core/protocol/ports.ts';
import { type Peer, type PeerHandler, PeerSession } from '../processes/peer-session.ts';
import type { PeerWire } from '../transfer/live-hand-offs.ts';
import type { PeerContext } from '../transfer/peer-context.ts';
import type { RemotePrefixes } from '../transfer/remote-prefixes.ts';
import type { RemotePromptsOut } from '../transfer/remote-prompts-out.ts';
import { encode } from '../wire/codec.ts';
import { type PeerAnnouncement, readPeer } from '../wire/messages.ts';
import { type NamedGroup, requestName, type SessionName } from '../wire/names.ts';
import { type PipelineWire, readPipelineWire } from '../wire/pipeline-messages.ts';
import { isActivationWire } from './pipeline-runner.ts';

export interface RemotePipelineParts {
  /** Layers of the model. */
  readonly layers: number;
  /** Sends the finished prompts to decode instances. */
  readonly promptsOut: Pick<RemotePromptsOut, 'add'>;
  /** Undefined if prefixes are not fetched. */
  readonly prefixes: Pick<RemotePrefixes, 'indexOf'> | undefined;
}

type Member = Peer<PeerAnnouncement>;

/** A prompt of which this instance computes a range of the layers. */
export interface PipelineShare {
  /** The gateway, without its session. */
  readonly gateway: Pick<SessionName, 'name' | 'incarnation'>;
  /** The request under the gateway's id. */
  readonly request: GenerationRequest;
  readonly group: NamedGroup;
  /** Place of this instance among the members. */
  readonly index: number;
  readonly decodeAt: SessionName;
}

/** A share, with the thread's indices of the members. */
interface ActiveShare extends PipelineShare {
  readonly members: readonly InstanceIndex[];
}

type ToMember = Extract<PeerWire, { kind: 'message' | 'activations' | 'activationsBuffer' | 'activationsCancelled' }>;

/** First index of members, above the indices of hand-offs and prefixes. It is the index of this instance itself. */
const firstIndex = 2 ** 21;

export class RemotePipeline implements PeerHandler<PeerAnnouncement> {
  readonly #context: PeerContext;
  readonly #parts: RemotePipelineParts;
  readonly #session: PeerSession<PeerAnnouncement>;
  /** By the thread's index, a new one for each session. */
  readonly #members = new Map<InstanceIndex, Member>();
  readonly #shares = new Map<RequestId, ActiveShare>();
  #indices = firstIndex;
  readonly readAnnouncement = readPeer;

  constructor(context: PeerContext, parts: RemotePipelineParts) {
    this.#context = context;
    this.#parts = parts;
    this.#session = new PeerSession(context.process, 'stage', this);
  }

  start(): void {
    this.#session.start();
  }

  close(): void {
    this.#session.close();
  }

  /** True if the thread's index is that of a member of a group. */
  reaches(to: InstanceIndex): boolean {
    return to >= firstIndex;
  }

  /** Registers a share, and returns the group in terms of the thread. Undefined if a member is not connected, or the layers do not match the model. */
  join(id: RequestId, share: PipelineShare): PipelineGroup | undefined {
    const { group, index, gateway, request, decodeAt } = share;
    const { layers, prefix } = group;
    if (layers !== undefined && layers.reduce((sum, each) => sum + each, 0) !== this.#parts.layers) return undefined;
    const members: InstanceIndex[] = [];
    for (const [place, { name, incarnation }] of group.members.entries()) {
      const member = place === index ? firstIndex : this.#indexOf(name, incarnation);
      if (member === undefined) return undefined;
      members.push(member);
    }
    this.#shares.set(id, { ...share, members });
    const senders = group.members.map(({ name, incarnation }, place) => ({
      name,
      incarnation,
      id: remoteIdOf(share, place),
    }));
    const prompt = { kind: 'reserve', id, gateway: { ...gateway, session: decodeAt.session }, request } as const;
    const to = this.#parts.promptsOut.add({ ...prompt, senders }, decodeAt);
    // Undefined also for a prefix of this instance itself, which needs no fetch.
    const from = prefix?.of && this.#parts.prefixes?.indexOf(prefix.of);
    const groupPrefix = prefix && { blocks: prefix.blocks, patienceUs: prefix.patienceUs, from };
    return { members, layers, chunkTokens: group.chunkTokens, decodeAt: to, prefix: groupPrefix };
  }

  /** The request has ended here or was cancelled. */
  forget(id: RequestId): void {
    this.#shares.delete(id);
  }

  /** Sends a message of the thread. */
  send(to: InstanceIndex, wire: PeerWire): void {
    if (wire.kind !== 'message' && !isActivationWire(wire))
      throw new Error(`Cannot send ${wire.kind} to a member of a group`);
    const member = this.#members.get(to);
    const message = member && this.#outgoing(to, wire);
    if (member !== undefined && message !== undefined) this.#session.send(member, encode(message));
    else if (wire.kind === 'activations') this.#cancelActivations(to, wire, member);
    if (wire.kind === 'message' && wire.message.kind === 'declinePipeline') this.forget(wire.message.id);
  }

  /** The request has ended, or the member is lost: neither side keeps buffers for these activations. */
  #cancelActivations(
    to: InstanceIndex,
    wire: Extract<ToMember, { kind: 'activations' }>,
    member: Member | undefined,
  ): void {
    this.#forward(to, { kind: 'activationsCancelled', number: wire.number });
    // The id of this process matches no request there, so the member frees the buffer.
    if (member !== undefined && wire.receiveBuffer !== undefined)
      this.#session.send(member, encode(wire satisfies PipelineWire));
  }

  #outgoing(to: InstanceIndex, wire: ToMember): PipelineWire | undefined {
    if (wire.kind === 'activationsBuffer' || wire.kind === 'activationsCancelled') return wire;
    const share = this.#shares.get(wire.kind === 'activations' ? wire.id : wire.message.id);
    const place = share?.members.indexOf(to) ?? -1;
    if (share === undefined || place < 0) return undefined;
    const id = remoteIdOf(share, place);
    if (wire.kind === 'activations') return { ...wire, id };
    const { message } = wire;
    switch (message.kind) {
      case 'joinPipeline': {
        const { gateway, request, group, decodeAt } = share;
        return { kind: 'joinPipeline', gateway, request, group, index: message.index, decodeAt };
      }
      case 'joinedPipeline':
        return { kind: 'joinedPipeline', id, cachedTokens: message.cachedTokens };
      case 'declinePipeline':
      case 'leavePipeline':
        return { kind: message.kind, id };
      default:
        throw new Error(`Cannot send ${message.kind} to a member of a group`);
    }
  }

  onJoined(peer: Member): void {
    this.#members.set(++this.#indices, peer);
    this.#context.names.set(this.#indices, peer.member.name);
  }

  /** Prompts that it computes with this instance fail, and gateways retry them. */
  onLost(peer: Member): void {
    const index = this.#indexOfPeer(peer);
    if (index === undefined) return;
    this.#members.delete(index);
    this.#context.names.delete(index);
    this.#forward(index, { kind: 'ended' });
    for (const [id, { members }] of this.#shares)
      if (members.includes(index))
        this.#context.thread.send({ kind: 'streamBroken', id, to: index, ofActivations: true });
  }

  onMessage(peer: Member, bytes: Uint8Array): void {
    const message = readPipelineWire(bytes);
    const from = this.#indexOfPeer(peer);
    if (from === undefined) return;
    switch (message.kind) {
      case 'joinPipeline':
        this.#onJoin(from, peer, message);
        break;
      case 'activations':
      case 'activationsBuffer':
      case 'activationsCancelled':
        this.#forward(from, message);
        break;
      default: {
        if (this.#shares.get(message.id)?.members.includes(from) !== true) return;
        this.#forwardMessage(from, message);
        // The request stays reported to its gateway until the gateway cancels it: otherwise it would count as lost.
        if (message.kind === 'leavePipeline') this.forget(message.id);
      }
    }
  }

  #onJoin(from: InstanceIndex, peer: Member, message: Extract<PipelineWire, { kind: 'joinPipeline' }>): void {
    const { gateway, request, group, index } = message;
    const [{ name, incarnation }] = group.members;
    if (peer.member.name !== name || peer.member.incarnation !== incarnation)
      throw new Error('Cannot receive joinPipeline: its sender is not the first member of the group');
    const session = { ...gateway, session: group.members[index].session };
    const id = this.#context.requests.register(session, request, false);
    const pipeline = id === undefined ? undefined : this.join(id, message);
    if (id === undefined || pipeline === undefined) {
      this.#session.send(peer, encode({ kind: 'declinePipeline', id: remoteIdOf(message, 0) } satisfies PipelineWire));
      return;
    }
    this.#forwardMessage(from, { kind: 'joinPipeline', id, request: { ...request, id }, group: pipeline, index });
  }

  #forwardMessage(from: InstanceIndex, message: PipelineMessage): void {
    this.#forward(from, { kind: 'message', message, receiveBuffer: undefined });
  }

  /** To the thread. */
  #forward(from: InstanceIndex, wire: PeerWire): void {
    this.#context.thread.send({ kind: 'peerMessage', from, wire });
  }

  #indexOf(name: string, incarnation: number): InstanceIndex | undefined {
    for (const [index, { member }] of this.#members)
      if (member.name === name && member.incarnation === incarnation) return index;
    return undefined;
  }

  #indexOfPeer(peer: Member): InstanceIndex | undefined {
    for (const [index, member] of this.#members) if (member === peer) return index;
    return undefined;
  }
}

/** The id of the request at the member of that place. */
function remoteIdOf(
  { gateway, group, request }: Pick<PipelineShare, 'gateway' | 'group' | 'request'>,
  place: number,
): RequestId {
  return requestName({ ...gateway, session: group.members[place].session }, request.id);
}
