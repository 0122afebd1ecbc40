// Which instance does what, and when one changes: because somebody says so, or because the work of both pools has shifted.

import type { InstanceIndex } from '../../protocol/ids.ts';
import type { InstanceRole } from '../../protocol/instance-report.ts';
import { RoleBalance } from './role-balance.ts';
import type { RoleSwitchLimits } from './role-switch.ts';

/** The cluster, as roles see it. */
interface Cluster {
  readonly isUp: (instance: InstanceIndex) => boolean;
  readonly requestsAt: (instance: InstanceIndex) => number;
  /** Mean over the instances that compute prompts: until one that comes now would begin. */
  readonly waitUs: (nowUs: number) => number;
  /** Of those who decode what others prefill, in full instances. */
  readonly decodeDemand: (nowUs: number) => number;
  /** New requests are to go there in that role. */
  readonly changed: (instance: InstanceIndex, role: InstanceRole) => void;
}

export class Roles {
  readonly #roles: InstanceRole[];
  readonly #cluster: Cluster;
  /** Undefined: roles change when somebody says so. */
  readonly #balance: RoleBalance | undefined;

  constructor(roles: readonly InstanceRole[], limits: RoleSwitchLimits | undefined, cluster: Cluster) {
    this.#roles = [...roles];
    this.#cluster = cluster;
    this.#balance = limits && new RoleBalance(limits);
  }

  of(instance: InstanceIndex): InstanceRole | undefined {
    return this.#roles[instance];
  }

  /** A prompt was sent to an instance that prefills. @param prefillUs predicted */
  sent(prefillUs: number): void {
    this.#balance?.sent(prefillUs);
  }

  /** False where nothing changes, a role would be left with nobody, or one of the two is that of a store, which has no weights. */
  switch(instance: InstanceIndex, role: InstanceRole): boolean {
    const before = this.#roles[instance];
    if (before === undefined || before === role || before === 'store' || role === 'store') return false;
    this.#roles[instance] = role;
    const complete = this.#count('prefill') > 0 ? this.#count('decode') > 0 : this.#count('mixed') > 0;
    if (complete) this.#cluster.changed(instance, role);
    else this.#roles[instance] = before;
    return complete;
  }

  /** Another one has come in its place, which does that. */
  assign(instance: InstanceIndex, role: InstanceRole): void {
    if (this.#roles[instance] === role) return;
    this.#roles[instance] = role;
    this.#cluster.changed(instance, role);
  }

  /** An instance changes sides where the work of both pools has shifted for long enough. */
  balance(nowUs: number): void {
    const role = this.#balance?.look(nowUs, () => ({
      prefillInstances: this.#count('prefill'),
      decodeInstances: this.#count('decode'),
      waitUs: this.#cluster.waitUs(nowUs),
      decodeDemand: this.#cluster.decodeDemand(nowUs),
    }));
    if (role === undefined) return;
    const from = role === 'prefill' ? 'decode' : 'prefill';
    const { requestsAt } = this.#cluster;
    let least: InstanceIndex | undefined;
    for (const i of this.#all(from)) if (least === undefined || requestsAt(i) < requestsAt(least)) least = i;
    if (least !== undefined) this.switch(least, role);
  }

  /** Those that compute prompts and are up. */
  get computing(): readonly InstanceIndex[] {
    return [...this.#all('prefill'), ...this.#all('mixed')].sort((a, b) => a - b);
  }

  /** Those that decode what others prefill and are up. */
  get decoding(): readonly InstanceIndex[] {
    return this.#all('decode');
  }

  #all(role: InstanceRole): readonly InstanceIndex[] {
    return this.#roles.flatMap((each, i) => (each === role && this.#cluster.isUp(i) ? [i] : []));
  }

  #count(role: InstanceRole): number {
    return this.#all(role).length;
  }
}
