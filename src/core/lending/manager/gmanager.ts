// The gManager machine (Infinite-LLM, section 5): keeps the debt ledger, offers creditors to debtors, and settles debt
// cycles.

import type { InstanceIndex } from '../../protocol/ids.ts';
import type { Envelope, GManagerEvent, LendingEffect, LendingMessage } from '../../protocol/lending-messages.ts';
import { Outbox } from '../outbox.ts';
import { type CoordinatorConfig, SettlementCoordinator } from '../settlement/settlement-coordinator.ts';
import { BorrowQueue } from './borrow-queue.ts';
import { DebtLedger } from './debt-ledger.ts';

export interface GManagerConfig extends CoordinatorConfig {
  /** Greater than that of every earlier gManager: instances ignore smaller epochs. */
  readonly epoch: number;
}

interface LastQuery {
  readonly incarnation: number;
  readonly query: number;
}

/** Starts empty: one heartbeat of each instance rebuilds its state. */
export class GManager {
  readonly ledger = new DebtLedger();
  readonly borrowQueue = new BorrowQueue();
  readonly #config: GManagerConfig;
  readonly #out: Outbox;
  readonly #coordinator: SettlementCoordinator;
  readonly #lastQueries = new Map<InstanceIndex, LastQuery>();

  constructor(config: GManagerConfig) {
    this.#config = config;
    this.#out = new Outbox('gmanager', config.epoch);
    this.#coordinator = new SettlementCoordinator(config, this.ledger, this.#out);
  }

  /** When a `tick` is due if no event comes earlier. */
  get nextUs(): number {
    return this.#coordinator.nextUs;
  }

  /** `nowUs` never decreases. The driver carries the effects out in order. */
  step(nowUs: number, event: GManagerEvent): readonly LendingEffect[] {
    this.#out.begin(nowUs);
    const silent = this.ledger.forgetSilent(nowUs - this.#config.times.silentUs);
    this.borrowQueue.forget(silent);
    for (let i = 0; i < silent.length; i++) this.#out.countAnomaly('lost', 'heartbeat');
    if (event.kind === 'message') this.#handle(event.envelope);
    this.#coordinator.tick();
    return this.#out.effects;
  }

  #handle(envelope: Envelope): void {
    const { from, fromIncarnation, toIncarnation, message } = envelope;
    if (from === 'gmanager' || (toIncarnation !== undefined && toIncarnation !== this.#out.incarnation)) {
      this.#out.countAnomaly('orphan', message.kind);
      return;
    }
    const incarnation = this.ledger.incarnation(from) ?? 0;
    if (fromIncarnation < incarnation) {
      this.#out.countAnomaly('orphan', message.kind);
      return;
    }
    switch (message.kind) {
      case 'heartbeat': {
        const verdict = this.ledger.update(this.#out.nowUs, from, fromIncarnation, message.report);
        if (verdict === 'new' || verdict === 'gap')
          this.borrowQueue.update(from, fromIncarnation, message.report.reservation);
        if (verdict !== 'new') this.#out.countAnomaly(verdict === 'gap' ? 'lost' : verdict, 'heartbeat');
        break;
      }
      case 'query':
        this.#query(from, fromIncarnation, message);
        break;
      case 'prepared':
        this.#coordinator.prepared(envelope, message.settlement);
        break;
      case 'declined':
        this.#coordinator.declined(envelope, message.settlement);
        break;
      case 'settled':
        this.#coordinator.settled(envelope, message.settlement);
        break;
      case 'outcome':
        this.#coordinator.outcome(envelope, message.settlement);
        break;
      default:
        this.#out.countAnomaly('orphan', message.kind);
    }
  }

  /** A duplicate query is answered again, and its offer is replaced. */
  #query(from: InstanceIndex, incarnation: number, message: Extract<LendingMessage, { kind: 'query' }>): void {
    const last = this.#lastQueries.get(from);
    if (last !== undefined && last.incarnation === incarnation && message.query <= last.query) {
      this.#out.countAnomaly(message.query === last.query ? 'duplicate' : 'late', 'query');
      if (message.query < last.query) return;
    }
    this.#lastQueries.set(from, { incarnation, query: message.query });
    for (const refusal of message.refusals) this.ledger.refuse(refusal);
    const { query, memory, blocks, reservation, urgent } = message;
    // Only instances with a heartbeat enter the queue: the failure of others would not be detected, and a failed
    // instance would keep the reservation.
    if (reservation !== undefined && this.ledger.incarnation(from) !== undefined)
      this.borrowQueue.update(from, incarnation, reservation.number);
    const granted = this.borrowQueue.holder === from ? reservation : undefined;
    const creditors =
      granted !== undefined || (urgent && blocks > 0)
        ? this.ledger.candidatesForReservation(from, memory, granted?.blocks ?? blocks, query)
        : this.ledger.candidates(from, memory, blocks);
    this.#out.send(from, incarnation, { kind: 'candidates', query, creditors, reservation: granted?.number });
  }
}
