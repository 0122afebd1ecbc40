// The search for the cheapest cluster that serves a target share of requests within their SLO, over trials of a given function.

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
  /** Of what a cluster has besides its instances: a store. */
  readonly addedPricePerHour?: number;
  /** Fewest instances, and fewest that prefill, with which a cluster can run. */
  readonly instancesMin?: number;
  readonly prefillMin?: number;
}

export interface TrialResult {
  /** Share of all requests within their SLO: 0..1. */
  readonly share: number;
}

export type Trial<U extends Unit, K extends TrialResult> = Shape &
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
  /** Target: share of requests within their SLO. */
  readonly within: number;
}

/** Simulates a cluster. A function of its arguments. */
export type RunTrial<U extends Unit, K extends TrialResult> = (unit: U, shape: Shape, decodeUnit: U) => Promise<K>;

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
 * Every trial, in order. Exact where more instances of a role never serve fewer requests within their SLO. No cluster is tried that costs
 * more than one that meets the target.
 * @param pairs hardware for prefill and for decode that may be combined, besides each unit with itself
 */
export async function searchPlans<U extends Unit, K extends TrialResult>(
  units: readonly U[],
  limits: SearchLimits,
  runTrial: RunTrial<U, K>,
  pairs: readonly (readonly [U, U])[] = [],
): Promise<readonly Trial<U, K>[]> {
  const search = new PlanSearch(limits, runTrial);
  for (const unit of units) await search.coupled(unit);
  for (const unit of units) await search.disaggregated(unit);
  for (const [prefill, decode] of pairs) await search.heterogeneous(prefill, decode);
  return search.trials;
}

/** The cheapest that meets the target; at equal price the one with the largest share, then the first trial. */
export function cheapestOf<U extends Unit, K extends TrialResult>(trials: readonly Trial<U, K>[], within: number) {
  return byPrice(trials).find(({ share }) => share >= within);
}

/** The Pareto frontier of price and share, cheapest first. */
export function frontierOf<U extends Unit, K extends TrialResult>(
  trials: readonly Trial<U, K>[],
): readonly Trial<U, K>[] {
  let bestShare = -1;
  return byPrice(trials).filter(({ share }) => {
    const better = share > bestShare;
    bestShare = Math.max(bestShare, share);
    return better;
  });
}

function byPrice<U extends Unit, K extends TrialResult>(trials: readonly Trial<U, K>[]): readonly Trial<U, K>[] {
  return [...trials].sort((a, b) => a.pricePerHour - b.pricePerHour || b.share - a.share);
}

class PlanSearch<U extends Unit, K extends TrialResult> {
  readonly trials: Trial<U, K>[] = [];
  readonly #limits: SearchLimits;
  readonly #runTrial: RunTrial<U, K>;
  /** Price of the cheapest so far that meets the target. */
  #pricePerHour = Number.POSITIVE_INFINITY;

  constructor(limits: SearchLimits, runTrial: RunTrial<U, K>) {
    this.#limits = limits;
    this.#runTrial = runTrial;
  }

  /** Bisects the levels, then walks down while one of the next two meets the target: more instances may also have a slightly smaller share. */
  async coupled(unit: U): Promise<void> {
    const levels = this.#affordable(unit);
    const known = new Map<number, boolean>();
    const meetsTarget = async (level: number) => {
      const isMet =
        known.get(level) ?? (await this.#meetsTarget(unit, { prefill: 0, decode: 0, mixed: levels[level] ?? 0 }));
      known.set(level, isMet);
      return isMet;
    };
    let least = levels.length;
    for (let below = -1; least - below > 1; ) {
      const middle = (least + below) >> 1;
      if (await meetsTarget(middle)) least = middle;
      else below = middle;
    }
    if (least === levels.length) return;
    // The level just below has failed.
    for (let level = least - 2, failed = 1; level >= 0 && failed < 2; level--) {
      failed = (await meetsTarget(level)) ? 0 : failed + 1;
    }
  }

  /** A prefill pool that fails with all other instances decoding fails with fewer. After each level that meets the target comes the next lower one. */
  async disaggregated(unit: U): Promise<void> {
    const levels = this.#affordable(unit);
    for (let level = levels.length - 1, prefill = 1; level >= 0; ) {
      const decode = (levels[level] ?? 0) - prefill;
      if (decode < 1) return;
      if (await this.#meetsTarget(unit, { prefill, decode, mixed: 0 })) level--;
      else prefill++;
    }
  }

  /**
   * Separate machines for the two roles, from the largest decode pool down: after a failure with more prefill, after a success with fewer
   * decode instances. Only clusters cheaper than the cheapest so far are tried.
   */
  async heterogeneous(prefillUnit: U, decodeUnit: U): Promise<void> {
    const { instancesMax } = this.#limits;
    const prefills = levelsOf(prefillUnit, instancesMax);
    const decodes = levelsOf(decodeUnit, instancesMax);
    for (let p = 0, d = decodes.length - 1; p < prefills.length && d >= 0; ) {
      const shape = { prefill: prefills[p] ?? 0, decode: decodes[d] ?? 0, mixed: 0 };
      const fits = shape.prefill + shape.decode <= instancesMax;
      if (!fits || this.#priceOf(prefillUnit, shape, decodeUnit) >= this.#pricePerHour) d--;
      else if (await this.#meetsTarget(prefillUnit, shape, decodeUnit)) d--;
      else p++;
    }
  }

  /** Levels at most as expensive as the cheapest so far. */
  #affordable(unit: U): readonly number[] {
    return levelsOf(unit, this.#limits.instancesMax).filter(
      (level) => this.#priceOf(unit, { prefill: 0, decode: 0, mixed: level }, unit) <= this.#pricePerHour,
    );
  }

  /** Both roles share machines of the same hardware. */
  #machines(unit: U, { prefill, decode, mixed }: Shape, decodeUnit: U): readonly [number, number] {
    if (unit === decodeUnit) return [machinesOf(unit, prefill + decode + mixed), 0];
    return [machinesOf(unit, prefill + mixed), machinesOf(decodeUnit, decode)];
  }

  #priceOf(unit: U, shape: Shape, decodeUnit: U): number {
    const [machines, decodeMachines] = this.#machines(unit, shape, decodeUnit);
    const { addedPricePerHour = 0 } = unit;
    return machines * unit.pricePerHour + decodeMachines * decodeUnit.pricePerHour + addedPricePerHour;
  }

  async #meetsTarget(unit: U, shape: Shape, decodeUnit = unit): Promise<boolean> {
    const { instancesMin = 0, prefillMin = 0 } = unit;
    if (shape.prefill + shape.decode + shape.mixed < instancesMin || shape.prefill < prefillMin) return false;
    const result = await this.#runTrial(unit, shape, decodeUnit);
    const [own, others] = this.#machines(unit, shape, decodeUnit);
    const pricePerHour = this.#priceOf(unit, shape, decodeUnit);
    this.trials.push({ ...shape, ...result, unit, decodeUnit, machines: own + others, pricePerHour });
    const enough = result.share >= this.#limits.within;
    if (enough) this.#pricePerHour = Math.min(this.#pricePerHour, pricePerHour);
    return enough;
  }
}
