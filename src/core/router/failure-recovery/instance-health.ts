// What the conductor knows of its instances: which of them are there, in which life, and when they last said so.
import type { InstanceIndex } from '../../protocol/ids.ts';
import type { InstanceReport } from '../../protocol/instance-report.ts';

/** `late`: known already. `orphan`: of an earlier life. `newborn`: the first word of a life. `back`: it had been given up. */
export type ReportVerdict = 'late' | 'orphan' | 'newborn' | 'back' | 'known';

interface Watched {
  up: boolean;
  incarnation: number | undefined;
  number: number;
  heardUs: number;
}

export class InstanceHealth {
  readonly #instances: readonly Watched[];

  constructor(instances: number) {
    this.#instances = Array.from({ length: instances }, () => ({
      up: true,
      incarnation: undefined,
      number: 0,
      heardUs: 0,
    }));
  }

  isUp(instance: InstanceIndex): boolean {
    return this.#instances[instance]?.up === true;
  }

  /** Undefined until it has spoken. */
  incarnationOf(instance: InstanceIndex): number | undefined {
    return this.#instances[instance].incarnation;
  }

  hear(nowUs: number, instance: InstanceIndex, { incarnation, number }: InstanceReport): ReportVerdict {
    const watched = this.#instances[instance];
    if (watched.incarnation !== undefined && incarnation < watched.incarnation) return 'orphan';
    if (incarnation === watched.incarnation && number <= watched.number) return 'late';
    const verdict =
      incarnation !== watched.incarnation && watched.incarnation !== undefined
        ? 'newborn'
        : watched.up
          ? 'known'
          : 'back';
    watched.up = true;
    watched.incarnation = incarnation;
    watched.number = number;
    watched.heardUs = nowUs;
    return verdict;
  }

  /** It is there, with nothing; false when that cannot be. */
  join(nowUs: number, instance: InstanceIndex, incarnation: number): boolean {
    const watched = this.#instances[instance];
    if (
      watched === undefined ||
      incarnation < (watched.incarnation ?? 0) ||
      (incarnation === watched.incarnation && watched.up)
    )
      return false;
    watched.up = true;
    watched.incarnation = incarnation;
    watched.number = 0;
    watched.heardUs = nowUs;
    return true;
  }

  lose(instance: InstanceIndex): void {
    this.#instances[instance].up = false;
  }

  /** Those that are thought to be there and have said nothing since `sinceUs`. */
  silentSince(sinceUs: number): readonly InstanceIndex[] {
    const silent: InstanceIndex[] = [];
    for (const [i, { up, heardUs }] of this.#instances.entries()) if (up && heardUs < sinceUs) silent.push(i);
    return silent;
  }
}
