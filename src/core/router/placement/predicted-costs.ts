// Predicted times of prefills, transfers and SSD reads, which placement compares.

import { wideZero } from '../../../util/wide-zero.ts';
import type { PrefillPredictor } from '../../cost/prefill.ts';
import { type SsdConfig, SsdTimes } from '../../cost/ssd-times.ts';
import { type TransferConfig, TransferTimes } from '../../cost/transfer-times.ts';
import type { PlacementCosts, TransferCosts } from './placement.ts';

export interface CostModels {
  /** (kinds) */
  readonly predictors: readonly PrefillPredictor[];
  /** Undefined: prefixes never move between instances. */
  readonly transfers: TransferConfig | undefined;
  /** Undefined: no instance has an SSD. */
  readonly ssds: SsdConfig | undefined;
  /** Maximum number of rows of a step that starts before its prefix has arrived. Undefined: steps wait for the whole prefix. */
  readonly aheadRows: number | undefined;
}

export class PredictedCosts implements PlacementCosts {
  readonly kinds: number;
  readonly transfers: PredictedTransfers | undefined;
  readonly #predictors: readonly PrefillPredictor[];
  readonly #ssds: SsdTimes | undefined;
  readonly #aheadRows: number | undefined;
  #nowUs: number = wideZero;

  constructor({ predictors, transfers, ssds, aheadRows }: CostModels) {
    this.kinds = predictors.length;
    this.#predictors = predictors;
    this.transfers = transfers && new PredictedTransfers(new TransferTimes(transfers));
    this.#ssds = ssds && new SsdTimes(ssds);
    this.#aheadRows = aheadRows;
  }

  /** Time of the next queries. */
  set nowUs(nowUs: number) {
    this.#nowUs = nowUs;
    if (this.transfers !== undefined) this.transfers.nowUs = nowUs;
  }

  prefillUs(kind: number, tokens: number, cachedTokens: number): number {
    return this.#predictors[kind].prefillUs(tokens, cachedTokens);
  }

  readUs(instance: number, tokens: number): number {
    return this.#ssds?.predictUs(this.#nowUs, instance, tokens) ?? 0;
  }

  /** The first step of a prefill that starts before its prefix has arrived ends when the prefix has arrived. */
  overlapUs(kind: number, tokens: number, cachedTokens: number): number {
    const rows = this.#aheadRows;
    if (rows === undefined) return 0;
    return this.#predictors[kind].prefillUs(Math.min(tokens, cachedTokens + rows), cachedTokens);
  }

  /** An instance reads tokens from its SSD from now on. */
  addRead(nowUs: number, instance: number, tokens: number): void {
    this.#ssds?.add(nowUs, instance, tokens);
  }
}

class PredictedTransfers implements TransferCosts {
  readonly times: TransferTimes;
  nowUs: number = wideZero;

  constructor(times: TransferTimes) {
    this.times = times;
  }

  transferUs(from: number, to: number, tokens: number): number {
    return this.times.predictUs(this.nowUs, from, to, tokens);
  }

  latencyUs(from: number, to: number): number {
    return this.times.roundTripUs(from, to);
  }

  backlogUs(from: number): number {
    return this.times.backlogUs(this.nowUs, from);
  }
}
