// Bigger instances that are started when a request outgrows its own, and who goes on at which: the conductor's side of live migration.
import type { ConductorEffect } from '../../protocol/effects.ts';
import type { InstanceIndex } from '../../protocol/events.ts';
import type { RequestId } from '../../protocol/ports.ts';

interface Standby {
  readonly instance: InstanceIndex;
  readonly capacityTokens: number;
  state: 'off' | 'starting' | 'up';
  /** Tokens that each request that goes there may come to. */
  readonly promised: Map<RequestId, number>;
}

/** A request that goes on elsewhere. */
interface Move {
  readonly id: RequestId;
  readonly from: InstanceIndex;
  readonly tokens: number;
}

/** The conductor, as its fleet sees it. */
interface Owner<Request> {
  readonly push: (effect: ConductorEffect<Request>) => void;
  /** The request goes on there, from now on. */
  readonly divert: (id: RequestId, from: InstanceIndex, to: InstanceIndex) => void;
}

/**
 * A request that outgrows its instance is promised the room that it may come to at a bigger one: at one that runs, else at one that starts, else the
 * smallest that fits is started. Who finds no room waits for it, in order. What was started stays.
 */
export class StandbyFleet<Request> {
  readonly #standbys: readonly Standby[];
  readonly #owner: Owner<Request>;
  /** Those that have found no room, in the order of asking. */
  readonly #waiting = new Map<RequestId, Move>();
  /** Those that have. */
  readonly #moves = new Map<RequestId, Move & { readonly to: Standby }>();
  /** Instances that have been started. */
  started = 0;

  constructor(
    instances: readonly { readonly capacityTokens: number; readonly standby?: boolean | undefined }[],
    owner: Owner<Request>,
  ) {
    this.#standbys = instances.flatMap(({ capacityTokens, standby }, instance) =>
      standby === true ? [{ instance, capacityTokens, state: 'off' as const, promised: new Map() }] : [],
    );
    this.#owner = owner;
  }

  /** A request may outgrow where it is. Said again: it is told again where it goes, once that is there. */
  outgrows(move: Move): void {
    const known = this.#moves.get(move.id);
    if (known !== undefined) this.#order(known);
    else {
      this.#waiting.set(move.id, move);
      this.#place();
    }
  }

  joined(instance: InstanceIndex): void {
    const standby = this.#standbys.find((each) => each.instance === instance);
    if (standby === undefined) return;
    standby.state = 'up';
    for (const move of this.#moves.values()) if (move.to === standby) this.#order(move);
    this.#place();
  }

  /** What was to go on there is tried anew by whoever had it; it may be started again. */
  lost(instance: InstanceIndex): void {
    const standby = this.#standbys.find((each) => each.instance === instance);
    if (standby === undefined) return;
    standby.state = 'off';
    for (const [id, move] of this.#moves) if (move.to === standby) this.#moves.delete(id);
    standby.promised.clear();
  }

  /** Its try is over. */
  left(id: RequestId): void {
    this.#waiting.delete(id);
    const move = this.#moves.get(id);
    if (move === undefined) return;
    this.#moves.delete(id);
    move.to.promised.delete(id);
    this.#place();
  }

  #place(): void {
    for (const move of this.#waiting.values()) {
      const to = this.#choose(move.tokens);
      // A long one is not overtaken.
      if (to === undefined) return;
      this.#waiting.delete(move.id);
      this.#moves.set(move.id, { ...move, to });
      to.promised.set(move.id, move.tokens);
      if (to.state === 'up') this.#order({ ...move, to });
      if (to.state !== 'off') continue;
      to.state = 'starting';
      this.started++;
      this.#owner.push({ kind: 'startInstance', instance: to.instance });
    }
  }

  #choose(tokens: number): Standby | undefined {
    const fits = this.#standbys.filter((standby) => roomOf(standby) >= tokens);
    const rank = { up: 0, starting: 1, off: 2 };
    return fits.sort((a, b) => rank[a.state] - rank[b.state] || a.capacityTokens - b.capacityTokens)[0];
  }

  #order({ id, from, to }: Move & { readonly to: Standby }): void {
    if (to.state === 'up') this.#owner.divert(id, from, to.instance);
  }

  /** Throws unless everybody is promised room that there is. */
  check(): void {
    for (const standby of this.#standbys)
      if (roomOf(standby) < 0)
        throw new Error(`Fleet broken: instance ${standby.instance} has promised ${-roomOf(standby)} tokens too many`);
  }
}

function roomOf({ capacityTokens, promised }: Standby): number {
  let room = capacityTokens;
  for (const tokens of promised.values()) room -= tokens;
  return room;
}
