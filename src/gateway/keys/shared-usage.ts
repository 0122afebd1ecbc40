// Limits of keys over all gateways of a cluster: each charges what the others have charged, and counts what is open there.
import type { GatewayPeers, KeyOpen, KeyUsage, SharedUsage } from '../../core/protocol/ports.ts';
import type { ApiKeys } from './api-keys.ts';
import type { CallerConnections, CallerUsage, OpenElsewhere } from './caller-usage.ts';

/** Of one gateway. */
export interface UsageParts {
  readonly usage: CallerUsage;
  readonly connections: CallerConnections;
  readonly elsewhere: OpenElsewhere;
}

/** From now on. */
export function shareUsage(peers: Pick<GatewayPeers, 'shareUsage'>, keys: ApiKeys, parts: UsageParts): void {
  const { usage, elsewhere } = parts;
  const charges = new ChargesElsewhere((owner, requests, tokens) => {
    const caller = keys.callerWithOwner(owner);
    if (caller !== undefined) usage.chargeElsewhere(caller, requests, tokens);
  });
  const own = (): SharedUsage => ({
    charged: usage.charged().map(({ name, requests, tokens }) => ({ owner: keys.ownerOf(name), requests, tokens })),
    open: openHere(keys, parts),
  });
  peers.shareUsage(own, (from, { charged, open }) => {
    charges.received(from, charged);
    const known = open.flatMap(({ owner, open: use }) => {
      const caller = keys.callerWithOwner(owner);
      return caller === undefined ? [] : [[caller.name, use] as const];
    });
    elsewhere.report(from, new Map(known));
  });
}

/** Of the keys that have a limit of it. */
function openHere(keys: ApiKeys, { usage, connections }: UsageParts): readonly KeyOpen[] {
  const requests = usage.open;
  return [...new Set([...requests.keys(), ...connections.open.keys()])].flatMap((name) => {
    const { limits } = keys.callerNamed(name);
    if ((limits.concurrentRequests ?? limits.queuedRequests ?? limits.connections) === undefined) return [];
    const { requests: running, queued } = requests.get(name) ?? { requests: 0, queued: 0 };
    const open = { requests: running, queued, connections: connections.open.get(name) ?? 0 };
    return [{ owner: keys.ownerOf(name), open }];
  });
}

type Counts = Pick<KeyUsage, 'requests' | 'tokens'>;

/** Turns the counts that gateways send into charges: a lost message is made up for by the next one, and one in the wrong order too. */
export class ChargesElsewhere {
  readonly #charge: (owner: string, requests: number, tokens: number) => void;
  /** By connection: the latest counts of each owner that is not idle there. */
  readonly #latest = new WeakMap<object, ReadonlyMap<string, Counts>>();

  constructor(charge: (owner: string, requests: number, tokens: number) => void) {
    this.#charge = charge;
  }

  /** What was used before the first message of a connection is not charged: it may be long ago. */
  received(from: object, usage: readonly KeyUsage[]): void {
    const before = this.#latest.get(from);
    this.#latest.set(from, new Map(usage.map(({ owner, ...counts }) => [owner, counts])));
    if (before === undefined) return;
    for (const { owner, requests, tokens } of usage) {
      // A key that was idle counts from 0.
      const last = before.get(owner) ?? { requests: 0, tokens: 0 };
      if (requests !== last.requests || tokens !== last.tokens)
        this.#charge(owner, requests - last.requests, tokens - last.tokens);
    }
  }
}
