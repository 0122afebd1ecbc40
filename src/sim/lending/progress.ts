// Whether a simulated cluster that lends gets on, and when it has come to rest.
import type { BorrowingTotals } from '../../core/lending/debtor/borrower-config.ts';
import type { LendingTimes } from '../../core/lending/times.ts';

/** How long all must have been paid back before nothing is left to happen, in heartbeats. */
const restHeartbeats = 2;
/** A run in which only lending goes on for so long while requests wait is stuck. */
const stuckUs = 120_000_000;
/** Nobody has the turn for longer: all that ran when it began are over long before. */
const turnUsMax = 1_800_000_000;

interface Turns {
  readonly holder: number | undefined;
  numberOf(instance: number): number | undefined;
}

interface Turn {
  readonly holder: number | undefined;
  readonly number: number | undefined;
}

export class Progress {
  readonly #times: LendingTimes;
  #turn: Turn & { readonly sinceUs: number } = { holder: undefined, number: undefined, sinceUs: 0 };
  /** When a step ended last. */
  aliveUs = 0;
  /** Since when nothing is lent. */
  #restUs = 0;

  constructor(times: LendingTimes) {
    this.#times = times;
  }

  stepEnded(nowUs: number): void {
    this.aliveUs = nowUs;
    this.#restUs = nowUs;
  }

  /** All that was lent is back, and everybody knows; `live` requests wait for nothing then. */
  isOver(nowUs: number, live: number, totals: readonly BorrowingTotals[]): boolean {
    const lent = !totals.every(isPaidBack);
    if (live > 0 && nowUs - this.aliveUs > stuckUs)
      throw new Error(`Simulation broken: ${live} requests wait for memory: nothing has run since ${this.aliveUs} us`);
    if (live > 0 || lent) {
      if (lent || live === 0) this.#restUs = nowUs;
      return false;
    }
    return nowUs - this.#restUs > restHeartbeats * this.#times.heartbeatUs;
  }

  /** Who asked first for memory that no instance has alone gets on. */
  lookAtTurn(nowUs: number, turns: Turns): void {
    const { holder } = turns;
    const number = holder === undefined ? undefined : turns.numberOf(holder);
    if (holder !== this.#turn.holder || number !== this.#turn.number) this.#turn = { holder, number, sinceUs: nowUs };
    if (holder !== undefined && nowUs - this.#turn.sinceUs > turnUsMax)
      throw new Error(`Simulation broken: instance ${holder} gathers memory since ${this.#turn.sinceUs} us`);
  }
}

/** It has lent nothing and borrowed nothing. */
export function isPaidBack({ lentBlocks, borrowedBlocks, remoteBlocks, ownHostBlocks }: BorrowingTotals): boolean {
  return lentBlocks + borrowedBlocks + remoteBlocks + ownHostBlocks === 0;
}
