// Who computes attention for whom in a simulated cluster, and what that does to the steps of both.

import type { StepCostModel } from '../../core/cost/roofline.ts';
import { guestUs, partialsUs, type QueryLink } from '../../core/lending/debtor/remote-work.ts';
import type { RemoteWork } from '../../core/protocol/lending-effects.ts';

/** What a step waits for, as its executor needs it: keys that are not its own to read, and when the last partials are here. */
export interface RemotePart {
  readonly keyRows: number;
  readonly decodeKeys: number;
  readonly awaitedUs: number;
}

export interface GuestsConfig {
  /** (instances) */
  readonly costs: readonly StepCostModel[];
  /** (instances): to read a token's keys and values from host memory. */
  readonly hostTokenUs: readonly number[];
  /** From one instance to another. */
  readonly link: (from: number, to: number) => QueryLink;
  /** Share of a step, in thousandths, that a creditor spends on all its guests while it has work of its own. */
  readonly remoteAttentionPermilleMax: number;
  readonly isBusy: (instance: number) => boolean;
  /** How many times as long as it should its work takes. */
  readonly slowness: (instance: number) => number;
}

/** How a creditor stands, as a debtor has heard. */
interface Standing {
  /** It has work of its own. */
  readonly busy: boolean;
  readonly slowness: number;
}

/** The work of one debtor's current steps at one creditor. */
interface GuestLoad {
  readonly work: RemoteWork;
  readonly sharePermille: number;
  readonly slowness: number;
  readonly takenPermille: number;
}

/** Something to be told: the creditor's steps change, or the debtor's work there exceeds its bound. */
export interface GuestNews {
  readonly creditor: number;
  /** What it would take of the creditor's time, were it not bounded, where that is more than its bound. */
  readonly exceedsPermille: number | undefined;
}

/**
 * Guests take no more than their bound of a busy creditor's time, and their debtor waits; of an idle one they have all, by their blocks. What
 * they take changes only with the rows and keys that a debtor's steps see there, not with every token: so runs of equal steps stay equal.
 */
export class RemoteAttention {
  readonly #config: GuestsConfig;
  /** By debtor, then creditor. */
  readonly #loads: (readonly GuestLoad[])[];
  /** By debtor, then creditor. */
  readonly #heard: readonly Map<number, Standing>[];
  /** (instances): what their guests take now. */
  readonly #taken: Int32Array;
  queryBytes = 0;

  constructor(config: GuestsConfig) {
    this.#config = config;
    this.#loads = config.costs.map(() => []);
    this.#heard = config.costs.map(() => new Map<number, Standing>());
    this.#taken = new Int32Array(config.costs.length);
  }

  /** So many steps of a debtor have run: queries went out and partials came back. */
  ended(debtor: number, steps: number, rowBytes: number): void {
    for (const { work } of this.#loads[debtor]) this.queryBytes += work.rows * steps * rowBytes;
  }

  /** What guests take of a step of the instance, in thousandths. */
  takenPermille(instance: number): number {
    return Math.min(this.#config.remoteAttentionPermilleMax, this.#taken[instance]);
  }

  /** The debtor hears how a creditor stands. */
  heard(debtor: number, creditor: number): void {
    if (this.#heard[debtor].has(creditor)) this.#hear(debtor, creditor);
  }

  #hear(debtor: number, creditor: number): void {
    const { isBusy, slowness } = this.#config;
    this.#heard[debtor].set(creditor, { busy: isBusy(creditor), slowness: slowness(creditor) });
  }

  /** Who computes for a debtor. */
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

  part(debtor: number, remote: readonly RemoteWork[]): RemotePart {
    const { hostTokenUs } = this.#config;
    const sentRows = remote.reduce((sum, { rows }) => sum + rows, 0);
    let keyRows = 0;
    let decodeKeys = 0;
    let awaitedUs = 0;
    for (const work of remote) {
      const readUs = work.hostTokens * hostTokenUs[work.creditor];
      // Its own host memory is read beside its own attention, which computes those keys as any.
      if (work.creditor === debtor) awaitedUs = Math.max(awaitedUs, readUs);
      if (work.creditor === debtor) continue;
      if (!this.#heard[debtor].has(work.creditor)) this.#hear(debtor, work.creditor);
      keyRows += work.keyRows;
      decodeKeys += work.decodeKeys;
      const link = this.#config.link(debtor, work.creditor);
      const share = this.#share(debtor, work);
      awaitedUs = Math.max(awaitedUs, partialsUs(link, sentRows, this.#workUs(debtor, work), share, readUs));
    }
    return { keyRows, decodeKeys, awaitedUs };
  }

  /** The debtor's step has begun, or (nothing remote) none of its steps has guests' work any more. Returns whom that concerns. */
  began(debtor: number, all: readonly RemoteWork[], stepUs: number): readonly GuestNews[] {
    const remote = all.filter(({ creditor }) => creditor !== debtor);
    const before = this.#loads[debtor];
    if (before.length === remote.length && before.every((load, i) => this.#isSame(debtor, load, remote[i]))) return [];
    const news = new Map<number, GuestNews>();
    for (const creditor of this.#heard[debtor].keys()) {
      if (!remote.some((work) => work.creditor === creditor)) this.#heard[debtor].delete(creditor);
    }
    for (const { work, takenPermille } of before) {
      this.#taken[work.creditor] = this.#taken[work.creditor] - takenPermille;
      news.set(work.creditor, { creditor: work.creditor, exceedsPermille: undefined });
    }
    this.#loads[debtor] = remote.map((work) => {
      const workUs = this.#workUs(debtor, work);
      const takenPermille = Math.min(1000, Math.round((workUs * 1000) / stepUs));
      this.#taken[work.creditor] = this.#taken[work.creditor] + takenPermille;
      const sharePermille = this.#share(debtor, work);
      const asked = Math.round((workUs * 1000) / Math.max(1, stepUs - (workUs * 1000) / Math.max(1, sharePermille)));
      const exceeds = this.#heard[debtor].get(work.creditor)?.busy === true && takenPermille >= sharePermille;
      news.set(work.creditor, {
        creditor: work.creditor,
        exceedsPermille: exceeds ? Math.min(1000, asked) : undefined,
      });
      return { work, sharePermille, slowness: this.#slowness(debtor, work), takenPermille };
    });
    return [...news.values()];
  }

  #isSame(debtor: number, { work, sharePermille, slowness }: GuestLoad, other: RemoteWork): boolean {
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
    return guestUs(this.#config.costs[work.creditor], work) * this.#slowness(debtor, work);
  }

  #slowness(debtor: number, { creditor }: RemoteWork): number {
    return this.#heard[debtor].get(creditor)?.slowness ?? 1;
  }

  #share(debtor: number, { creditor, remoteAttentionPermille }: RemoteWork): number {
    const { remoteAttentionPermilleMax } = this.#config;
    return this.#heard[debtor].get(creditor)?.busy === true
      ? remoteAttentionPermille
      : Math.floor((remoteAttentionPermille * 1000) / Math.max(1, remoteAttentionPermilleMax));
  }
}
