// The router's record of the instances: role, capacity, load, and whether each is up.

import type { InstanceIndex } from '../protocol/ids.ts';
import type { InstanceRole } from '../protocol/instance-report.ts';
import type { ConductorInstance } from './conductor-config.ts';
import { InstanceHealth } from './failure-recovery/instance-health.ts';

interface InstanceState {
  capacityTokens: number;
  role: InstanceRole;
  /** The role changes with its next incarnation at the earliest. */
  keepsRole: boolean;
  /** Instances of equal kernels compute equal bits; undefined: the bits do not depend on them. */
  kernels: string | undefined;
  /** Instances to which it cannot send pages. */
  unreachable: ReadonlySet<InstanceIndex>;
  /** Attempts that are assigned to the instance. */
  requests: number;
  /** Output arrived since the last interrupt: interrupts cannot starve the other requests. */
  progressed: boolean;
}

const none: ReadonlySet<InstanceIndex> = new Set();

export class InstanceTable {
  readonly health: InstanceHealth;
  readonly #instances: readonly InstanceState[];

  constructor(instances: readonly ConductorInstance[]) {
    this.health = new InstanceHealth(instances.length);
    this.#instances = instances.map(({ capacityTokens, role = 'mixed' }) => ({
      ...{ capacityTokens, role, keepsRole: false, requests: 0, progressed: true },
      ...{ kernels: undefined, unreachable: none },
    }));
  }

  get count(): number {
    return this.#instances.length;
  }

  at(instance: InstanceIndex): InstanceState {
    return this.#instances[instance];
  }

  isUp(instance: InstanceIndex): boolean {
    return this.health.isUp(instance);
  }

  /** Undefined for an index outside the cluster. */
  roleOf(instance: InstanceIndex): InstanceRole | undefined {
    return this.#instances[instance]?.role;
  }

  get roles(): readonly InstanceRole[] {
    return this.#instances.map(({ role }) => role);
  }

  /** The instance computes prompts, whether it is up or not. */
  computesPrompts(instance: InstanceIndex): boolean {
    return computesPrompts(this.#instances[instance].role);
  }

  /** Up instances that compute prompts. */
  get computing(): readonly InstanceIndex[] {
    return this.#instances.flatMap(({ role }, i) => (computesPrompts(role) && this.isUp(i) ? [i] : []));
  }

  /** Up instances that decode what others prefill. */
  get decoding(): readonly InstanceIndex[] {
    return this.withRole('decode');
  }

  /** Up instances of a role. */
  withRole(role: InstanceRole): readonly InstanceIndex[] {
    return this.#instances.flatMap((each, i) => (each.role === role && this.isUp(i) ? [i] : []));
  }

  /** True unless `from` has reported that it cannot send pages to `to`. */
  reaches(from: InstanceIndex, to: InstanceIndex): boolean {
    return !this.#instances[from].unreachable.has(to);
  }

  get allReach(): boolean {
    return this.#instances.every(({ unreachable }) => unreachable.size === 0);
  }

  /** True when every instance has memory for this number of tokens. */
  allHold(tokens: number): boolean {
    return this.#instances.every(({ capacityTokens }) => tokens <= capacityTokens);
  }

  /** The up instance of `instances` with the most memory. */
  largestOf(instances: readonly InstanceIndex[]): InstanceIndex | undefined {
    let largest: InstanceIndex | undefined;
    for (const i of instances)
      if (largest === undefined || this.at(i).capacityTokens > this.at(largest).capacityTokens) largest = i;
    return largest;
  }

  /**
   * Throws unless each instance has `requests` assigned attempts, and a failed one has none.
   * @param requests (instances)
   */
  check(requests: readonly number[]): void {
    const wrong = this.#instances.findIndex(
      (each, i) => each.requests !== requests[i] || (!this.isUp(i) && requests[i] > 0),
    );
    if (wrong < 0) return;
    throw new Error(
      `Conductor broken: instance ${wrong} has ${requests[wrong]} requests, counted ${this.at(wrong).requests}`,
    );
  }
}

export function computesPrompts(role: InstanceRole): boolean {
  return role === 'prefill' || role === 'mixed';
}
