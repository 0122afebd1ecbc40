// Arranges loans: asks the gManager for creditors, asks each in turn, then backs off and starts again.

import type { ReservationNumber } from '../../protocol/ids.ts';
import type { Envelope, LendingMessage, Reservation } from '../../protocol/lending-messages.ts';
import type { Candidate, Memory, Refusal } from '../../protocol/lending-report.ts';
import { memories } from '../../protocol/lending-report.ts';
import type { Outbox } from '../outbox.ts';
import type { LendingTimes } from '../times.ts';
import type { Debt } from './debt.ts';
import type { Debtor } from './debtor.ts';

type MessageOf<Kind extends LendingMessage['kind']> = Extract<LendingMessage, { kind: Kind }>;

type Stage =
  | { readonly kind: 'idle' }
  | { readonly kind: 'querying'; readonly untilUs: number }
  | {
      readonly kind: 'borrowing';
      readonly debt: Debt;
      readonly blocks: number;
      readonly asks: number;
      readonly untilUs: number;
      readonly others: readonly Candidate[];
    };

/** Retries during which host memory is used before device memory is asked for again. */
const spentRounds = 10;

interface HomeMemory {
  /** Available blocks of the instance's own host memory. */
  readonly hostBlocks: number;
}

/** Arranges one loan at a time: device memory first, then host memory if the instance's own is not enough. */
export class LoanRequests {
  readonly #times: LendingTimes;
  readonly #out: Outbox;
  readonly #debtor: Debtor;
  #stage: Stage = { kind: 'idle' };
  #memory: Memory = 'device';
  #blocksForRunning = 0;
  #reservation: Reservation | undefined;
  /** A running sequence with committed memory needs blocks. */
  #urgent = false;
  /** The reservation that the gManager granted. */
  #grantedReservation: ReservationNumber | undefined;
  #query = 0;
  #answeredQuery = 0;
  #notBeforeUs = 0;
  #refusals: Refusal[] = [];
  #refusedLoan: number | undefined;
  /** Until this time no instance is expected to lend device memory: a recent request found none. */
  #deviceSpentUntilUs = 0;
  readonly #home: HomeMemory;

  constructor(times: LendingTimes, out: Outbox, debtor: Debtor, home: HomeMemory) {
    this.#home = home;
    this.#times = times;
    this.#out = out;
    this.#debtor = debtor;
  }

  /** A pending answer may bring memory for running sequences. */
  get isBusy(): boolean {
    return this.#stage.kind !== 'idle' && this.#blocksForRunning > 0;
  }

  /** The reservation is granted: blocks for the waiting prompt come before all others. */
  get holdsReservation(): boolean {
    return this.#reservation !== undefined && this.#reservation.number === this.#grantedReservation;
  }

  get #blocksMissing(): number {
    return this.#reservation !== undefined && this.holdsReservation ? this.#reservation.blocks : this.#blocksForRunning;
  }

  get #hasDemand(): boolean {
    return (
      this.#blocksForRunning > 0 ||
      (this.#reservation !== undefined && (this.#reservation.blocks > 0 || !this.holdsReservation))
    );
  }

  /** A recent request found no device memory. */
  get isDeviceExhausted(): boolean {
    return this.#out.nowUs < this.#deviceSpentUntilUs;
  }

  get isUnsatisfied(): boolean {
    return this.isDeviceExhausted && this.#blocksMissing > 0;
  }

  get nextUs(): number {
    if (this.#stage.kind !== 'idle') return this.#stage.untilUs;
    return this.#hasDemand ? this.#notBeforeUs : Number.POSITIVE_INFINITY;
  }

  /** Sets the blocks needed now and by the reservation; a request in progress continues. */
  setDemand(blocks: number, reservation: Reservation | undefined, urgent: boolean): void {
    this.#urgent = urgent;
    this.#blocksForRunning = blocks;
    this.#reservation = reservation;
    if (this.#hasDemand && this.#stage.kind === 'idle' && this.#out.nowUs >= this.#notBeforeUs) this.#ask('device');
  }

  /** Time-outs: resends the request, then asks the next creditor. */
  tick(): void {
    const stage = this.#stage;
    if (stage.kind === 'idle' || this.#out.nowUs < stage.untilUs) return;
    if (stage.kind === 'querying') {
      this.#out.countAnomaly('lost', 'query');
      this.#ask(this.#memory);
      return;
    }
    this.#out.countAnomaly('lost', 'borrow');
    if (stage.asks < this.#times.attemptsMax) {
      this.#debtor.resend(stage.debt, stage.blocks);
      this.#stage = { ...stage, asks: stage.asks + 1, untilUs: this.#out.nowUs + this.#times.answerUs };
      return;
    }
    this.#debtor.giveUp(stage.debt);
    this.#tryNext(stage.others, stage.blocks);
  }

  candidates(message: MessageOf<'candidates'>): void {
    if (this.#stage.kind !== 'querying' || message.query !== this.#query) {
      this.#out.countAnomaly(message.query === this.#answeredQuery ? 'duplicate' : 'late', 'candidates');
      return;
    }
    this.#answeredQuery = message.query;
    this.#refusals = [];
    this.#grantedReservation = message.reservation;
    this.#tryNext(message.creditors, this.#blocksMissing);
  }

  /** The creditor's answer was applied. */
  lent(loan: number): void {
    if (this.#debtor.find(loan)?.memory === 'device') this.#deviceSpentUntilUs = 0;
    if (this.#stage.kind === 'borrowing' && this.#stage.debt.number === loan) this.#stage = { kind: 'idle' };
  }

  refused({ from, fromIncarnation }: Envelope, message: MessageOf<'refuse'>): void {
    const stage = this.#stage;
    if (stage.kind !== 'borrowing' || stage.debt.number !== message.loan) {
      const debt = this.#debtor.find(message.loan);
      // Given up before the refusal arrived: nothing has to be returned.
      if (debt?.state === 'closing') this.#debtor.drop(debt);
      this.#out.countAnomaly(this.#refusedLoan === message.loan ? 'duplicate' : 'late', 'refuse');
      return;
    }
    this.#refusedLoan = message.loan;
    this.#refusals.push({
      instance: from as number,
      incarnation: fromIncarnation,
      memory: message.memory,
      sequence: message.sequence,
    });
    this.#debtor.drop(stage.debt);
    this.#tryNext(stage.others, stage.blocks);
  }

  /** The creditor restarted: it will not answer. */
  restarted(instance: number): void {
    const stage = this.#stage;
    if (stage.kind === 'borrowing' && stage.debt.creditor === instance) this.#tryNext(stage.others, stage.blocks);
  }

  #ask(memory: Memory): void {
    if (!this.#hasDemand) {
      this.#stage = { kind: 'idle' };
      return;
    }
    this.#memory = memory;
    const message = {
      kind: 'query',
      query: ++this.#query,
      memory,
      blocks: this.#blocksForRunning,
      reservation: this.#reservation,
      urgent: this.#urgent,
      refusals: this.#refusals,
    } as const;
    this.#out.send('gmanager', undefined, message);
    this.#stage = { kind: 'querying', untilUs: this.#out.nowUs + this.#times.answerUs };
  }

  #tryNext(creditors: readonly Candidate[], blocksMissing: number): void {
    const blocks = Math.min(blocksMissing, this.#blocksMissing);
    if (blocks <= 0) {
      if (this.#hasDemand) this.#backOff();
      else this.#stage = { kind: 'idle' };
      return;
    }
    if (creditors.length === 0) {
      this.#nextMemory();
      return;
    }
    const [first, ...others] = creditors;
    const debt = this.#debtor.ask(first.instance, first.incarnation, this.#memory, blocks, {
      reserves: this.holdsReservation || this.#urgent,
      urgent: this.#urgent && !this.holdsReservation,
    });
    const untilUs = this.#out.nowUs + this.#times.answerUs;
    this.#stage = { kind: 'borrowing', debt, blocks, asks: 1, untilUs, others };
  }

  #nextMemory(): void {
    const next = memories[memories.indexOf(this.#memory) + 1];
    // The instance's own host memory then already counts as idle, so the demand comes on top.
    const isCounted = this.isDeviceExhausted;
    if (this.#memory === 'device') this.#deviceSpentUntilUs = this.#out.nowUs + spentRounds * this.#times.retryUs;
    if (next === undefined || (!isCounted && this.#home.hostBlocks >= this.#blocksMissing)) this.#backOff();
    else this.#ask(next);
  }

  #backOff(): void {
    this.#stage = { kind: 'idle' };
    this.#notBeforeUs = this.#out.nowUs + this.#times.retryUs;
  }
}
