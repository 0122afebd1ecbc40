// The search for the cheapest cluster that keeps enough requests within their SLO, over trials of a given function.

/** Number of instances of each role. */
export interface Shape {
  readonly prefill: number;
  readonly decode: number;
  readonly mixed: number;
}

/** Hardware for instances. Machines are rented whole. */
export interface Unit {
  /** Below 1: an instance spans several machines. */
  readonly instancesPerMachine: number;
  /** Of one machine. */
  readonly pricePerHour: number;
}

export interface Kept {
  /** Share of all requests within their SLO: 0..1. */
  readonly share: number;
}

export type Trial<U extends Unit, K extends Kept> = Shape &
  K & {
    readonly unit: U;
    /** Hardware of the decode instances. */
    readonly decodeUnit: U;
    readonly machines: number;
    /** Of all machines. */
    readonly pricePerHour: number;
  };

export interface SearchLimits {
  readonly instancesMax: number;
  /** Share of requests to keep. */
  readonly within: number;
}

/** Simulates a cluster. A function of its arguments. */
export type RunTrial<U extends Unit, K extends Kept> = (unit: U, shape: Shape, decodeUnit: U) => Promise<K>;

/** Numbers of instances that fill 1, 2, 3... machines, or `instancesMax` where one machine holds more. */
export function levelsOf({ instancesPerMachine }: Unit, instancesMax: number): readonly number[] {
  const each = Math.max(1, instancesPerMachine);
  const levels = Math.floor(instancesMax / each);
  return levels === 0 ? [instancesMax] : Array.from({ length: levels }, (_, i) => (i + 1) * each);
}

function machinesOf({ instancesPerMachine }: Unit, instances: number): number {
  return Math.ceil(instances / instancesPerMachine);
}

/**
 * Every trial, in order. Exact where more instances of a role never keep fewer requests. No cluster is tried that costs more than one that
 * keeps enough.
 * @param pairs hardware for prefill and for decode that may be combined, besides each unit with itself
 */
export async function searchPlans<U extends Unit, K extends Kept>(
  units: readonly U[],
  limits: SearchLimits,
  attempt: RunTrial<U, K>,
  pairs: readonly (readonly [U, U])[] = [],
): Promise<readonly Trial<U, K>[]> {
  const search = new PlanSearch(limits, attempt);
  for (const unit of units) await search.coupled(unit);
  for (const unit of units) await search.apart(unit);
  for (const [prefill, decode] of pairs) await search.paired(prefill, decode);
  return search.trials;
}

/** The cheapest that keeps enough; at equal price the one that keeps most, then the first trial. */
export function cheapestOf<U extends Unit, K extends Kept>(trials: readonly Trial<U, K>[], within: number) {
  return byPrice(trials).find(({ share }) => share >= within);
}

/** The Pareto frontier of price and kept share, cheapest first. */
export function frontierOf<U extends Unit, K extends Kept>(trials: readonly Trial<U, K>[]): readonly Trial<U, K>[] {
  let most = -1;
  return byPrice(trials).filter(({ share }) => {
    const better = share > most;
    most = Math.max(most, share);
    return better;
  });
}

function byPrice<U extends Unit, K extends Kept>(trials: readonly Trial<U, K>[]): readonly Trial<U, K>[] {
  return [...trials].sort((a, b) => a.pricePerHour - b.pricePerHour || b.share - a.share);
}

class PlanSearch<U extends Unit, K extends Kept> {
  readonly trials: Trial<U, K>[] = [];
  readonly #limits: SearchLimits;
  readonly #attempt: RunTrial<U, K>;
  /** Price of the cheapest so far that keeps enough. */
  #pricePerHour = Number.POSITIVE_INFINITY;

  constructor(limits: SearchLimits, attempt: RunTrial<U, K>) {
    this.#limits = limits;
    this.#attempt = attempt;
  }

  /** Bisects the levels, then walks down while one of the next two keeps enough: more instances may also keep slightly less. */
  async coupled(unit: U): Promise<void> {
    const levels = this.#affordable(unit);
    const known = new Map<number, boolean>();
    const keeps = async (level: number) => {
      const kept = known.get(level) ?? (await this.#keeps(unit, { prefill: 0, decode: 0, mixed: levels[level] ?? 0 }));
      known.set(level, kept);
      return kept;
    };
    let least = levels.length;
    for (let below = -1; least - below > 1; ) {
      const middle = (least + below) >> 1;
      if (await keeps(middle)) least = middle;
      else below = middle;
    }
    if (least === levels.length) return;
    // The level just below has failed.
    for (let level = least - 2, failed = 1; level >= 0 && failed < 2; level--) {
      failed = (await keeps(level)) ? 0 : failed + 1;
    }
  }

  /** A prefill pool that fails with all other instances decoding fails with fewer. From each level that keeps enough, the search continues one lower. */
  async apart(unit: U): Promise<void> {
    const levels = this.#affordable(unit);
    for (let level = levels.length - 1, prefill = 1; level >= 0; ) {
      const decode = (levels[level] ?? 0) - prefill;
      if (decode < 1) return;
      if (await this.#keeps(unit, { prefill, decode, mixed: 0 })) level--;
      else prefill++;
    }
  }

  /**
   * Separate machines for the two roles, from the largest decode pool down: after a failure with more prefill, after a success with fewer
   * decode instances. Only clusters cheaper than the cheapest so far are tried.
   */
  async paired(prefillUnit: U, decodeUnit: U): Promise<void> {
    const { instancesMax } = this.#limits;
    const prefills = levelsOf(prefillUnit, instancesMax);
    const decodes = levelsOf(decodeUnit, instancesMax);
    for (let p = 0, d = decodes.length - 1; p < prefills.length && d >= 0; ) {
      const shape = { prefill: prefills[p] ?? 0, decode: decodes[d] ?? 0, mixed: 0 };
      const fits = shape.prefill + shape.decode <= instancesMax;
      if (!fits || this.#priceOf(prefillUnit, shape, decodeUnit) >= this.#pricePerHour) d--;
      else if (await this.#keeps(prefillUnit, shape, decodeUnit)) d--;
      else p++;
    }
  }

  /** Levels at most as expensive as the cheapest so far. */
  #affordable(unit: U): readonly number[] {
    return levelsOf(unit, this.#limits.instancesMax).filter(
      (level) => machinesOf(unit, level) * unit.pricePerHour <= this.#pricePerHour,
    );
  }

  /** Both roles share machines of the same hardware. */
  #machines(unit: U, { prefill, decode, mixed }: Shape, decodeUnit: U): readonly [number, number] {
    if (unit === decodeUnit) return [machinesOf(unit, prefill + decode + mixed), 0];
    return [machinesOf(unit, prefill + mixed), machinesOf(decodeUnit, decode)];
  }

  #priceOf(unit: U, shape: Shape, decodeUnit: U): number {
    const [machines, decodeMachines] = this.#machines(unit, shape, decodeUnit);
    return machines * unit.pricePerHour + decodeMachines * decodeUnit.pricePerHour;
  }

  async #keeps(unit: U, shape: Shape, decodeUnit = unit): Promise<boolean> {
    const kept = await this.#attempt(unit, shape, decodeUnit);
    const [own, others] = this.#machines(unit, shape, decodeUnit);
    const pricePerHour = this.#priceOf(unit, shape, decodeUnit);
    this.trials.push({ ...shape, ...kept, unit, decodeUnit, machines: own + others, pricePerHour });
    const enough = kept.share >= this.#limits.within;
    if (enough) this.#pricePerHour = Math.min(this.#pricePerHour, pricePerHour);
    return enough;
  }
}
