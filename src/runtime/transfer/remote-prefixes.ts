// Prefixes that instances of different processes fetch from one another: what the thread and the others tell each other, over links on the bus.
import type { PrefixMessage } from '../../core/protocol/events.ts';
import type { InstanceIndex, RequestId } from '../../core/protocol/ids.ts';
import { scramble } from '../../util/scramble.ts';
import type { Bus } from '../bus/bus.ts';
import { type Peer, PeerSession } from '../processes/peer-session.ts';
import type { InstanceThread } from '../threads/instance-thread.ts';
import { encode } from '../wire/codec.ts';
import { type FetcherAnnouncement, type FetchWire, readFetch, readFetcher } from '../wire/messages.ts';
import type { SessionName } from '../wire/names.ts';
import type { PeerWire } from './live-hand-offs.ts';
import type { PrefixWire } from './live-prefixes.ts';

export interface RemotePrefixesOptions {
  readonly bus: Bus;
  readonly name: string;
  readonly incarnation: number;
  readonly thread: Pick<InstanceThread, 'send'>;
  /** An instance has this number from now on, for good. */
  readonly met: (index: InstanceIndex, name: string) => void;
  /** It is a store. */
  readonly keeps: boolean;
  readonly log: (message: string) => void;
}

type Other = Peer<FetcherAnnouncement>;

/** Another instance. */
interface Correspondent {
  /** As the thread knows it: another one for each session. */
  readonly index: InstanceIndex;
  readonly peer: Other;
}

/** What the thread says to another instance about a prefix. */
export type PrefixPeerWire =
  | PrefixWire
  | {
      readonly kind: 'message';
      readonly message: PrefixMessage;
      readonly landing: Extract<PeerWire, { kind: 'message' }>['landing'];
    };

/** The thread's indices of these instances, not to be taken for those of hand-offs. */
const indicesFrom = 2 ** 20;

export class RemotePrefixes {
  readonly #options: RemotePrefixesOptions;
  readonly #station: PeerSession<FetcherAnnouncement>;
  readonly #others = new Map<InstanceIndex, Correspondent>();
  #indices = indicesFrom;

  constructor(options: RemotePrefixesOptions) {
    this.#options = options;
    const { bus, name, incarnation, log, keeps } = options;
    this.#station = new PeerSession<FetcherAnnouncement>({
      ...{ bus, name, incarnation, log },
      kind: 'fetcher',
      about: { isStore: keeps },
      read: readFetcher,
      onJoined: (peer) => this.#join(peer),
      onLost: (peer) => this.#lose(peer),
      onMessage: (peer, message) => this.#hear(peer, readFetch(message)),
    });
  }

  start(): void {
    this.#station.start();
  }

  close(): void {
    this.#station.close();
  }

  /** Undefined: it cannot be asked (yet, or any more). */
  indexOf({ name, incarnation }: Pick<SessionName, 'name' | 'incarnation'>): InstanceIndex | undefined {
    for (const { index, peer } of this.#others.values())
      if (peer.member.name === name && peer.member.incarnation === incarnation) return index;
    return undefined;
  }

  /** The thread speaks. */
  send(to: InstanceIndex, wire: PrefixPeerWire): void {
    const other = this.#others.get(to);
    if (other !== undefined) this.#station.send(other.peer, encode(outward(other, wire)));
    // It has gone since: nobody has to wait for an answer.
    else if (wire.kind === 'message' && wire.message.kind === 'fetch') this.#say(to, missing(wire.message.id));
  }

  #say(from: InstanceIndex, wire: PeerWire): void {
    this.#options.thread.send({ kind: 'peerMessage', from, wire });
  }

  #hear(peer: Other, told: FetchWire): void {
    const other = this.#of(peer);
    if (other !== undefined) this.#say(other.index, inward(other, told));
  }

  #join(peer: Other): void {
    const index = this.#indices++;
    this.#others.set(index, { index, peer });
    this.#options.met(index, peer.member.name);
    if (peer.member.isStore) this.#tellStores();
  }

  /** Both ends go on without the other. */
  #lose(peer: Other): void {
    const other = this.#of(peer);
    if (other === undefined) return;
    this.#others.delete(other.index);
    this.#say(other.index, { kind: 'gone' });
    if (peer.member.isStore) this.#tellStores();
  }

  /** What this one computes may be offered to them: not by stores, which compute nothing. */
  #tellStores(): void {
    if (this.#options.keeps) return;
    const stores = [...this.#others.values()].flatMap(({ index, peer: { member } }) =>
      member.isStore ? [{ instance: index, key: keyOf(member.name) }] : [],
    );
    this.#options.thread.send({ kind: 'stores', stores });
  }

  #of(peer: Other): Correspondent | undefined {
    for (const each of this.#others.values()) if (each.peer === peer) return each;
    return undefined;
  }
}

export function isPrefixPeerWire(wire: PeerWire): wire is PrefixPeerWire {
  if (wire.kind === 'prefix' || wire.kind === 'prefixHere') return true;
  if (wire.kind !== 'message') return false;
  const { kind } = wire.message;
  return kind === 'fetch' || kind === 'offer' || kind === 'missing' || kind === 'unwanted';
}

function missing(id: RequestId): PeerWire {
  return { kind: 'message', message: { kind: 'missing', id }, landing: undefined };
}

/** Alike in all processes. */
function keyOf(name: string): number {
  let key = 0;
  for (let i = 0; i < name.length; i++) key = scramble(key ^ name.charCodeAt(i));
  return key;
}

/** Requests of others may have the names of our own. */
function nameOf({ index }: Correspondent, theirs: RequestId): RequestId {
  return `${index}/${theirs}`;
}

function outward(other: Correspondent, wire: PrefixPeerWire): FetchWire {
  const theirs = (id: RequestId): RequestId => id.slice(nameOf(other, '').length);
  if (wire.kind === 'prefix') return { kind: 'prefix', id: theirs(wire.id), blocks: wire.blocks };
  if (wire.kind === 'prefixHere') return wire;
  const { message, landing } = wire;
  if (message.kind === 'missing') return { kind: 'missing', id: theirs(message.id) };
  if (message.kind === 'unwanted' || message.kind === 'offer') return message;
  if (landing === undefined) throw new Error('Cannot fetch a prefix: it has no landing');
  const { id, from, chain, range } = message;
  return { kind: 'fetch', id, from, landing, range, chain: { blocks: chain.blocks, words: chain.words } };
}

function inward(other: Correspondent, told: FetchWire): PeerWire {
  const { id } = told;
  switch (told.kind) {
    case 'prefix':
      return told;
    case 'missing':
      return missing(id);
    case 'prefixHere':
      return { kind: 'prefixHere', id: nameOf(other, id) };
    case 'unwanted':
      return { kind: 'message', message: { kind: 'unwanted', id: nameOf(other, id) }, landing: undefined };
    case 'offer': {
      const message = { ...told, id: nameOf(other, id) };
      return { kind: 'message', message, landing: undefined };
    }
    case 'fetch': {
      const { chain, from, landing, range } = told;
      return { kind: 'message', message: { kind: 'fetch', id: nameOf(other, id), chain, from, range }, landing };
    }
  }
}
