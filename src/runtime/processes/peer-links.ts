// Links of an instance to other processes: translated from the thread's indices to names, and from names to the gateway's indices.
import type { InstanceIndex } from '../../core/protocol/ids.ts';
import type { LinkSnapshot } from '../../core/protocol/ports.ts';

/** An instance without a session for this time has departed: its figures are not shown any more. */
export const departedAfterUs = 600_000_000;

interface NamedPeer {
  /** By the thread's index, the latest figures of each session. */
  readonly sessions: Map<InstanceIndex, LinkSnapshot>;
  /** The sum of ended sessions: a counter must not fall when a peer joins again. */
  ended: LinkSnapshot | undefined;
  seenUs: number;
}

/** The links of one kind to instances of other processes. Each session with a peer has an index of its own, which is never used again. */
export class PeerLinks {
  /** Of open sessions. */
  readonly #names: ReadonlyMap<InstanceIndex, string>;
  readonly #peers = new Map<string, NamedPeer>();

  /** @param names by the thread's index, the peers of open sessions */
  constructor(names: ReadonlyMap<InstanceIndex, string>) {
    this.#names = names;
  }

  /** The links with the names of their peers. Those of ended sessions stay, as one for each peer, until the peer has departed. */
  named(nowUs: number, links: readonly LinkSnapshot[]): readonly LinkSnapshot[] {
    for (const link of links) this.#observe(nowUs, link);
    return [...this.#peers].flatMap(([name, peer]) => {
      this.#endSessions(peer);
      if (peer.sessions.size > 0) peer.seenUs = nowUs;
      else if (nowUs - peer.seenUs >= departedAfterUs) {
        this.#peers.delete(name);
        return [];
      }
      return [peer.ended, ...peer.sessions.values()].flatMap((link) => (link === undefined ? [] : [{ ...link, name }]));
    });
  }

  /** The thread may report a session that has ended since. */
  #observe(nowUs: number, link: LinkSnapshot): void {
    const name = this.#names.get(link.to);
    if (name === undefined) return;
    const peer = this.#peers.get(name) ?? { sessions: new Map(), ended: undefined, seenUs: nowUs };
    this.#peers.set(name, peer);
    peer.sessions.set(link.to, link);
  }

  #endSessions(peer: NamedPeer): void {
    for (const [index, { bytesPerSecond: _, ...link }] of peer.sessions) {
      if (this.#names.has(index)) continue;
      peer.sessions.delete(index);
      peer.ended = { ...link, bytes: link.bytes + (peer.ended?.bytes ?? 0), backlogBytes: 0 };
    }
  }
}

/** The links by the gateway's indices: one for each peer, summed over its sessions. */
export function indexedLinks(
  links: readonly LinkSnapshot[],
  indexOf: (name: string) => InstanceIndex | undefined,
): readonly LinkSnapshot[] {
  const byIndex = new Map<InstanceIndex, LinkSnapshot>();
  for (const { name, bytes, backlogBytes, ...rest } of links) {
    const to = name === undefined ? undefined : indexOf(name);
    if (to === undefined) continue;
    const known = byIndex.get(to) ?? { to, bytes: 0, backlogBytes: 0 };
    byIndex.set(to, { ...rest, to, bytes: known.bytes + bytes, backlogBytes: known.backlogBytes + backlogBytes });
  }
  return [...byIndex.values()];
}
