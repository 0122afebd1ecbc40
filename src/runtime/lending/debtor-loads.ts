// What attention for debtors takes of an instance, by the counters of its remote attention server.

import type { AttentionShare } from '../../core/lending/creditor/creditor.ts';
import { unboundedPermille } from '../../core/lending/lending-policy.ts';
import type { InstanceEvent } from '../../core/protocol/events.ts';
import type { InstanceIndex } from '../../core/protocol/ids.ts';
import type { LendingSnapshot } from '../../core/protocol/ports.ts';

/** Interval between two looks at the counters. */
const loadsUs = 1_000_000;

type LoanTimes = Pick<LendingSnapshot['servedAttention'], 'seconds' | 'restSeconds'>;

/** Remote attention by debtor since the last look, once a second. */
export class DebtorLoads {
  readonly #counts: (debtor: InstanceIndex) => LoanTimes | undefined;
  readonly #last = new Map<InstanceIndex, LoanTimes>();
  #readUs = 0;
  #stepUs = 0;

  constructor(counts: (debtor: InstanceIndex) => LoanTimes | undefined) {
    this.#counts = counts;
  }

  /** True if the loads are to be read now. */
  onStepRan(nowUs: number, stepUs: number): boolean {
    this.#stepUs += stepUs;
    return nowUs - this.#readUs >= loadsUs;
  }

  /** Debtors with a load above their share. It matters only while steps run most of the time. */
  beyond(shares: readonly AttentionShare[], nowUs: number): readonly AttentionShare[] {
    const elapsedUs = nowUs - this.#readUs;
    const isBusy = this.#stepUs * 2 >= elapsedUs;
    this.#readUs = nowUs;
    this.#stepUs = 0;
    return shares.flatMap(({ debtor, permille: bound }) => {
      const { seconds, restSeconds } = this.#counts(debtor) ?? { seconds: 0, restSeconds: 0 };
      const last = this.#last.get(debtor) ?? { seconds: 0, restSeconds: 0 };
      this.#last.set(debtor, { seconds, restSeconds });
      const [attentionUs, restUs] = [1e6 * (seconds - last.seconds), 1e6 * (restSeconds - last.restSeconds)];
      const permille = unboundedPermille(attentionUs, restUs, elapsedUs);
      return isBusy && permille > bound ? [{ debtor, permille }] : [];
    });
  }
}

/** Share of the time of steps in which attention for debtors was computed too, over a second of steps. */
export class ServedShare {
  readonly #seconds: () => number;
  #beganSeconds = 0;
  #attentionUs = 0;
  #stepUs = 0;
  #reported = 0;
  #unreported: number | undefined;

  /** @param seconds counter of all attention for debtors */
  constructor(seconds: () => number) {
    this.#seconds = seconds;
  }

  stepBegins(): void {
    this.#beganSeconds = this.#seconds();
  }

  stepEnded(stepUs: number): void {
    this.#attentionUs += 1e6 * (this.#seconds() - this.#beganSeconds);
    this.#stepUs += stepUs;
  }

  endWindow(): void {
    if (this.#stepUs === 0) return;
    this.#unreported = Math.min(1000, Math.round((1000 * this.#attentionUs) / this.#stepUs));
    this.#attentionUs = 0;
    this.#stepUs = 0;
  }

  /** The share of the last window for the state machine, once. */
  changed(): readonly InstanceEvent[] {
    const permille = this.#unreported ?? this.#reported;
    const isNews = this.#unreported !== undefined && (permille > 0 || this.#reported > 0);
    this.#unreported = undefined;
    this.#reported = permille;
    return isNews ? [{ kind: 'servedAttention', permille }] : [];
  }
}
