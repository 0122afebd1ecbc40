// Changes of roles: on request, or when the load of the prefill and decode pools has shifted.

import type { InstanceIndex, RequestId } from '../../protocol/ids.ts';
import type { InstanceRole } from '../../protocol/instance-report.ts';
import type { AdmissionController } from '../admission/admission-controller.ts';
import type { BatchJobs } from '../batch-jobs.ts';
import type { ConductorContext } from '../conductor-context.ts';
import { computesPrompts } from '../instance-table.ts';
import type { Placer } from '../placement/placer.ts';
import { RoleSwitcher, type RoleSwitchLimits } from './role-switch.ts';

interface Parts<Request extends { readonly id: RequestId }> {
  readonly placer: Placer<Request>;
  readonly admission: AdmissionController<Request>;
  readonly jobs: BatchJobs<Request>;
}

export class RoleController<Request extends { readonly id: RequestId }> {
  readonly #context: ConductorContext<Request>;
  readonly #parts: Parts<Request>;
  /** Undefined: roles change on request alone. */
  readonly #limits: RoleSwitchLimits | undefined;
  readonly #switcher: RoleSwitcher | undefined;
  /** Predicted prefill time of the prompts sent since `#checkedUs`. */
  #sentUs = 0;
  #checkedUs = 0;
  /** Arrival rate of prefill work, in fully loaded instances. */
  #arrivals = 0;

  constructor(context: ConductorContext<Request>, parts: Parts<Request>) {
    this.#context = context;
    this.#parts = parts;
    this.#limits = context.config.roleSwitch;
    this.#switcher = this.#limits && new RoleSwitcher(this.#limits);
  }

  /** A prompt was sent to an instance that prefills. @param prefillUs predicted */
  prefillSent(prefillUs: number): void {
    this.#sentUs += prefillUs;
  }

  /**
   * False when nothing changes, the instance keeps its role, a role would have no instance, or one of the roles is
   * `store`, which has no weights.
   */
  switch(instance: InstanceIndex, role: InstanceRole): boolean {
    const { instances } = this.#context;
    const before = instances.roleOf(instance);
    if (before === undefined || before === role || before === 'store' || role === 'store') return false;
    if (instances.at(instance).keepsRole) return false;
    instances.setRole(instance, role);
    const count = (each: InstanceRole): number => instances.withRole(each).length;
    const complete = count('prefill') > 0 ? count('decode') > 0 : count('mixed') > 0;
    if (complete) this.#changed(instance, role);
    else instances.setRole(instance, before);
    return complete;
  }

  /** Another machine has joined in the place of the instance, with this role. */
  assign(instance: InstanceIndex, role: InstanceRole): void {
    const { instances } = this.#context;
    if (instances.roleOf(instance) === role) return;
    instances.setRole(instance, role);
    this.#changed(instance, role);
  }

  /** The instance gets no further requests until another incarnation joins: as a store it computes none. */
  drain(instance: InstanceIndex): void {
    if (!this.#context.instances.isUp(instance)) return;
    this.assign(instance, 'store');
    this.replaceFailed();
  }

  /** The new role applies to new requests; those that the instance has end there. */
  #changed(instance: InstanceIndex, role: InstanceRole): void {
    const { placer, admission, jobs } = this.#parts;
    placer.setTakesPrompts(instance, computesPrompts(role), this.#context.instances.isUp(instance));
    admission.setRole(instance, role);
    jobs.instanceJoined();
    this.#context.emit({ kind: 'roleSwitched', instance, role });
  }

  /** The last instance of a pool has failed: one of the other pool takes its role, or both roles if it is the only one. */
  replaceFailed(): void {
    const { instances } = this.#context;
    if (this.#limits === undefined || instances.withRole('mixed').length > 0) return;
    const missing = (['prefill', 'decode'] as const).find((role) => instances.withRole(role).length === 0);
    if (missing === undefined) return;
    const donors = instances.withRole(missing === 'prefill' ? 'decode' : 'prefill');
    const donor = this.#leastLoaded(donors);
    if (donor !== undefined) this.switch(donor, donors.length > 1 ? missing : 'mixed');
  }

  /** Undefined: all keep their roles. */
  #leastLoaded(donors: readonly InstanceIndex[]): InstanceIndex | undefined {
    const { instances } = this.#context;
    let least: InstanceIndex | undefined;
    for (const i of donors.filter((each) => !instances.at(each).keepsRole))
      if (least === undefined || instances.at(i).requests < instances.at(least).requests) least = i;
    return least;
  }

  /**
   * Switches the least loaded instance of a pool when the other pool has been the fuller one for long enough. Both demands are those of this
   * conductor alone: it receives no arrivals of others.
   */
  balance(): void {
    const { nowUs, instances } = this.#context;
    if (this.#limits === undefined || this.#switcher === undefined) return;
    const { intervalUs, windowUs } = this.#limits;
    const pastUs = nowUs - this.#checkedUs;
    if (pastUs < intervalUs) return;
    this.#arrivals += (this.#sentUs / pastUs - this.#arrivals) * (pastUs / (pastUs + windowUs));
    this.#sentUs = 0;
    this.#checkedUs = nowUs;
    const prefills = instances.withRole('prefill').length;
    const queued = (this.#parts.placer.meanWaitUs(nowUs, false) * prefills) / windowUs;
    const role = this.#switcher.decide(
      nowUs,
      { instances: prefills, demand: this.#arrivals + queued },
      { instances: instances.withRole('decode').length, demand: this.#parts.admission.decodeDemand(nowUs) },
    );
    if (role === undefined) return;
    const least = this.#leastLoaded(instances.withRole(role === 'prefill' ? 'decode' : 'prefill'));
    if (least !== undefined) this.switch(least, role);
  }
}
