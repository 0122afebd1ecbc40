// Makes faults happen: at given times, or again and again by chance, all from the seed.
import type { InstanceIndex } from '../../core/protocol/ids.ts';
import { Prng } from '../../util/prng.ts';
import type { Fault, FaultName, FaultPlan } from './faults.ts';
import type { Party } from './faulty-network.ts';

/** What faults happen to. */
export interface Victim {
  readonly instances: number;
  /** Those that a partition may cut off. */
  readonly parties: readonly Party[];
  readonly later: (delayUs: number, action: () => void) => void;
  readonly count: (fault: FaultName) => void;
  /** False when it is down. */
  readonly crash: (instance: InstanceIndex) => boolean;
  /** False when it is up. */
  readonly start: (instance: InstanceIndex) => boolean;
  readonly slow: (instance: InstanceIndex, factor: number) => void;
  readonly cut: (parties: readonly Party[]) => void;
  readonly join: (parties: readonly Party[]) => void;
  readonly restartConductor: () => void;
  readonly restartGManager: () => void;
}

/** Stream of the seed that nothing else draws from. */
const stream = 41;

export class Injector {
  readonly #victim: Victim;
  readonly #prng: Prng;
  /** How many faults hold an instance down, and make it slow. */
  readonly #slowed = new Map<InstanceIndex, number>();
  #over = false;

  constructor({ seed, faults }: FaultPlan, victim: Victim) {
    this.#victim = victim;
    this.#prng = new Prng(seed, stream);
    for (const fault of faults) {
      if (fault.atUs !== undefined) victim.later(fault.atUs, () => this.#inject(fault, fault.forUs));
      else if (fault.everyUs !== undefined) this.#again(fault, fault.everyUs);
    }
  }

  /** Nothing more happens; what has happened ends when it would. */
  stop(): void {
    this.#over = true;
  }

  #again(fault: Fault, everyUs: number): void {
    this.#victim.later(this.#prng.exponentialUs(everyUs), () => {
      if (this.#over) return;
      this.#inject(
        fault,
        fault.forUs === Number.POSITIVE_INFINITY ? fault.forUs : this.#prng.exponentialUs(fault.forUs),
      );
      this.#again(fault, everyUs);
    });
  }

  #inject({ kind, factor, instances }: Fault, forUs: number): void {
    const victim = this.#victim;
    if (this.#over) return;
    switch (kind) {
      case 'crash':
        for (const instance of instances ?? [this.#anyone()]) this.#crash(instance, forUs);
        break;
      case 'slow':
        for (const instance of instances ?? [this.#anyone()]) this.#slow(instance, factor, forUs);
        break;
      case 'partition': {
        const parties = [...(instances ?? this.#some())];
        victim.count('partition');
        victim.cut(parties);
        this.#after(forUs, () => victim.join(parties));
        break;
      }
      case 'conductor':
        victim.count('conductor restart');
        victim.restartConductor();
        break;
      case 'gmanager':
        victim.count('gManager restart');
        victim.restartGManager();
        break;
    }
  }

  #crash(instance: InstanceIndex, forUs: number): void {
    if (!this.#victim.crash(instance)) return;
    this.#victim.count('crash');
    this.#after(forUs, () => {
      if (this.#victim.start(instance)) this.#victim.count('restart');
    });
  }

  #slow(instance: InstanceIndex, factor: number, forUs: number): void {
    this.#victim.count('slow node');
    this.#slowed.set(instance, (this.#slowed.get(instance) ?? 0) + 1);
    this.#victim.slow(instance, factor);
    this.#after(forUs, () => {
      const left = (this.#slowed.get(instance) ?? 1) - 1;
      this.#slowed.set(instance, left);
      if (left === 0) this.#victim.slow(instance, 1);
    });
  }

  #after(forUs: number, action: () => void): void {
    if (forUs < Number.POSITIVE_INFINITY) this.#victim.later(forUs, action);
  }

  #anyone(): InstanceIndex {
    return this.#prng.integer(0, this.#victim.instances - 1);
  }

  /** About a third of all, the conductor among them now and then. */
  #some(): readonly Party[] {
    return this.#victim.parties.filter(() => this.#prng.chance(0.3));
  }
}
