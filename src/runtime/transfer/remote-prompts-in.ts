// Prompts that were computed in another process and go on here: what the thread and those who prefill tell each other, over links on the bus.
import type { InstanceIndex, RequestId } from '../../core/protocol/ids.ts';
import type { Peer, PeerSession } from '../processes/peer-session.ts';
import type { InstanceThread } from '../threads/instance-thread.ts';
import { encode } from '../wire/codec.ts';
import type { HandOffWire, PeerAnnouncement } from '../wire/messages.ts';
import { type HandOffEnd, handOffSession } from './hand-off-session.ts';
import type { PeerWire } from './live-hand-offs.ts';
import type { DepartingPrompt } from './remote-prompts-out.ts';

export interface PromptsInOptions extends HandOffEnd {
  readonly thread: Pick<InstanceThread, 'send'>;
  /** A prompt is to land here: the name that its request has here; undefined where its gateway's session is not known. @throws Error where it cannot be taken */
  readonly expect: (leaving: DepartingPrompt) => RequestId | undefined;
  /** All of it is here. */
  readonly landed: (here: RequestId) => void;
  /** It will not come. */
  readonly left: (here: RequestId) => void;
}

type Prefiller = Peer<PeerAnnouncement>;

/** An instance that prefills. */
interface Source {
  /** As the thread knows it: another one for each session. */
  readonly index: InstanceIndex;
  readonly peer: Prefiller;
  /** What is expected: the names that requests have there, by those that they have here. */
  readonly theirs: Map<RequestId, RequestId>;
}

export class RemotePromptsIn {
  readonly #options: PromptsInOptions;
  readonly #station: PeerSession<PeerAnnouncement>;
  readonly #sources = new Map<InstanceIndex, Source>();
  #indices = 0;

  constructor(options: PromptsInOptions) {
    this.#options = options;
    this.#station = handOffSession('decode', options, {
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

  /** It is cancelled. */
  forget(here: RequestId): void {
    for (const { theirs } of this.#sources.values()) theirs.delete(here);
  }

  /** The thread speaks. */
  send(to: InstanceIndex, wire: PeerWire): void {
    const source = this.#sources.get(to);
    if (wire.kind !== 'message') throw new Error(`Cannot tell ${wire.kind} to an instance that prefills`);
    const { message, landing } = wire;
    const here = message.id;
    const id = source?.theirs.get(here);
    if (source === undefined || id === undefined) return;
    switch (message.kind) {
      case 'reserved':
        if (landing !== undefined) this.#tell(source.peer, { kind: 'reserved', id, landing, asking: message.asking });
        break;
      case 'received':
      case 'declined':
        source.theirs.delete(here);
        this.#tell(source.peer, { kind: message.kind, id });
        if (this.#isExpected(here)) break;
        if (message.kind === 'received') this.#options.landed(here);
        else this.#options.left(here);
        break;
      default:
        throw new Error(`Cannot tell ${message.kind} to an instance that prefills`);
    }
  }

  #tell(peer: Prefiller, told: HandOffWire): void {
    this.#station.send(peer, encode(told));
  }

  #hear(peer: Prefiller, told: HandOffWire): void {
    const source = this.#of(peer);
    if (source === undefined) return;
    if (told.kind === 'reserve') {
      this.#expect(source, told);
      return;
    }
    const here = hereOf(source, told.id);
    if (here === undefined) return;
    if (told.kind === 'held') this.#say(source, { kind: 'held', id: here, held: told.held });
    else if (told.kind === 'release') this.#release(source, here);
    // It stays expected.
    else if (told.kind === 'withdraw')
      this.#say(source, {
        kind: 'message',
        message: { kind: 'withdraw', id: here, asking: told.asking },
        landing: undefined,
      });
    else throw new Error(`Cannot hear ${told.kind} from an instance that prefills`);
  }

  #expect(source: Source, leaving: DepartingPrompt): void {
    const parts = this.#partsOf(source, leaving);
    const here = parts && this.#options.expect(leaving);
    if (here === undefined) {
      this.#tell(source.peer, { kind: 'unknown', id: leaving.id });
      return;
    }
    for (const [sender, id] of parts ?? []) sender.theirs.set(here, id);
    const senders = leaving.senders && Array.from(parts?.keys() ?? [], ({ index }) => index);
    const { asking } = leaving;
    const message = { kind: 'reserve', id: here, request: { ...leaving.request, id: here }, senders, asking } as const;
    this.#say(source, { kind: 'message', message, landing: undefined });
  }

  /** Who sends it, and what each calls it; undefined: one of them is not there. */
  #partsOf(source: Source, { id, senders }: DepartingPrompt): ReadonlyMap<Source, RequestId> | undefined {
    if (senders === undefined) return new Map([[source, id]]);
    const parts = new Map<Source, RequestId>();
    for (const { name, incarnation, id: theirs } of senders) {
      const sender = this.#find(name, incarnation);
      if (sender === undefined) return undefined;
      parts.set(sender, theirs);
    }
    return parts;
  }

  /** Is a part of it on its way? */
  #isExpected(here: RequestId): boolean {
    for (const { theirs } of this.#sources.values()) if (theirs.has(here)) return true;
    return false;
  }

  #release(source: Source, here: RequestId): void {
    source.theirs.delete(here);
    // Parts of others are in vain without this one's.
    for (const { peer, theirs } of this.#sources.values()) {
      const id = theirs.get(here);
      if (id !== undefined) this.#tell(peer, { kind: 'unknown', id });
      theirs.delete(here);
    }
    // Not `release`, which comes too late for what has just landed: whoever says it has seen to it that nobody wants that either.
    this.#options.thread.send({ kind: 'cancel', id: here });
    this.#options.left(here);
  }

  #say({ index: from }: Source, wire: PeerWire): void {
    this.#options.thread.send({ kind: 'peerMessage', from, wire });
  }

  #join(peer: Prefiller): void {
    const index = this.#indices++;
    this.#sources.set(index, { index, peer, theirs: new Map() });
  }

  /** Nothing more will come of what has not landed. */
  #lose(peer: Prefiller): void {
    const source = this.#of(peer);
    if (source === undefined) return;
    this.#sources.delete(source.index);
    for (const here of [...source.theirs.keys()]) this.#release(source, here);
  }

  #find(name: string, incarnation: number): Source | undefined {
    for (const each of this.#sources.values())
      if (each.peer.member.name === name && each.peer.member.incarnation === incarnation) return each;
    return undefined;
  }

  #of(peer: Prefiller): Source | undefined {
    for (const each of this.#sources.values()) if (each.peer === peer) return each;
    return undefined;
  }
}

function hereOf({ theirs }: Source, id: RequestId): RequestId | undefined {
  for (const [here, there] of theirs) if (there === id) return here;
  return undefined;
}
