// The link between instances of different processes that hand prompts over: of one that prefills to those that decode, and back.
import type { Bus } from '../bus/bus.ts';
import { type Peer, PeerSession } from '../processes/peer-session.ts';
import { type HandOffWire, type PeerAnnouncement, readHandOff, readPeer } from '../wire/messages.ts';

/** The process on the bus, as one end. */
export interface HandOffEnd {
  readonly bus: Bus;
  readonly name: string;
  readonly incarnation: number;
  readonly log: (message: string) => void;
}

interface Listener {
  join(peer: Peer<PeerAnnouncement>): void;
  lose(peer: Peer<PeerAnnouncement>): void;
  /** @throws Error when it is none that can be taken: then both sides begin anew */
  hear(peer: Peer<PeerAnnouncement>, told: HandOffWire): void;
}

export function handOffSession(
  kind: 'prefill' | 'decode',
  { bus, name, incarnation, log }: HandOffEnd,
  listener: Listener,
): PeerSession<PeerAnnouncement> {
  return new PeerSession<PeerAnnouncement>({
    ...{ bus, kind, name, incarnation, log, about: {} },
    read: readPeer,
    onJoined: (peer) => listener.join(peer),
    onLost: (peer) => listener.lose(peer),
    onMessage: (peer, message) => listener.hear(peer, readHandOff(message)),
  });
}
