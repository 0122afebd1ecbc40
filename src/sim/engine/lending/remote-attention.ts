// Remote attention in a simulated cluster, and its effect on the steps of creditors and debtors.

import { type QueryLink, remoteAttentionUs } from '../../../core/cost/dist-attention.ts';
import {
  fetchWait,
  type RemoteAttentionKind,
  type RemoteSource,
  type RemoteWait,
  shipWait,
  travellingKeyBytes,
} from '../../../core/cost/remote-way.ts';
import type { StepCostModel } from '../../../core/cost/roofline.ts';
import { unboundedPermille } from '../../../core/lending/lending-policy.ts';
import type { RemoteWork } from '../../../core/protocol/lending-effects.ts';
import type { StepShape } from '../../../core/protocol/step-shape.ts';

interface AttentionConfig {
  /** (instances) */
  readonly costs: readonly StepCostModel[];
  /** (instances): time to read a token's keys and values from host memory. */
  readonly hostTokenUs: readonly number[];
  /** Share of a step, in thousandths, that a creditor spends on all its debtors while it has work of its own. */
  readonly remoteAttentionPermilleMax: number;
  readonly kind: RemoteAttentionKind;
  /** Bytes of one row: its query and its partial result. */
  readonly rowBytes: number;
}

interface AttentionHost {
  readonly executors: readonly { readonly isRunning: boolean; readonly slowness: number }[];
  linkOf(from: number, to: number): QueryLink;
}

/** The state of a creditor that a debtor last received. */
interface CreditorState {
  /** The creditor has work of its own. */
  readonly busy: boolean;
  readonly slowness: number;
}

/** The work of one debtor's current steps at one creditor. */
interface RemoteLoad {
  readonly work: RemoteWork;
  readonly sharePermille: number;
  readonly slowness: number;
  readonly takenPermille: number;
}

/** The creditor's steps change, or the debtor's work there exceeds its bound. */
interface LoadChange {
  readonly creditor: number;
  /** The unbounded share of the creditor's time, where that exceeds the bound. */
  readonly exceedsPermille: number | undefined;
}

/**
 * On a busy creditor, work for a debtor takes no more than the bound of its loans, and the debtor waits. On an idle one
 * the debtors share all time by their blocks. A share changes with the rows and keys of a debtor's steps, not with every
 * token, so that runs of equal steps stay equal.
 */
export class RemoteAttention {
  readonly #config: AttentionConfig;
  readonly #host: AttentionHost;
  /** By debtor, then creditor. */
  readonly #loads: (readonly RemoteLoad[])[];
  /** By debtor, then creditor. */
  readonly #states: readonly Map<number, CreditorState>[];
  /** (instances): the current share of debtors in its steps, in thousandths. */
  readonly #taken: Int32Array;
  /** (instances): keys and values that travel to each step of its run; 0: rows travel. */
  readonly #keyBytes: Float64Array;
  /** Bytes of queries and partial results, and of keys and values that travelled instead. */
  queryBytes = 0;
  keyBytes = 0;

  constructor(config: AttentionConfig, host: AttentionHost) {
    this.#config = config;
    this.#host = host;
    this.#loads = config.costs.map(() => []);
    this.#states = config.costs.map(() => new Map<number, CreditorState>());
    this.#taken = new Int32Array(config.costs.length);
    this.#keyBytes = new Float64Array(config.costs.length);
  }

  /** Counts the bytes of a debtor's steps. */
  stepsEnded(debtor: number, steps: number): void {
    for (const { work } of this.#loads[debtor]) this.queryBytes += work.rows * steps * this.#config.rowBytes;
    this.keyBytes += this.#keyBytes[debtor] * steps;
  }

  /** Share of debtors in a step of the instance, in thousandths. */
  takenPermille(instance: number): number {
    return Math.min(this.#config.remoteAttentionPermilleMax, this.#taken[instance]);
  }

  /** The debtor receives the creditor's current state. */
  creditorChanged(debtor: number, creditor: number): void {
    if (this.#states[debtor].has(creditor)) this.#update(debtor, creditor);
  }

  #update(debtor: number, creditor: number): void {
    const { isRunning: busy, slowness } = this.#host.executors[creditor];
    this.#states[debtor].set(creditor, { busy, slowness });
  }

  /** Creditors that compute for a debtor now. */
  creditorsOf(debtor: number): readonly number[] {
    return this.#loads[debtor].map(({ work }) => work.creditor);
  }

  debtorsOf(creditor: number): readonly number[] {
    const debtors: number[] = [];
    for (const [debtor, loads] of this.#loads.entries()) {
      if (loads.some(({ work }) => work.creditor === creditor)) debtors.push(debtor);
    }
    return debtors;
  }

  /** What a step of this shape waits for, and decides which way its attention goes. */
  waitOf(debtor: number, shape: StepShape, remote: readonly RemoteWork[]): RemoteWait {
    const { kind, costs } = this.#config;
    const sources = remote.map((work) => this.#sourceOf(debtor, work));
    const keyBytes = travellingKeyBytes(kind, costs[debtor], shape, sources);
    this.#keyBytes[debtor] = keyBytes;
    return keyBytes > 0 ? fetchWait(sources, keyBytes) : shipWait(sources);
  }

  #sourceOf(debtor: number, work: RemoteWork): RemoteSource {
    const { creditor } = work;
    const readUs = work.hostTokens * this.#config.hostTokenUs[creditor];
    if (creditor === debtor) return { work, link: undefined, workUs: 0, sharePermille: 1000, readUs };
    if (!this.#states[debtor].has(creditor)) this.#update(debtor, creditor);
    const link = this.#host.linkOf(debtor, creditor);
    return { work, link, workUs: this.#workUs(debtor, work), sharePermille: this.#share(debtor, work), readUs };
  }

  /** A step of the debtor begins with this work at creditors; none: its steps have ended. Returns the changes for creditors. */
  update(debtor: number, all: readonly RemoteWork[], stepUs: number): readonly LoadChange[] {
    if (all.length === 0) this.#keyBytes[debtor] = 0;
    // No creditor computes for a step to which keys travel.
    const remote = this.#keyBytes[debtor] > 0 ? [] : all.filter(({ creditor }) => creditor !== debtor);
    const before = this.#loads[debtor];
    if (before.length === remote.length && before.every((load, i) => this.#isSame(debtor, load, remote[i]))) return [];
    const changes = new Map<number, LoadChange>();
    for (const creditor of this.#states[debtor].keys()) {
      if (!remote.some((work) => work.creditor === creditor)) this.#states[debtor].delete(creditor);
    }
    for (const { work, takenPermille } of before) {
      this.#taken[work.creditor] = this.#taken[work.creditor] - takenPermille;
      changes.set(work.creditor, { creditor: work.creditor, exceedsPermille: undefined });
    }
    this.#loads[debtor] = remote.map((work) => {
      const workUs = this.#workUs(debtor, work);
      const takenPermille = Math.min(1000, Math.round((workUs * 1000) / stepUs));
      this.#taken[work.creditor] = this.#taken[work.creditor] + takenPermille;
      const sharePermille = this.#share(debtor, work);
      const restUs = (workUs * (1000 - sharePermille)) / Math.max(1, sharePermille);
      const exceeds = this.#states[debtor].get(work.creditor)?.busy === true && takenPermille >= sharePermille;
      changes.set(work.creditor, {
        creditor: work.creditor,
        exceedsPermille: exceeds ? unboundedPermille(workUs, restUs, stepUs) : undefined,
      });
      return { work, sharePermille, slowness: this.#slowness(debtor, work), takenPermille };
    });
    return [...changes.values()];
  }

  #isSame(debtor: number, { work, sharePermille, slowness }: RemoteLoad, other: RemoteWork): boolean {
    return (
      work.creditor === other.creditor &&
      work.rows === other.rows &&
      work.keyRows === other.keyRows &&
      work.decodeKeys === other.decodeKeys &&
      work.hostTokens === other.hostTokens &&
      sharePermille === this.#share(debtor, other) &&
      slowness === this.#slowness(debtor, other)
    );
  }

  #workUs(debtor: number, work: RemoteWork): number {
    return remoteAttentionUs(this.#config.costs[work.creditor], work) * this.#slowness(debtor, work);
  }

  #slowness(debtor: number, { creditor }: RemoteWork): number {
    return this.#states[debtor].get(creditor)?.slowness ?? 1;
  }

  #share(debtor: number, { creditor, remoteAttentionPermille }: RemoteWork): number {
    const { remoteAttentionPermilleMax } = this.#config;
    return this.#states[debtor].get(creditor)?.busy === true
      ? remoteAttentionPermille
      : Math.floor((remoteAttentionPermille * 1000) / Math.max(1, remoteAttentionPermilleMax));
  }
}
