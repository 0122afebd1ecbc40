// Standby instances, started when requests outgrow their instances: the conductor's side of live migration, in the simulator.

import type { StandbyEffect } from '../../protocol/effects.ts';
import type { InstanceIndex, RequestId } from '../../protocol/ids.ts';

interface Standby {
  readonly instance: InstanceIndex;
  readonly capacityTokens: number;
  state: 'off' | 'starting' | 'up';
  /** Maximum length, in tokens, of each request that is placed here. */
  readonly reserved: Map<RequestId, number>;
}

interface Migration {
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
 * Reserves memory for the maximum length of each request that outgrows its instance: on a running standby instance, else on a starting one,
 * else on the smallest that fits, which it starts. Requests without a reservation wait in order. A started instance is not stopped.
 */
export class StandbyFleet {
  readonly #standbys: readonly Standby[];
  readonly #host: StandbyHost;
  /** Requests without reserved memory, in the order of `outgrows`. */
  readonly #waiting = new Map<RequestId, Migration>();
  /** Requests with reserved memory. */
  readonly #placed = new Map<RequestId, Migration & { readonly to: Standby }>();
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
  outgrows(migration: Migration): void {
    const known = this.#placed.get(migration.id);
    if (known !== undefined) this.#order(known);
    else {
      this.#waiting.set(migration.id, migration);
      this.#place();
    }
  }

  instanceJoined(instance: InstanceIndex): void {
    const standby = this.#standbys.find((each) => each.instance === instance);
    if (standby === undefined) return;
    standby.state = 'up';
    for (const migration of this.#placed.values()) if (migration.to === standby) this.#order(migration);
    this.#place();
  }

  /** Failure recovery retries the requests placed there; the instance may be started again. */
  instanceFailed(instance: InstanceIndex): void {
    const standby = this.#standbys.find((each) => each.instance === instance);
    if (standby === undefined) return;
    standby.state = 'off';
    for (const [id, migration] of this.#placed) if (migration.to === standby) this.#placed.delete(id);
    standby.reserved.clear();
  }

  /** The request's attempt is over. */
  ended(id: RequestId): void {
    this.#waiting.delete(id);
    const migration = this.#placed.get(id);
    if (migration === undefined) return;
    this.#placed.delete(id);
    migration.to.reserved.delete(id);
    this.#place();
  }

  #place(): void {
    for (const migration of this.#waiting.values()) {
      const to = this.#choose(migration.tokens);
      // Shorter requests do not overtake a long one.
      if (to === undefined) return;
      this.#waiting.delete(migration.id);
      this.#placed.set(migration.id, { ...migration, to });
      to.reserved.set(migration.id, migration.tokens);
      if (to.state === 'up') this.#order({ ...migration, to });
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

  #order({ id, from, to }: Migration & { readonly to: Standby }): void {
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
