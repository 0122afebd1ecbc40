// Prompts that this process prefills and another one decodes: relays messages between the thread and the decode instances.
import type { InstanceIndex, RequestId } from '../../core/protocol/ids.ts';
import { type Peer, type PeerHandler, PeerSession, silentUs } from '../processes/peer-session.ts';
import { encode } from '../wire/codec.ts';
import { type HandOffWire, type PeerAnnouncement, readHandOff, readPeer } from '../wire/messages.ts';
import type { SessionName } from '../wire/names.ts';
import type { PeerWire } from './live-hand-offs.ts';
import type { PeerContext } from './peer-context.ts';

type Decoder = Peer<PeerAnnouncement>;
export type OutgoingPrompt = Extract<HandOffWire, { kind: 'reserve' }>;

/** A decode instance. */
interface Destination {
  /** The thread's index of it, a new one for each session. */
  readonly index: InstanceIndex;
  readonly name: string;
  readonly incarnation: number;
  /** Undefined until it has joined. */
  peer: Decoder | undefined;
  /** By their ids here. */
  readonly prompts: Map<RequestId, OutgoingPrompt>;
  /** Messages kept until it has joined. */
  queued: HandOffWire[];
}

export class RemotePromptsOut implements PeerHandler<PeerAnnouncement> {
  readonly #context: PeerContext;
  readonly #session: PeerSession<PeerAnnouncement>;
  readonly #destinations = new Map<InstanceIndex, Destination>();
  #indices = 0;
  readonly readAnnouncement = readPeer;

  constructor(context: PeerContext) {
    this.#context = context;
    this.#session = new PeerSession(context.process, 'prefill', this);
  }

  start(): void {
    this.#session.start();
  }

  close(): void {
    this.#session.close();
  }

  /** Registers a prompt for a decode instance, and returns the index of that instance. One that has not joined yet is awaited for the heartbeat timeout. */
  add(prompt: OutgoingPrompt, { name, incarnation }: Pick<SessionName, 'name' | 'incarnation'>): InstanceIndex {
    const destination = this.#find(name, incarnation) ?? this.#await(name, incarnation);
    destination.prompts.set(prompt.id, prompt);
    return destination.index;
  }

  /** The request has ended here or was cancelled. */
  forget(id: RequestId): void {
    for (const { prompts } of this.#destinations.values()) prompts.delete(id);
  }

  /** Sends a message of the thread. Messages to a lost instance, or about ended requests, are dropped. */
  send(to: InstanceIndex, wire: PeerWire): void {
    const destination = this.#destinations.get(to);
    const message = destination && outgoing(destination, wire);
    if (destination === undefined || message === undefined) return;
    if (destination.peer === undefined) destination.queued.push(message);
    else this.#session.send(destination.peer, encode(message));
  }

  onJoined(peer: Decoder): void {
    const { name, incarnation } = peer.member;
    const destination = this.#find(name, incarnation) ?? this.#open(name, incarnation);
    destination.peer = peer;
    for (const message of destination.queued) this.#session.send(peer, encode(message));
    destination.queued = [];
  }

  onLost(peer: Decoder): void {
    const destination = this.#destinationOf(peer);
    if (destination !== undefined) this.#end(destination);
  }

  onMessage(peer: Decoder, bytes: Uint8Array): void {
    const message = readHandOff(bytes);
    const destination = this.#destinationOf(peer);
    if (destination?.prompts.has(message.id) !== true) return;
    const { id } = message;
    switch (message.kind) {
      case 'reserved': {
        const reserved = { kind: 'reserved', id, reservation: message.reservation } as const;
        this.#forward(destination, { kind: 'message', message: reserved, receiveBuffer: message.receiveBuffer });
        break;
      }
      case 'received':
      case 'declined':
        destination.prompts.delete(id);
        this.#forward(destination, { kind: 'message', message: { kind: message.kind, id }, receiveBuffer: undefined });
        if (message.kind === 'received') this.#context.requests.release(id);
        break;
      case 'unknown':
        this.#break(destination, id);
        break;
      default:
        throw new Error(`Cannot receive ${message.kind} from a decode instance`);
    }
  }

  /** To the thread. */
  #forward({ index }: Destination, wire: PeerWire): void {
    this.#context.thread.send({ kind: 'peerMessage', from: index, wire });
  }

  /** The thread releases the request, and its gateway retries it elsewhere. */
  #break({ index, prompts }: Destination, id: RequestId): void {
    prompts.delete(id);
    this.#context.thread.send({ kind: 'streamBroken', id, to: index });
  }

  #end(destination: Destination): void {
    this.#destinations.delete(destination.index);
    this.#context.names.delete(destination.index);
    for (const id of [...destination.prompts.keys()]) this.#break(destination, id);
    this.#forward(destination, { kind: 'ended' });
  }

  #await(name: string, incarnation: number): Destination {
    const destination = this.#open(name, incarnation);
    const giveUp = (): void => {
      if (destination.peer === undefined) this.#end(destination);
    };
    setTimeout(giveUp, silentUs / 1000).unref();
    return destination;
  }

  #open(name: string, incarnation: number): Destination {
    const index = this.#indices++;
    const destination = { index, name, incarnation, peer: undefined, prompts: new Map(), queued: [] };
    this.#destinations.set(index, destination);
    this.#context.names.set(index, name);
    return destination;
  }

  #find(name: string, incarnation: number): Destination | undefined {
    for (const destination of this.#destinations.values())
      if (destination.name === name && destination.incarnation === incarnation) return destination;
    return undefined;
  }

  #destinationOf(peer: Decoder): Destination | undefined {
    for (const destination of this.#destinations.values()) if (destination.peer === peer) return destination;
    return undefined;
  }
}

function outgoing({ prompts }: Destination, wire: PeerWire): HandOffWire | undefined {
  if (wire.kind === 'firstEvents') return prompts.has(wire.id) ? wire : undefined;
  if (wire.kind !== 'message') throw new Error(`Cannot send ${wire.kind} to a decode instance`);
  const { message } = wire;
  const { kind, id } = message;
  const prompt = prompts.get(id);
  switch (kind) {
    case 'reserve': {
      const { senders, sendersRequest, reservation, slotPages } = message;
      // After its group has failed, one instance sends the whole prompt.
      return prompt && { ...prompt, senders: senders && prompt.senders, sendersRequest, reservation, slotPages };
    }
    case 'release':
      // A cancelled request is unknown here, but may still be reserved there.
      return { kind, id };
    case 'withdraw':
      return { kind, id, reservation: message.reservation };
    default:
      throw new Error(`Cannot send ${kind} to a decode instance`);
  }
}
