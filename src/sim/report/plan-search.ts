// The search for the cheapest cluster that keeps enough requests within their SLO. What a cluster keeps, somebody else tries.

/** How many instances of each role. */
export interface Shape {
  readonly prefill: number;
  readonly decode: number;
  readonly mixed: number;
}

/** A way to make instances. Machines are rented whole. */
export interface Unit {
  /** Below 1: an instance takes several machines. */
  readonly instancesPerMachine: number;
  /** Of a machine. */
  readonly pricePerHour: number;
}

export interface Kept {
  /** Of all requests, those within their SLO: 0..1. */
  readonly share: number;
}

export type Trial<U extends Unit, K extends Kept> = Shape &
  K & {
    readonly unit: U;
    /** What those that decode alone are made of. */
    readonly decodeUnit: U;
    readonly machines: number;
    /** Of all its machines. */
    readonly pricePerHour: number;
  };

export interface SearchLimits {
  readonly instancesMax: number;
  /** Share of requests to keep. */
  readonly within: number;
}

/** Simulates a cluster. The same shape always keeps the same. */
export type Try<U extends Unit, K extends Kept> = (unit: U, shape: Shape, decodeUnit: U) => Promise<K>;

/** Instances that fill 1, 2, 3... machines, or the most there may be where that is less than one machine has. */
export function levelsOf({ instancesPerMachine }: Unit, instancesMax: number): readonly number[] {
  const each = Math.max(1, instancesPerMachine);
  const levels = Math.floor(instancesMax / each);
  return levels === 0 ? [instancesMax] : Array.from({ length: levels }, (_, i) => (i + 1) * each);
}

function machinesOf({ instancesPerMachine }: Unit, instances: number): number {
  return Math.ceil(instances / instancesPerMachine);
}

/**
 * Every cluster that was tried, in order. Exact where more instances of any role never keep less; no dearer cluster is tried than one
 * that is found to keep enough.
 * @param pairs units that may prefill for, and decode after, one another, beside each for itself
 */
export async function searchPlans<U extends Unit, K extends Kept>(
  units: readonly U[],
  limits: SearchLimits,
  attempt: Try<U, K>,
  pairs: readonly (readonly [U, U])[] = [],
): Promise<readonly Trial<U, K>[]> {
  const search = new PlanSearch(limits, attempt);
  for (const unit of units) await search.coupled(unit);
  for (const unit of units) await search.apart(unit);
  for (const [prefill, decode] of pairs) await search.paired(prefill, decode);
  return search.trials;
}

/** The cheapest that keeps enough; of equal price the one that keeps most, then the first tried. */
export function cheapestOf<U extends Unit, K extends Kept>(trials: readonly Trial<U, K>[], within: number) {
  return byPrice(trials).find(({ share }) => share >= within);
}

/** Those that keep more than any that costs as much or less, cheapest first. */
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
  readonly #attempt: Try<U, K>;
  /** Of the cheapest so far that keeps enough. */
  #pricePerHour = Number.POSITIVE_INFINITY;

  constructor(limits: SearchLimits, attempt: Try<U, K>) {
    this.#limits = limits;
    this.#attempt = attempt;
  }

  /** Halves the levels, then walks on down while one of two below keeps enough: more instances may keep a little less, too. */
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

  /** A prefill pool that fails with all the rest decoding fails with fewer: every level that keeps enough leads to the next lower one. */
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
   * Machines of their own for either role. From the most that decode down: where the rest fails, more prefill; where it keeps enough, fewer
   * decode. Only what is cheaper than the cheapest so far is tried.
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

  /** Levels that cost no more than the cheapest so far. */
  #affordable(unit: U): readonly number[] {
    return levelsOf(unit, this.#limits.instancesMax).filter(
      (level) => machinesOf(unit, level) * unit.pricePerHour <= this.#pricePerHour,
    );
  }

  /** Machines of one unit are shared by its roles. */
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
