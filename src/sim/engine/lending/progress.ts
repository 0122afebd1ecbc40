// Progress of a simulated cluster that lends: detects a stuck run, and the end of lending.
import type { BorrowingTotals } from '../../../core/lending/debtor/borrower-config.ts';
import type { LendingTimes } from '../../../core/lending/times.ts';

/** Heartbeat periods without loans after which lending is over. */
const restHeartbeats = 2;
/** A run with live requests and no step for this long is stuck. */
const stuckUs = 120_000_000;
/** Longest time of one reservation. Requests that ran at its start end long before. */
const reservationUsMax = 1_800_000_000;

interface ReservationQueue {
  readonly holder: number | undefined;
  numberOf(instance: number): number | undefined;
}

interface Holder {
  readonly holder: number | undefined;
  readonly number: number | undefined;
}

export class LendingProgress {
  readonly #times: LendingTimes;
  #reservation: Holder & { readonly sinceUs: number } = { holder: undefined, number: undefined, sinceUs: 0 };
  /** End of the last step. */
  lastStepUs = 0;
  /** When the last step ended, or the last loan. */
  #restUs = 0;
  /** Since when there are requests that have not ended; undefined: there are none. */
  #liveSinceUs: number | undefined;

  constructor(times: LendingTimes) {
    this.#times = times;
  }

  stepEnded(nowUs: number): void {
    this.lastStepUs = nowUs;
    this.#restUs = nowUs;
  }

  /** True when all loans are returned and reported, and no request is left. @param live requests that have not ended */
  isOver(nowUs: number, live: number, totals: readonly BorrowingTotals[]): boolean {
    const lent = !totals.every(hasNoLoans);
    this.#liveSinceUs = live > 0 ? (this.#liveSinceUs ?? nowUs) : undefined;
    if (nowUs - Math.max(this.lastStepUs, this.#liveSinceUs ?? nowUs) > stuckUs)
      throw new Error(
        `Simulation broken: ${live} requests wait for memory: no step has run since ${this.lastStepUs} us`,
      );
    if (live > 0 || lent) {
      if (lent || live === 0) this.#restUs = nowUs;
      return false;
    }
    return nowUs - this.#restUs > restHeartbeats * this.#times.heartbeatUs;
  }

  /** Throws when the holder of the reservation makes no progress. */
  checkReservation(nowUs: number, reservations: ReservationQueue): void {
    const { holder } = reservations;
    const number = holder === undefined ? undefined : reservations.numberOf(holder);
    if (holder !== this.#reservation.holder || number !== this.#reservation.number)
      this.#reservation = { holder, number, sinceUs: nowUs };
    if (holder !== undefined && nowUs - this.#reservation.sinceUs > reservationUsMax)
      throw new Error(
        `Simulation broken: instance ${holder} holds its reservation since ${this.#reservation.sinceUs} us`,
      );
  }
}

/** The instance has lent nothing and borrowed nothing. */
export function hasNoLoans({ lentBlocks, borrowedBlocks, remoteBlocks, ownHostBlocks }: BorrowingTotals): boolean {
  return lentBlocks + borrowedBlocks + remoteBlocks + ownHostBlocks === 0;
}
