// Tenants, SLO classes and priorities for workloads without them: drawn by share.
import { counterUniform } from '../util/counter-random.ts';
import type { TraceRequest } from './request.ts';

/** A probability relative to the sum of all shares. */
export interface Share {
  readonly name: string;
  readonly share: number;
}

export interface LabelSettings {
  /** Empty: no class is drawn. */
  readonly classes: readonly Share[];
  readonly tenants: readonly Share[];
  /** By class. */
  readonly priorities: ReadonlyMap<string, number>;
  readonly seed: number;
}

/** Random streams of this file alone. */
const streams = { classes: 11, tenants: 12 };

/** A pure function of (settings, index of the request). Labels that a request already has stay. */
export class Labels {
  readonly #settings: LabelSettings;

  constructor(settings: LabelSettings) {
    this.#settings = settings;
  }

  take(request: TraceRequest): TraceRequest {
    const { classes, tenants, priorities } = this.#settings;
    if (classes.length + tenants.length + priorities.size === 0) return request;
    const { index } = request;
    const sloClass = request.sloClass ?? this.#draw(classes, streams.classes, index);
    const tenant = request.tenant ?? this.#draw(tenants, streams.tenants, index);
    const priority = request.priority ?? (sloClass === undefined ? undefined : priorities.get(sloClass));
    return {
      ...request,
      ...(sloClass === undefined ? {} : { sloClass }),
      ...(tenant === undefined ? {} : { tenant }),
      ...(priority === undefined ? {} : { priority }),
    };
  }

  #draw(shares: readonly Share[], stream: number, index: number): string | undefined {
    if (shares.length === 0) return undefined;
    const sum = shares.reduce((all, { share }) => all + share, 0);
    let left = counterUniform(this.#settings.seed, stream, index) * sum;
    for (const { name, share } of shares) {
      if (left < share) return name;
      left -= share;
    }
    return shares.at(-1)?.name;
  }
}
