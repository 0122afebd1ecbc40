// The router's record of the instances: role, capacity, load, and whether each is up.

import type { InstanceIndex } from '../protocol/ids.ts';
import type { InstanceRole } from '../protocol/instance-report.ts';
import type { ConductorInstance } from './conductor-config.ts';
import { InstanceHealth } from './failure-recovery/instance-health.ts';

interface InstanceState {
  readonly capacityTokens: number;
  readonly role: InstanceRole;
  /** The role changes with its next incarnation at the earliest. */
  keepsRole: boolean;
  /** Instances of equal kernels compute equal bits; undefined: the bits do not depend on them. */
  kernels: string | undefined;
  /** Instances to which it cannot send pages. */
  readonly unreachable: ReadonlySet<InstanceIndex>;
  /** Attempts that are assigned to the instance. */
  requests: number;
  /** Output arrived since the last interrupt: interrupts cannot starve the other requests. */
  progressed: boolean;
}

const none: ReadonlySet<InstanceIndex> = new Set();

/** What every placement reads of all instances. */
interface Overview {
  /** Up instances. */
  readonly byRole: Readonly<Record<InstanceRole, readonly InstanceIndex[]>>;
  readonly computing: readonly InstanceIndex[];
  readonly overdue: ReadonlySet<InstanceIndex>;
  readonly allReach: boolean;
  readonly capacityTokensMin: number;
  /** (instances): 1 unless the role is prefill; undefined: no role is. */
  readonly notPrefill: Uint8Array | undefined;
}

export class InstanceTable {
  readonly health: InstanceHealth;
  readonly #instances: readonly { -readonly [Field in keyof InstanceState]: InstanceState[Field] }[];
  /** Up or not. */
  readonly #overdue = new Set<InstanceIndex>();
  /** Undefined after a change of an instance, until it is read. */
  #overview: Overview | undefined;

  constructor(instances: readonly ConductorInstance[]) {
    this.health = new InstanceHealth(instances.length, () => this.#changed());
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

  setRole(instance: InstanceIndex, role: InstanceRole): void {
    this.#instances[instance].role = role;
    this.#changed();
  }

  setCapacity(instance: InstanceIndex, tokens: number): void {
    this.#instances[instance].capacityTokens = tokens;
    this.#changed();
  }

  /** @param peers instances to which it cannot send pages */
  setUnreachable(instance: InstanceIndex, peers: readonly InstanceIndex[]): void {
    this.#instances[instance].unreachable = peers.length === 0 ? none : new Set(peers);
    this.#changed();
  }

  /** Its running step takes far longer than predicted, or does so no longer. */
  setOverdue(instance: InstanceIndex, isOverdue: boolean): void {
    if (isOverdue) this.#overdue.add(instance);
    else this.#overdue.delete(instance);
    this.#changed();
  }

  /** Up instances whose running step takes far longer than predicted. */
  get overdue(): ReadonlySet<InstanceIndex> {
    return this.#all.overdue;
  }

  /** Up instances that compute prompts. */
  get computing(): readonly InstanceIndex[] {
    return this.#all.computing;
  }

  /** Up instances that decode what others prefill. */
  get decoding(): readonly InstanceIndex[] {
    return this.withRole('decode');
  }

  /** Up instances of a role. */
  withRole(role: InstanceRole): readonly InstanceIndex[] {
    return this.#all.byRole[role];
  }

  /** True unless `from` has reported that it cannot send pages to `to`. */
  reaches(from: InstanceIndex, to: InstanceIndex): boolean {
    return !this.#instances[from].unreachable.has(to);
  }

  get allReach(): boolean {
    return this.#all.allReach;
  }

  /** True when every instance has memory for this number of tokens. */
  allHold(tokens: number): boolean {
    return tokens <= this.#all.capacityTokensMin;
  }

  /** (instances): 1 unless the role is prefill, up or not; undefined: no role is. */
  get notPrefill(): Uint8Array | undefined {
    return this.#all.notPrefill;
  }

  get #all(): Overview {
    this.#overview ??= this.#computeOverview();
    return this.#overview;
  }

  #changed(): void {
    this.#overview = undefined;
  }

  #computeOverview(): Overview {
    const byRole: Record<InstanceRole, InstanceIndex[]> = { prefill: [], decode: [], mixed: [], store: [] };
    const computing: InstanceIndex[] = [];
    let allReach = true;
    let capacityTokensMin = Number.POSITIVE_INFINITY;
    for (const [i, { role, unreachable, capacityTokens }] of this.#instances.entries()) {
      allReach &&= unreachable.size === 0;
      capacityTokensMin = Math.min(capacityTokensMin, capacityTokens);
      if (!this.isUp(i)) continue;
      byRole[role].push(i);
      if (computesPrompts(role)) computing.push(i);
    }
    const notPrefill = Uint8Array.from(this.#instances, ({ role }) => Number(role !== 'prefill'));
    const overdue = new Set([...this.#overdue].filter((i) => this.isUp(i)));
    return {
      ...{ byRole, computing, overdue, allReach, capacityTokensMin },
      notPrefill: notPrefill.includes(0) ? notPrefill : undefined,
    };
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
