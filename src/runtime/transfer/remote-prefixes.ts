// Prefixes that instances of different processes fetch from one another: relays messages between the thread and the peers.
import type { PrefixMessage } from '../../core/protocol/events.ts';
import type { InstanceIndex, RequestId } from '../../core/protocol/ids.ts';
import { assertNever } from '../../util/assert-never.ts';
import { scramble } from '../../util/scramble.ts';
import { type Peer, type PeerHandler, PeerSession } from '../processes/peer-session.ts';
import { encode } from '../wire/codec.ts';
import { type FetcherAnnouncement, type FetchWire, readFetch, readFetcher } from '../wire/messages.ts';
import type { SessionName } from '../wire/names.ts';
import type { PeerWire } from './live-hand-offs.ts';
import type { PrefixWire } from './live-prefixes.ts';
import type { PeerContext } from './peer-context.ts';

type Fetcher = Peer<FetcherAnnouncement>;

/** Another instance. */
interface Remote {
  /** The thread's index of it, a new one for each session. */
  readonly index: InstanceIndex;
  readonly peer: Fetcher;
}

/** A message of the thread about a prefix. */
export type PrefixPeerWire =
  | PrefixWire
  | {
      readonly kind: 'message';
      readonly message: PrefixMessage;
      readonly receiveBuffer: Extract<PeerWire, { kind: 'message' }>['receiveBuffer'];
    };

/** First index of these instances, above the indices of hand-offs. */
const firstIndex = 2 ** 20;

export class RemotePrefixes implements PeerHandler<FetcherAnnouncement> {
  readonly #context: Omit<PeerContext, 'requests'>;
  readonly #isStore: boolean;
  readonly #session: PeerSession<FetcherAnnouncement>;
  readonly #remotes = new Map<InstanceIndex, Remote>();
  #indices = firstIndex;
  readonly readAnnouncement = readFetcher;

  constructor(context: Omit<PeerContext, 'requests'>, isStore: boolean) {
    this.#context = context;
    this.#isStore = isStore;
    this.#session = new PeerSession(context.process, 'fetcher', this);
  }

  start(): void {
    this.#session.start();
  }

  close(): void {
    this.#session.close();
  }

  announcement(): Pick<FetcherAnnouncement, 'isStore'> {
    return { isStore: this.#isStore };
  }

  /** The thread's index of that incarnation; undefined if it is not connected. */
  indexOf({ name, incarnation }: Pick<SessionName, 'name' | 'incarnation'>): InstanceIndex | undefined {
    for (const { index, peer } of this.#remotes.values())
      if (peer.member.name === name && peer.member.incarnation === incarnation) return index;
    return undefined;
  }

  /** Sends a message of the thread. */
  send(to: InstanceIndex, wire: PrefixPeerWire): void {
    const remote = this.#remotes.get(to);
    if (remote !== undefined) this.#session.send(remote.peer, encode(outgoing(remote, wire)));
    // The peer is lost: the fetch fails at once instead of after its timeout.
    else if (wire.kind === 'message' && wire.message.kind === 'fetch') this.#forward(to, missing(wire.message.id));
  }

  onJoined(peer: Fetcher): void {
    const index = this.#indices++;
    this.#remotes.set(index, { index, peer });
    this.#context.names.set(index, peer.member.name);
    if (peer.member.isStore) this.#reportStores();
  }

  onLost(peer: Fetcher): void {
    const remote = this.#remoteOf(peer);
    if (remote === undefined) return;
    this.#remotes.delete(remote.index);
    this.#context.names.delete(remote.index);
    this.#forward(remote.index, { kind: 'ended' });
    if (peer.member.isStore) this.#reportStores();
  }

  onMessage(peer: Fetcher, bytes: Uint8Array): void {
    const message = readFetch(bytes);
    const remote = this.#remoteOf(peer);
    if (remote !== undefined) this.#forward(remote.index, incoming(remote, message));
  }

  /** To the thread. */
  #forward(from: InstanceIndex, wire: PeerWire): void {
    this.#context.thread.send({ kind: 'peerMessage', from, wire });
  }

  /** Reports to the thread the stores to which it may offer prefixes. A store itself computes none. */
  #reportStores(): void {
    if (this.#isStore) return;
    const stores = [...this.#remotes.values()].flatMap(({ index, peer: { member } }) =>
      member.isStore ? [{ instance: index, key: keyOf(member.name) }] : [],
    );
    this.#context.thread.send({ kind: 'stores', stores });
  }

  #remoteOf(peer: Fetcher): Remote | undefined {
    for (const remote of this.#remotes.values()) if (remote.peer === peer) return remote;
    return undefined;
  }
}

export function isPrefixPeerWire(wire: PeerWire): wire is PrefixPeerWire {
  if (wire.kind === 'prefix' || wire.kind === 'prefixReceived') return true;
  if (wire.kind !== 'message') return false;
  const { kind } = wire.message;
  return kind === 'fetch' || kind === 'offer' || kind === 'prefixMissing' || kind === 'cancelPrefix';
}

function missing(id: RequestId): PeerWire {
  return { kind: 'message', message: { kind: 'prefixMissing', id }, receiveBuffer: undefined };
}

/** The same in all processes. */
function keyOf(name: string): number {
  let key = 0;
  for (let i = 0; i < name.length; i++) key = scramble(key ^ name.charCodeAt(i));
  return key;
}

/** The id here of a peer's request, distinct from the ids of own requests. */
function localIdOf({ index }: Remote, remoteId: RequestId): RequestId {
  return `${index}/${remoteId}`;
}

function outgoing(remote: Remote, wire: PrefixPeerWire): FetchWire {
  const remoteId = (id: RequestId): RequestId => id.slice(localIdOf(remote, '').length);
  if (wire.kind === 'prefix') return { kind: 'prefix', id: remoteId(wire.id), blocks: wire.blocks };
  if (wire.kind === 'prefixReceived') return wire;
  const { message, receiveBuffer } = wire;
  if (message.kind === 'prefixMissing') return { kind: 'missing', id: remoteId(message.id) };
  if (message.kind === 'cancelPrefix') return { kind: 'unwanted', id: message.id };
  if (message.kind === 'offer') return message;
  if (receiveBuffer === undefined) throw new Error('Cannot fetch a prefix: it has no receive buffer');
  const { id, from, chain, range } = message;
  return { kind: 'fetch', id, from, receiveBuffer, range, chain: { blocks: chain.blocks, words: chain.words } };
}

function incoming(remote: Remote, wire: FetchWire): PeerWire {
  const { id } = wire;
  switch (wire.kind) {
    case 'prefix':
      return wire;
    case 'missing':
      return missing(id);
    case 'prefixReceived':
      return { kind: 'prefixReceived', id: localIdOf(remote, id) };
    case 'unwanted':
      return {
        kind: 'message',
        message: { kind: 'cancelPrefix', id: localIdOf(remote, id) },
        receiveBuffer: undefined,
      };
    case 'offer': {
      const message = { ...wire, id: localIdOf(remote, id) };
      return { kind: 'message', message, receiveBuffer: undefined };
    }
    case 'fetch': {
      const { chain, from, receiveBuffer, range } = wire;
      return {
        kind: 'message',
        message: { kind: 'fetch', id: localIdOf(remote, id), chain, from, range },
        receiveBuffer,
      };
    }
    default:
      return assertNever(wire);
  }
}
