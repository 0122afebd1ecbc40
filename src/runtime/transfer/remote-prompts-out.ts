// Prompts that are computed in this process and go on in another: what the thread and those who decode tell each other, over links on the bus.
import type { InstanceIndex, RequestId } from '../../core/protocol/ids.ts';
import { type Peer, type PeerSession, silentUs } from '../processes/peer-session.ts';
import type { InstanceThread } from '../threads/instance-thread.ts';
import { encode } from '../wire/codec.ts';
import type { HandOffWire, PeerAnnouncement } from '../wire/messages.ts';
import type { SessionName } from '../wire/names.ts';
import { type HandOffEnd, handOffSession } from './hand-off-session.ts';
import type { PeerWire } from './live-hand-offs.ts';

export interface PromptsOutOptions extends HandOffEnd {
  readonly thread: Pick<InstanceThread, 'send'>;
  /** An instance has this number from now on, for good. */
  readonly met: (index: InstanceIndex, name: string) => void;
  /** The request goes on elsewhere. */
  readonly taken: (here: RequestId) => void;
}

type Decoder = Peer<PeerAnnouncement>;
export type DepartingPrompt = Extract<HandOffWire, { kind: 'reserve' }>;

/** An instance that decodes. */
interface Destination {
  /** As the thread knows it: another one for each session. */
  readonly index: InstanceIndex;
  readonly name: string;
  readonly incarnation: number;
  /** Undefined: it is expected. */
  peer: Decoder | undefined;
  /** By the names that they have here. */
  readonly leaving: Map<RequestId, DepartingPrompt>;
  /** To be told once it is there. */
  waiting: HandOffWire[];
}

export class RemotePromptsOut {
  readonly #options: PromptsOutOptions;
  readonly #station: PeerSession<PeerAnnouncement>;
  readonly #destinations = new Map<InstanceIndex, Destination>();
  #indices = 0;

  constructor(options: PromptsOutOptions) {
    this.#options = options;
    this.#station = handOffSession('prefill', options, {
      join: (peer) => this.#join(peer),
      lose: (peer) => this.#lose(peer),
      hear: (peer, told) => this.#hear(peer, told),
    });
  }

  start(): void {
    this.#station.start();
  }

  close(): void {
    this.#station.close();
  }

  /** A request is to go on at that instance, whose index it returns. One that is not known yet is waited for, as long as anybody may be silent. */
  add(leaving: DepartingPrompt, { name, incarnation }: Pick<SessionName, 'name' | 'incarnation'>): InstanceIndex {
    const destination = this.#find(name, incarnation) ?? this.#await(name, incarnation);
    destination.leaving.set(leaving.id, leaving);
    return destination.index;
  }

  /** It has ended here, or is cancelled. */
  forget(here: RequestId): void {
    for (const { leaving } of this.#destinations.values()) leaving.delete(here);
  }

  /** The thread speaks. What it says to one that is gone, or of what has ended, is of no interest there. */
  send(to: InstanceIndex, wire: PeerWire): void {
    const destination = this.#destinations.get(to);
    const told = destination && outward(destination, wire);
    if (destination === undefined || told === undefined) return;
    if (destination.peer === undefined) destination.waiting.push(told);
    else this.#station.send(destination.peer, encode(told));
  }

  #hear(peer: Decoder, told: HandOffWire): void {
    const destination = this.#of(peer);
    if (destination?.leaving.has(told.id) !== true) return;
    const { id } = told;
    switch (told.kind) {
      case 'reserved':
        this.#say(destination, {
          kind: 'message',
          message: { kind: 'reserved', id, asking: told.asking },
          landing: told.landing,
        });
        break;
      case 'received':
      case 'declined':
        destination.leaving.delete(id);
        this.#say(destination, { kind: 'message', message: { kind: told.kind, id }, landing: undefined });
        if (told.kind === 'received') this.#options.taken(id);
        break;
      case 'unknown':
        this.#break(destination, id);
        break;
      default:
        throw new Error(`Cannot hear ${told.kind} from an instance that decodes`);
    }
  }

  #say({ index }: Destination, wire: PeerWire): void {
    this.#options.thread.send({ kind: 'peerMessage', from: index, wire });
  }

  /** The thread lets go of it, and its gateway tries it elsewhere. */
  #break({ index, leaving }: Destination, id: RequestId): void {
    leaving.delete(id);
    this.#options.thread.send({ kind: 'streamBroken', id, to: index });
  }

  #join(peer: Decoder): void {
    const { name, incarnation } = peer.member;
    const destination = this.#find(name, incarnation) ?? this.#open(name, incarnation);
    destination.peer = peer;
    for (const told of destination.waiting) this.#station.send(peer, encode(told));
    destination.waiting = [];
  }

  #lose(peer: Decoder): void {
    const destination = this.#of(peer);
    if (destination !== undefined) this.#end(destination);
  }

  #end(destination: Destination): void {
    this.#destinations.delete(destination.index);
    for (const id of [...destination.leaving.keys()]) this.#break(destination, id);
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
    const destination = { index, name, incarnation, peer: undefined, leaving: new Map(), waiting: [] };
    this.#destinations.set(index, destination);
    this.#options.met(index, name);
    return destination;
  }

  #find(name: string, incarnation: number): Destination | undefined {
    for (const each of this.#destinations.values())
      if (each.name === name && each.incarnation === incarnation) return each;
    return undefined;
  }

  #of(peer: Decoder): Destination | undefined {
    for (const each of this.#destinations.values()) if (each.peer === peer) return each;
    return undefined;
  }
}

function outward({ leaving }: Destination, wire: PeerWire): HandOffWire | undefined {
  if (wire.kind === 'held') return leaving.has(wire.id) ? { kind: 'held', id: wire.id, held: wire.held } : undefined;
  if (wire.kind !== 'message') throw new Error(`Cannot tell ${wire.kind} to an instance that decodes`);
  const { message } = wire;
  const { kind, id } = message;
  const leaves = leaving.get(id);
  switch (kind) {
    case 'reserve': {
      const { senders, asking } = message;
      // One whose group came to nothing sends all.
      return leaves && { ...leaves, senders: senders && leaves.senders, asking };
    }
    case 'release':
      // What was cancelled is known here no more, and there it still may be.
      return { kind, id };
    case 'withdraw':
      return { kind, id, asking: message.asking };
    default:
      throw new Error(`Cannot tell ${kind} to an instance that decodes`);
  }
}
