// What the conductor knows of the work of both pools, so that instances change sides with it.
import { type PoolDemand, RoleSwitcher, type RoleSwitchLimits, type SplitRole } from './role-switch.ts';

/** The pools, as they stand. */
interface Pools {
  readonly prefillInstances: number;
  readonly decodeInstances: number;
  /** Of the instances that prefill: mean time until a prefill that comes now would begin. */
  readonly waitUs: number;
  /** Of all who decode and all whose prompts should be there by now, in full instances. */
  readonly decodeDemand: number;
}

/** Looked at when requests come. */
export class RoleBalance {
  readonly #limits: RoleSwitchLimits;
  readonly #switcher: RoleSwitcher;
  #workUs = 0;
  #lookedUs = 0;
  /** Prefill that comes, in full instances. */
  #arriving = 0;

  constructor(limits: RoleSwitchLimits) {
    this.#limits = limits;
    this.#switcher = new RoleSwitcher(limits);
  }

  /** A prompt was sent to an instance that prefills. @param prefillUs predicted */
  sent(prefillUs: number): void {
    this.#workUs += prefillUs;
  }

  /** The side that an instance is to come over to now. */
  look(nowUs: number, pools: () => Pools): SplitRole | undefined {
    const { lookUs, windowUs } = this.#limits;
    const pastUs = nowUs - this.#lookedUs;
    if (pastUs < lookUs) return undefined;
    this.#arriving += (this.#workUs / pastUs - this.#arriving) * (pastUs / (pastUs + windowUs));
    this.#workUs = 0;
    this.#lookedUs = nowUs;
    const { prefillInstances, decodeInstances, waitUs, decodeDemand } = pools();
    const waiting = (waitUs * prefillInstances) / windowUs;
    const prefill: PoolDemand = { instances: prefillInstances, demand: this.#arriving + waiting };
    return this.#switcher.look(nowUs, prefill, { instances: decodeInstances, demand: decodeDemand });
  }
}
