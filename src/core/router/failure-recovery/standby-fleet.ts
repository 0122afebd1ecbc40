// Standby instances that start when a request outgrows its own: the conductor's side of live migration, in the simulator.

import type { StandbyEffect } from '../../protocol/effects.ts';
import type { InstanceIndex, RequestId } from '../../protocol/ids.ts';

interface Standby {
  readonly instance: InstanceIndex;
  readonly capacityTokens: number;
  state: 'off' | 'starting' | 'up';
  /** Maximum length, in tokens, of each request that is placed here. */
  readonly reserved: Map<RequestId, number>;
}

interface Move {
  readonly id: RequestId;
  readonly from: InstanceIndex;
  /** Maximum length of the request. */
  readonly tokens: number;
}

/** The incarnation of the instance that a request migrates to. */
export interface MigrationTarget {
  readonly incarnation: number | undefined;
}

interface StandbyHost {
  /** Makes `to` the decode instance of an attempt. Undefined: the attempt has ended, or was handed off before. */
  redirect(id: RequestId, to: InstanceIndex): MigrationTarget | undefined;
}

/**
 * Reserves memory for the maximum length of each request that outgrows its instance: on a running standby instance, else on one that starts,
 * else the smallest that fits is started. Requests without memory wait in order. A started instance is not stopped.
 */
export class StandbyFleet {
  readonly #standbys: readonly Standby[];
  readonly #host: StandbyHost;
  /** Requests without reserved memory, in the order of `outgrows`. */
  readonly #waiting = new Map<RequestId, Move>();
  /** Requests with reserved memory. */
  readonly #moves = new Map<RequestId, Move & { readonly to: Standby }>();
  #effects: StandbyEffect[] = [];
  /** Number of instance starts. */
  started = 0;

  constructor(
    instances: readonly { readonly capacityTokens: number; readonly standby?: boolean | undefined }[],
    host: StandbyHost,
  ) {
    this.#standbys = instances.flatMap(({ capacityTokens, standby }, instance) =>
      standby === true ? [{ instance, capacityTokens, state: 'off' as const, reserved: new Map() }] : [],
    );
    this.#host = host;
  }

  /** Effects since the last call, in order. */
  takeEffects(): readonly StandbyEffect[] {
    if (this.#effects.length === 0) return this.#effects;
    const effects = this.#effects;
    this.#effects = [];
    return effects;
  }

  /** A request may outgrow its instance. Repeated for a placed request: its `migrate` is sent again once the target runs. */
  outgrows(move: Move): void {
    const known = this.#moves.get(move.id);
    if (known !== undefined) this.#order(known);
    else {
      this.#waiting.set(move.id, move);
      this.#place();
    }
  }

  instanceJoined(instance: InstanceIndex): void {
    const standby = this.#standbys.find((each) => each.instance === instance);
    if (standby === undefined) return;
    standby.state = 'up';
    for (const move of this.#moves.values()) if (move.to === standby) this.#order(move);
    this.#place();
  }

  /** Failure recovery retries the requests placed there; the instance may be started again. */
  instanceFailed(instance: InstanceIndex): void {
    const standby = this.#standbys.find((each) => each.instance === instance);
    if (standby === undefined) return;
    standby.state = 'off';
    for (const [id, move] of this.#moves) if (move.to === standby) this.#moves.delete(id);
    standby.reserved.clear();
  }

  /** The request's attempt is over. */
  ended(id: RequestId): void {
    this.#waiting.delete(id);
    const move = this.#moves.get(id);
    if (move === undefined) return;
    this.#moves.delete(id);
    move.to.reserved.delete(id);
    this.#place();
  }

  #place(): void {
    for (const move of this.#waiting.values()) {
      const to = this.#choose(move.tokens);
      // Shorter requests do not overtake a long one.
      if (to === undefined) return;
      this.#waiting.delete(move.id);
      this.#moves.set(move.id, { ...move, to });
      to.reserved.set(move.id, move.tokens);
      if (to.state === 'up') this.#order({ ...move, to });
      if (to.state !== 'off') continue;
      to.state = 'starting';
      this.started++;
      this.#effects.push({ kind: 'startInstance', instance: to.instance });
    }
  }

  #choose(tokens: number): Standby | undefined {
    const fits = this.#standbys.filter((standby) => freeTokens(standby) >= tokens);
    const rank = { up: 0, starting: 1, off: 2 };
    return fits.sort((a, b) => rank[a.state] - rank[b.state] || a.capacityTokens - b.capacityTokens)[0];
  }

  #order({ id, from, to }: Move & { readonly to: Standby }): void {
    const target = to.state === 'up' ? this.#host.redirect(id, to.instance) : undefined;
    if (target !== undefined) this.#effects.push({ kind: 'migrate', instance: from, id, to: to.instance, ...target });
  }

  /** Throws when an instance has reserved more than its capacity. */
  check(): void {
    for (const standby of this.#standbys)
      if (freeTokens(standby) < 0)
        throw new Error(
          `Fleet broken: instance ${standby.instance} has reserved ${-freeTokens(standby)} tokens too many`,
        );
  }
}

function freeTokens({ capacityTokens, reserved }: Standby): number {
  let free = capacityTokens;
  for (const tokens of reserved.values()) free -= tokens;
  return free;
}
