// Limits a minute over all gateways of a cluster: what each has charged a key is charged at the others.
import type { GatewayPeers, KeyUsage } from '../../core/protocol/ports.ts';
import type { ApiKeys } from './api-keys.ts';
import type { CallerUsage } from './caller-usage.ts';

/** From now on. */
export function shareUsage(peers: Pick<GatewayPeers, 'shareUsage'>, keys: ApiKeys, usage: CallerUsage): void {
  const charges = new ChargesElsewhere((owner, requests, tokens) => {
    const caller = keys.callerWithOwner(owner);
    if (caller !== undefined) usage.chargeElsewhere(caller, requests, tokens);
  });
  const own = (): readonly KeyUsage[] =>
    usage.charged().map(({ name, requests, tokens }) => ({ owner: keys.ownerOf(name), requests, tokens }));
  peers.shareUsage(own, (from, others) => charges.received(from, others));
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
