// Prompts that another process has prefilled and this one decodes: relays messages between the thread and the prefill instances.
import type { InstanceIndex, RequestId } from '../../core/protocol/ids.ts';
import { type Peer, type PeerHandler, PeerSession } from '../processes/peer-session.ts';
import { encode } from '../wire/codec.ts';
import { type HandOffWire, type PeerAnnouncement, readHandOff, readPeer } from '../wire/messages.ts';
import type { PeerWire } from './live-hand-offs.ts';
import type { PeerContext } from './peer-context.ts';
import type { OutgoingPrompt } from './remote-prompts-out.ts';

type Prefiller = Peer<PeerAnnouncement>;

/** A prefill instance. */
interface Source {
  /** The thread's index of it, a new one for each session. */
  readonly index: InstanceIndex;
  readonly peer: Prefiller;
  /** Expected prompts: the ids that requests have there, by their ids here. */
  readonly remoteIds: Map<RequestId, RequestId>;
}

export class RemotePromptsIn implements PeerHandler<PeerAnnouncement> {
  readonly #context: Omit<PeerContext, 'names'>;
  readonly #session: PeerSession<PeerAnnouncement>;
  readonly #sources = new Map<InstanceIndex, Source>();
  #indices = 0;
  readonly readAnnouncement = readPeer;

  constructor(context: Omit<PeerContext, 'names'>) {
    this.#context = context;
    this.#session = new PeerSession(context.process, 'decode', this);
  }

  start(): void {
    this.#session.start();
  }

  close(): void {
    this.#session.close();
  }

  /** The request has ended here or was cancelled. */
  forget(id: RequestId): void {
    for (const { remoteIds } of this.#sources.values()) remoteIds.delete(id);
  }

  /** Sends a message of the thread. */
  send(to: InstanceIndex, wire: PeerWire): void {
    const source = this.#sources.get(to);
    if (wire.kind !== 'message') throw new Error(`Cannot send ${wire.kind} to a prefill instance`);
    const { message, receiveBuffer } = wire;
    const id = source?.remoteIds.get(message.id);
    if (source === undefined || id === undefined) return;
    switch (message.kind) {
      case 'reserved':
        if (receiveBuffer !== undefined)
          this.#sendTo(source.peer, { kind: 'reserved', id, receiveBuffer, reservation: message.reservation });
        break;
      case 'received':
      case 'declined':
        source.remoteIds.delete(message.id);
        this.#sendTo(source.peer, { kind: message.kind, id });
        if (this.#isExpected(message.id)) break;
        if (message.kind === 'received') this.#context.requests.onReceived(message.id);
        else this.#context.requests.release(message.id);
        break;
      default:
        throw new Error(`Cannot send ${message.kind} to a prefill instance`);
    }
  }

  onJoined(peer: Prefiller): void {
    const index = this.#indices++;
    this.#sources.set(index, { index, peer, remoteIds: new Map() });
  }

  /** Releases prompts that have not been received completely. */
  onLost(peer: Prefiller): void {
    const source = this.#sourceOf(peer);
    if (source === undefined) return;
    this.#sources.delete(source.index);
    for (const id of [...source.remoteIds.keys()]) this.#release(source, id);
  }

  onMessage(peer: Prefiller, bytes: Uint8Array): void {
    const message = readHandOff(bytes);
    const source = this.#sourceOf(peer);
    if (source === undefined) return;
    if (message.kind === 'reserve') {
      this.#onReserve(source, message);
      return;
    }
    const id = localIdOf(source, message.id);
    if (id === undefined) return;
    switch (message.kind) {
      case 'firstEvents':
        this.#forward(source, { kind: 'firstEvents', id, events: message.events });
        break;
      case 'release':
        this.#release(source, id);
        break;
      case 'withdraw': {
        // The prompt stays expected.
        const withdraw = { kind: 'withdraw', id, reservation: message.reservation } as const;
        this.#forward(source, { kind: 'message', message: withdraw, receiveBuffer: undefined });
        break;
      }
      default:
        throw new Error(`Cannot receive ${message.kind} from a prefill instance`);
    }
  }

  #onReserve(source: Source, prompt: OutgoingPrompt): void {
    const parts = this.#partsOf(source, prompt);
    const id = parts && this.#context.requests.register(prompt.gateway, prompt.request, true);
    if (id === undefined) {
      this.#sendTo(source.peer, { kind: 'unknown', id: prompt.id });
      return;
    }
    if (parts !== undefined) this.#expect(source, id, parts);
    const senders = prompt.senders && Array.from(parts?.keys() ?? [], ({ index }) => index);
    const message = {
      kind: 'reserve',
      id,
      request: { ...prompt.request, id },
      senders,
      sendersRequest: prompt.sendersRequest,
      reservation: prompt.reservation,
      slotPages: prompt.slotPages,
    } as const;
    this.#forward(source, { kind: 'message', message, receiveBuffer: undefined });
  }

  /** A repeated request is for the part of its sender: the other parts may be here. A sender alone replaces its group. */
  #expect(source: Source, id: RequestId, parts: ReadonlyMap<Source, RequestId>): void {
    const isKnown = this.#isExpected(id);
    for (const other of this.#sources.values()) if (!parts.has(other)) other.remoteIds.delete(id);
    for (const [sender, remoteId] of parts) if (!isKnown || sender === source) sender.remoteIds.set(id, remoteId);
  }

  /** The senders of the prompt, and its id at each; undefined if one of them is not connected. */
  #partsOf(source: Source, { id, senders }: OutgoingPrompt): ReadonlyMap<Source, RequestId> | undefined {
    if (senders === undefined) return new Map([[source, id]]);
    const parts = new Map<Source, RequestId>();
    for (const { name, incarnation, id: remoteId } of senders) {
      const sender = this.#find(name, incarnation);
      if (sender === undefined) return undefined;
      parts.set(sender, remoteId);
    }
    return parts;
  }

  /** True while a part of the prompt has not been received. */
  #isExpected(id: RequestId): boolean {
    for (const { remoteIds } of this.#sources.values()) if (remoteIds.has(id)) return true;
    return false;
  }

  #release(source: Source, id: RequestId): void {
    source.remoteIds.delete(id);
    // The parts of the other senders are useless without this one.
    for (const { peer, remoteIds } of this.#sources.values()) {
      const remoteId = remoteIds.get(id);
      if (remoteId !== undefined) this.#sendTo(peer, { kind: 'unknown', id: remoteId });
      remoteIds.delete(id);
    }
    // Not `release`, which would not end a prompt that has just been received. Its sender has released it in any case.
    this.#context.thread.send({ kind: 'cancel', id });
    this.#context.requests.release(id);
  }

  #sendTo(peer: Prefiller, message: HandOffWire): void {
    this.#session.send(peer, encode(message));
  }

  /** To the thread. */
  #forward({ index: from }: Source, wire: PeerWire): void {
    this.#context.thread.send({ kind: 'peerMessage', from, wire });
  }

  #find(name: string, incarnation: number): Source | undefined {
    for (const source of this.#sources.values())
      if (source.peer.member.name === name && source.peer.member.incarnation === incarnation) return source;
    return undefined;
  }

  #sourceOf(peer: Prefiller): Source | undefined {
    for (const source of this.#sources.values()) if (source.peer === peer) return source;
    return undefined;
  }
}

function localIdOf({ remoteIds }: Source, remoteId: RequestId): RequestId | undefined {
  for (const [id, there] of remoteIds) if (there === remoteId) return id;
  return undefined;
}
