// Arranges loans: queries the gManager for creditors, requests blocks of each in turn, then backs off and starts again.

import type { ReservationNumber } from '../../protocol/ids.ts';
import type { Envelope, LendingMessage, Reservation } from '../../protocol/lending-messages.ts';
import type { CreditorCandidate, CreditorRefusal, Memory } from '../../protocol/lending-report.ts';
import { memories } from '../../protocol/lending-report.ts';
import type { Outbox } from '../outbox.ts';
import type { LendingTimes } from '../times.ts';
import type { Debt } from './debt.ts';
import type { Debtor } from './debtor.ts';

type MessageOf<Kind extends LendingMessage['kind']> = Extract<LendingMessage, { kind: Kind }>;

type State =
  | { readonly kind: 'idle' }
  | { readonly kind: 'querying'; readonly untilUs: number }
  | {
      readonly kind: 'borrowing';
      readonly debt: Debt;
      readonly blocks: number;
      readonly attempts: number;
      readonly untilUs: number;
      readonly others: readonly CreditorCandidate[];
    };

/** After a query that found no device memory: retries during which host memory is used. */
const exhaustedRounds = 10;

interface HomeMemory {
  /** Available blocks of the instance's own host memory. */
  readonly hostBlocks: number;
}

/** Arranges one loan at a time: device memory first, then host memory if the instance's own is not enough. */
export class LoanRequests {
  readonly #times: LendingTimes;
  readonly #out: Outbox;
  readonly #debtor: Debtor;
  #state: State = { kind: 'idle' };
  #memory: Memory = 'device';
  #blocksForRunning = 0;
  #reservation: Reservation | undefined;
  /** A running sequence with guaranteed memory needs blocks. */
  #urgent = false;
  /** The reservation that the gManager granted. */
  #grantedReservation: ReservationNumber | undefined;
  #query = 0;
  #answeredQuery = 0;
  #notBeforeUs = 0;
  #refusals: CreditorRefusal[] = [];
  #refusedLoan: number | undefined;
  /** Until this time no instance is expected to lend device memory. */
  #deviceExhaustedUntilUs = 0;
  readonly #home: HomeMemory;

  constructor(times: LendingTimes, out: Outbox, debtor: Debtor, home: HomeMemory) {
    this.#home = home;
    this.#times = times;
    this.#out = out;
    this.#debtor = debtor;
  }

  /** A loan for running sequences is being arranged. */
  get isBusy(): boolean {
    return this.#state.kind !== 'idle' && this.#blocksForRunning > 0;
  }

  /** The reservation is granted: the waiting prompt's blocks come first. */
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
    return this.#out.nowUs < this.#deviceExhaustedUntilUs;
  }

  get isUnsatisfied(): boolean {
    return this.isDeviceExhausted && this.#blocksMissing > 0;
  }

  get nextUs(): number {
    if (this.#state.kind !== 'idle') return this.#state.untilUs;
    return this.#hasDemand ? this.#notBeforeUs : Number.POSITIVE_INFINITY;
  }

  /** Sets the blocks that are required now and by the reservation. A request in progress continues. */
  setDemand(blocks: number, reservation: Reservation | undefined, urgent: boolean): void {
    this.#urgent = urgent;
    this.#blocksForRunning = blocks;
    this.#reservation = reservation;
    if (this.#hasDemand && this.#state.kind === 'idle' && this.#out.nowUs >= this.#notBeforeUs) this.#ask('device');
  }

  /** On a time-out, sends the request again, and finally tries the next creditor. */
  tick(): void {
    const state = this.#state;
    if (state.kind === 'idle' || this.#out.nowUs < state.untilUs) return;
    if (state.kind === 'querying') {
      this.#out.countAnomaly('lost', 'query');
      this.#ask(this.#memory);
      return;
    }
    this.#out.countAnomaly('lost', 'borrow');
    if (state.attempts < this.#times.attemptsMax) {
      this.#debtor.resend(state.debt, state.blocks);
      this.#state = { ...state, attempts: state.attempts + 1, untilUs: this.#out.nowUs + this.#times.answerUs };
      return;
    }
    this.#debtor.returnLoan(state.debt);
    this.#tryNext(state.others, state.blocks);
  }

  candidates(message: MessageOf<'candidates'>): void {
    if (this.#state.kind !== 'querying' || message.query !== this.#query) {
      this.#out.countAnomaly(message.query === this.#answeredQuery ? 'duplicate' : 'late', 'candidates');
      return;
    }
    this.#answeredQuery = message.query;
    this.#refusals = [];
    this.#grantedReservation = message.reservation;
    this.#tryNext(message.creditors, this.#blocksMissing);
  }

  /** The debtor has applied the creditor's answer. */
  lent(loan: number): void {
    if (this.#debtor.find(loan)?.memory === 'device') this.#deviceExhaustedUntilUs = 0;
    if (this.#state.kind === 'borrowing' && this.#state.debt.number === loan) this.#state = { kind: 'idle' };
  }

  refused({ from, fromIncarnation }: Envelope, message: MessageOf<'refuse'>): void {
    const stage = this.#state;
    if (stage.kind !== 'borrowing' || stage.debt.number !== message.loan) {
      const debt = this.#debtor.find(message.loan);
      // Given up before the refusal arrived: there is nothing to return.
      if (debt?.state === 'closing') this.#debtor.forget(debt);
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
    this.#debtor.forget(stage.debt);
    this.#tryNext(stage.others, stage.blocks);
  }

  /** The creditor restarted: it will not answer. */
  restarted(instance: number): void {
    const stage = this.#state;
    if (stage.kind === 'borrowing' && stage.debt.creditor === instance) this.#tryNext(stage.others, stage.blocks);
  }

  #ask(memory: Memory): void {
    if (!this.#hasDemand) {
      this.#state = { kind: 'idle' };
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
    this.#state = { kind: 'querying', untilUs: this.#out.nowUs + this.#times.answerUs };
  }

  #tryNext(creditors: readonly CreditorCandidate[], blocksMissing: number): void {
    const blocks = Math.min(blocksMissing, this.#blocksMissing);
    if (blocks <= 0) {
      if (this.#hasDemand) this.#backOff();
      else this.#state = { kind: 'idle' };
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
    this.#state = { kind: 'borrowing', debt, blocks, attempts: 1, untilUs, others };
  }

  #nextMemory(): void {
    const next = memories[memories.indexOf(this.#memory) + 1];
    // While device memory is exhausted, own host memory counts as idle: the demand is what it does not cover.
    const isCounted = this.isDeviceExhausted;
    if (this.#memory === 'device')
      this.#deviceExhaustedUntilUs = this.#out.nowUs + exhaustedRounds * this.#times.retryUs;
    if (next === undefined || (!isCounted && this.#home.hostBlocks >= this.#blocksMissing)) this.#backOff();
    else this.#ask(next);
  }

  #backOff(): void {
    this.#state = { kind: 'idle' };
    this.#notBeforeUs = this.#out.nowUs + this.#times.retryUs;
  }
}
