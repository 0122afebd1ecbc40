// When an instance should change between prefill and decode: by the loads of both pools, with hysteresis.

export interface RoleSwitchLimits {
  /** A pool must need an instance for this time before an instance switches. */
  readonly sustainUs: number;
  /** Minimum time between two switches. */
  readonly dwellUs: number;
  /** Minimum ratio of the larger load before a switch to the larger load after it. */
  readonly gain: number;
  /** While both loads are below this, no instance switches. */
  readonly loadMin: number;
  /** Interval of the checks. */
  readonly intervalUs: number;
  /** Arrivals are averaged over about this time, and queued work counts as demand over it. */
  readonly windowUs: number;
}

export const roleSwitchLimits: RoleSwitchLimits = {
  sustainUs: 5_000_000,
  dwellUs: 15_000_000,
  gain: 1.15,
  loadMin: 0.5,
  intervalUs: 1_000_000,
  windowUs: 20_000_000,
};

export interface PoolDemand {
  readonly instances: number;
  /** Work of the pool, in fully loaded instances. */
  readonly demand: number;
}

export type SplitRole = 'prefill' | 'decode';

/** The fuller pool, when one more instance relieves it enough; undefined: no switch is worth it. */
export function poolToGrow(prefill: PoolDemand, decode: PoolDemand, limits: RoleSwitchLimits): SplitRole | undefined {
  const fullest = Math.max(load(prefill, 0), load(decode, 0));
  if (fullest < limits.loadMin) return undefined;
  const role = load(prefill, 0) > load(decode, 0) ? 'prefill' : 'decode';
  const [donor, receiver] = role === 'prefill' ? [decode, prefill] : [prefill, decode];
  if (donor.instances < 2) return undefined;
  return Math.max(load(donor, -1), load(receiver, 1)) * limits.gain <= fullest ? role : undefined;
}

function load({ instances, demand }: PoolDemand, more: number): number {
  return demand / Math.max(1, instances + more);
}

/** Decides for a switch when the same pool has needed an instance for long enough, and the last switch is long enough ago. */
export class RoleSwitcher {
  readonly #limits: RoleSwitchLimits;
  #needed: SplitRole | undefined;
  #neededSinceUs = 0;
  #switchedUs = Number.NEGATIVE_INFINITY;

  constructor(limits: RoleSwitchLimits) {
    this.#limits = limits;
  }

  /** The role that an instance takes now; undefined: none switches. `nowUs` never decreases. */
  decide(nowUs: number, prefill: PoolDemand, decode: PoolDemand): SplitRole | undefined {
    const needed = poolToGrow(prefill, decode, this.#limits);
    if (needed !== this.#needed) this.#neededSinceUs = nowUs;
    this.#needed = needed;
    const { sustainUs, dwellUs } = this.#limits;
    if (needed === undefined || nowUs - this.#neededSinceUs < sustainUs || nowUs - this.#switchedUs < dwellUs)
      return undefined;
    this.#switchedUs = nowUs;
    this.#neededSinceUs = nowUs;
    return needed;
  }
}
