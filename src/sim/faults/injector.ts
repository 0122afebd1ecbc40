// Injects faults at given times, or repeatedly at random, all from the seed.
import type { InstanceIndex } from '../../core/protocol/ids.ts';
import { assertNever } from '../../util/assert-never.ts';
import { Prng } from '../../util/prng.ts';
import type { EventQueue } from '../engine/event-queue.ts';
import { countFault, type Fault, type FaultCounts, type FaultName, type FaultPlan } from './fault-plan.ts';
import type { Endpoint } from './faulty-network.ts';

/** The system that faults are injected into. */
export interface FaultTarget {
  readonly queue: EventQueue;
  /** Number of instances. */
  readonly size: number;
  /** Endpoints that a partition may cut off. */
  readonly endpoints: readonly Endpoint[];
  /** Counts of injected faults. */
  readonly injected: FaultCounts;
  /** False when the instance is down. */
  crash(instance: InstanceIndex): boolean;
  /** False when the instance is up. */
  start(instance: InstanceIndex): boolean;
  /** An attention worker of the instance loses its pages; another has its place after this time. False when none can be lost. */
  loseAttentionWorker(instance: InstanceIndex, forUs: number): boolean;
  /** Factor 1 ends the slowness. */
  setSlowness(instance: InstanceIndex, factor: number): void;
  partition(endpoints: readonly Endpoint[]): void;
  reconnect(endpoints: readonly Endpoint[]): void;
  restartConductor(): void;
  restartGManager(): void;
}

/** Random stream of this file alone. */
const stream = 41;

export class Injector {
  readonly #target: FaultTarget;
  readonly #prng: Prng;
  /** Numbers of present faults that slow each instance. */
  readonly #slowed = new Map<InstanceIndex, number>();
  #stopped = false;

  constructor({ seed, faults }: Pick<FaultPlan, 'seed' | 'faults'>, target: FaultTarget) {
    this.#target = target;
    this.#prng = new Prng(seed, stream);
    for (const fault of faults) {
      if (fault.atUs !== undefined) target.queue.after(fault.atUs, () => this.#inject(fault, fault.forUs));
      else if (fault.everyUs !== undefined) this.#repeat(fault, fault.everyUs);
    }
  }

  /** Injects nothing more. Present faults end at their times. */
  stop(): void {
    this.#stopped = true;
  }

  #repeat(fault: Fault, everyUs: number): void {
    this.#target.queue.after(this.#prng.exponentialUs(everyUs), () => {
      if (this.#stopped) return;
      const { forUs } = fault;
      this.#inject(fault, forUs === Number.POSITIVE_INFINITY ? forUs : this.#prng.exponentialUs(forUs));
      this.#repeat(fault, everyUs);
    });
  }

  #inject({ kind, factor, instances }: Fault, forUs: number): void {
    const target = this.#target;
    if (this.#stopped) return;
    switch (kind) {
      case 'crash':
        for (const instance of instances ?? [this.#anyInstance()]) this.#crash(instance, forUs);
        break;
      case 'worker':
        for (const instance of instances ?? [this.#anyInstance()])
          if (target.loseAttentionWorker(instance, forUs)) this.#count('attention worker loss');
        break;
      case 'slow':
        for (const instance of instances ?? [this.#anyInstance()]) this.#slow(instance, factor, forUs);
        break;
      case 'partition': {
        const endpoints = [...(instances ?? this.#anyEndpoints())];
        this.#count('partition');
        target.partition(endpoints);
        this.#after(forUs, () => target.reconnect(endpoints));
        break;
      }
      case 'conductor':
        this.#count('conductor restart');
        target.restartConductor();
        break;
      case 'gmanager':
        this.#count('gManager restart');
        target.restartGManager();
        break;
      case 'loss':
      case 'duplication':
      case 'delay':
        break;
      default:
        assertNever(kind);
    }
  }

  #crash(instance: InstanceIndex, forUs: number): void {
    if (!this.#target.crash(instance)) return;
    this.#count('crash');
    this.#after(forUs, () => {
      if (this.#target.start(instance)) this.#count('restart');
    });
  }

  #slow(instance: InstanceIndex, factor: number, forUs: number): void {
    this.#count('slow node');
    this.#slowed.set(instance, (this.#slowed.get(instance) ?? 0) + 1);
    this.#target.setSlowness(instance, factor);
    this.#after(forUs, () => {
      const left = (this.#slowed.get(instance) ?? 1) - 1;
      this.#slowed.set(instance, left);
      if (left === 0) this.#target.setSlowness(instance, 1);
    });
  }

  #after(forUs: number, action: () => void): void {
    if (forUs < Number.POSITIVE_INFINITY) this.#target.queue.after(forUs, action);
  }

  #anyInstance(): InstanceIndex {
    return this.#prng.integer(0, this.#target.size - 1);
  }

  /** About a third of all endpoints. */
  #anyEndpoints(): readonly Endpoint[] {
    return this.#target.endpoints.filter(() => this.#prng.chance(0.3));
  }

  #count(name: FaultName): void {
    countFault(this.#target.injected, name);
  }
}
