// Failure detector over heartbeats: which instances are up, in which incarnation, and when each last reported.

import type { InstanceIndex } from '../../protocol/ids.ts';
import type { InstanceReport } from '../../protocol/instance-report.ts';

/**
 * `late`: a duplicate or reordered heartbeat. `orphan`: of an earlier incarnation. `restarted`: the first of a new incarnation.
 * `recovered`: the instance had been declared failed. `current`: none of these.
 */
export type ReportVerdict = 'late' | 'orphan' | 'restarted' | 'recovered' | 'current';

interface Health {
  up: boolean;
  incarnation: number | undefined;
  /** Of the last heartbeat. */
  number: number;
  reportedUs: number;
}

export class InstanceHealth {
  readonly #instances: readonly Health[];
  readonly #changed: () => void;

  /** @param changed called when an instance is up that was not, or the other way around */
  constructor(instances: number, changed: () => void) {
    this.#changed = changed;
    this.#instances = Array.from({ length: instances }, () => ({
      ...{ up: true, incarnation: undefined, number: 0, reportedUs: 0 },
    }));
  }

  isUp(instance: InstanceIndex): boolean {
    return this.#instances[instance]?.up === true;
  }

  /** Undefined before its first heartbeat or join. */
  incarnationOf(instance: InstanceIndex): number | undefined {
    return this.#instances[instance].incarnation;
  }

  /** Takes a heartbeat. */
  reported(nowUs: number, instance: InstanceIndex, { incarnation, number }: InstanceReport): ReportVerdict {
    const health = this.#instances[instance];
    if (health.incarnation !== undefined && incarnation < health.incarnation) return 'orphan';
    if (incarnation === health.incarnation && number <= health.number) return 'late';
    const isRestart = health.incarnation !== undefined && incarnation !== health.incarnation;
    const wasUp = health.up;
    this.#setUp(health, true);
    health.incarnation = incarnation;
    health.number = number;
    health.reportedUs = nowUs;
    if (isRestart) return 'restarted';
    return wasUp ? 'current' : 'recovered';
  }

  /** The instance is up, without requests; false for an earlier incarnation, or one that has joined already. */
  joined(nowUs: number, instance: InstanceIndex, incarnation: number): boolean {
    const health = this.#instances[instance];
    if (health === undefined || incarnation < (health.incarnation ?? 0)) return false;
    if (incarnation === health.incarnation && health.up) return false;
    this.#setUp(health, true);
    health.incarnation = incarnation;
    health.number = 0;
    health.reportedUs = nowUs;
    return true;
  }

  setFailed(instance: InstanceIndex): void {
    this.#setUp(this.#instances[instance], false);
  }

  #setUp(health: Health, up: boolean): void {
    if (health.up === up) return;
    health.up = up;
    this.#changed();
  }

  /** Up instances without a heartbeat since `sinceUs`. */
  silentSince(sinceUs: number): readonly InstanceIndex[] {
    const silent: InstanceIndex[] = [];
    for (const [i, { up, reportedUs }] of this.#instances.entries()) if (up && reportedUs < sinceUs) silent.push(i);
    return silent;
  }
}
