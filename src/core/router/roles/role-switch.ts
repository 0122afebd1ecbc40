// When an instance should change sides: what both pools have to do over what they can, with hysteresis.

export interface RoleSwitchLimits {
  /** A wish has to hold for so long, and a pool rests for so long after a switch. */
  readonly sustainUs: number;
  readonly dwellUs: number;
  /** The fuller pool has to be so many times as full as it would be after a switch. */
  readonly gain: number;
  /** While both are emptier than this, nothing is gained. */
  readonly loadMin: number;
  /** Pools are looked at so often at most, what comes is averaged over about `windowUs`, and what waits is to be worked off in as long. */
  readonly intervalUs: number;
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

/** Of a pool: instances, and what it has to do, in full instances. */
export interface PoolDemand {
  readonly instances: number;
  readonly demand: number;
}

export type SplitRole = 'prefill' | 'decode';

/** The pool that the fuller one would be relieved by most, if an instance came over to it; undefined: neither is worth it. */
export function poolToGrow(prefill: PoolDemand, decode: PoolDemand, limits: RoleSwitchLimits): SplitRole | undefined {
  const fullest = Math.max(load(prefill, 0), load(decode, 0));
  if (fullest < limits.loadMin) return undefined;
  const role = load(prefill, 0) > load(decode, 0) ? 'prefill' : 'decode';
  const [gives, takes] = role === 'prefill' ? [decode, prefill] : [prefill, decode];
  if (gives.instances < 2) return undefined;
  return Math.max(load(gives, -1), load(takes, 1)) * limits.gain <= fullest ? role : undefined;
}

function load({ instances, demand }: PoolDemand, more: number): number {
  return demand / Math.max(1, instances + more);
}

/** Switches when the same wish has held long enough, and the last switch is long enough ago. */
export class RoleSwitcher {
  readonly #limits: RoleSwitchLimits;
  #wish: SplitRole | undefined;
  #wishedUs = 0;
  #switchedUs = Number.NEGATIVE_INFINITY;

  constructor(limits: RoleSwitchLimits) {
    this.#limits = limits;
  }

  /** The side that an instance is to come over to now. `nowUs` never goes back. */
  decide(nowUs: number, prefill: PoolDemand, decode: PoolDemand): SplitRole | undefined {
    const wish = poolToGrow(prefill, decode, this.#limits);
    if (wish !== this.#wish) this.#wishedUs = nowUs;
    this.#wish = wish;
    const { sustainUs, dwellUs } = this.#limits;
    if (wish === undefined || nowUs - this.#wishedUs < sustainUs || nowUs - this.#switchedUs < dwellUs)
      return undefined;
    this.#switchedUs = nowUs;
    this.#wishedUs = nowUs;
    return wish;
  }
}
