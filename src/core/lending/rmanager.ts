// The rManager machine (Infinite-LLM, section 5): owns the rBlocks of an instance at home and at creditors, lends,
// borrows ahead of need, and reports to the gManager.

import { assertNever } from '../../util/assert-never.ts';
import type { LendingMemory } from '../kvcache/lending-memory.ts';
import type { InstanceIndex, RBlockId } from '../protocol/ids.ts';
import type {
  DemandUpdate,
  Envelope,
  LendingEffect,
  Reservation,
  RManagerEvent,
} from '../protocol/lending-messages.ts';
import type { Memory } from '../protocol/lending-report.ts';
import { Creditor, type OwnNeeds } from './creditor/creditor.ts';
import type { Debt } from './debtor/debt.ts';
import { Debtor } from './debtor/debtor.ts';
import { LoanRequests } from './debtor/loan-requests.ts';
import { blocksToGiveBack, blocksWanted, type LendingPolicy, wholeUnits } from './lending-policy.ts';
import { Outbox } from './outbox.ts';
import { type RBlockPlace, RBlockTable } from './rblock-table.ts';
import { SettlementMember } from './settlement/settlement-member.ts';
import type { LendingTimes } from './times.ts';

export interface RManagerConfig {
  readonly instance: InstanceIndex;
  /** Counts the starts of this instance; greater than that of every earlier start. */
  readonly incarnation: number;
  readonly memories: Readonly<Record<Memory, LendingMemory>>;
  readonly policy: LendingPolicy;
  readonly times: LendingTimes;
  /** Size of the staging buffer for contents that settlements bring home. */
  readonly stagingBlocks: number;
}

/**
 * Messages may be lost, duplicated, late or meant for another incarnation: in every case each page has one owner and
 * each loan ends.
 * Local callers use `take` and `free`; remote callers use the messages `borrow` and `return`.
 */
export class RManager implements OwnNeeds {
  readonly table = new RBlockTable();
  readonly creditor: Creditor;
  readonly debtor: Debtor;
  readonly #config: RManagerConfig;
  readonly #out: Outbox;
  readonly #loanRequests: LoanRequests;
  readonly #settlementMember: SettlementMember;
  readonly #incarnations = new Map<InstanceIndex, number>();
  #epoch = 0;
  #sequence = 0;
  #heartbeatAtUs = 0;
  #demand: DemandUpdate = noDemand;
  #reportedReservation: number | undefined;

  constructor(config: RManagerConfig) {
    const { memories, policy, times } = config;
    this.#config = config;
    this.#out = new Outbox(config.instance, config.incarnation);
    this.creditor = new Creditor(memories, policy, times, this.#out, this);
    this.debtor = new Debtor(times, this.#out, this.table, policy);
    this.#loanRequests = new LoanRequests(times, this.#out, this.debtor, this);
    const parts = { memories, table: this.table, creditor: this.creditor, debtor: this.debtor };
    this.#settlementMember = new SettlementMember(times, this.#out, config.stagingBlocks, parts);
  }

  /** When a `tick` is due if no event comes earlier. */
  get nextUs(): number {
    const parts = [this.creditor, this.debtor, this.#loanRequests, this.#settlementMember];
    return Math.min(this.#heartbeatAtUs, ...parts.map(({ nextUs }) => nextUs));
  }

  /** `nowUs` never decreases. The driver carries the effects out in order. */
  step(nowUs: number, event: RManagerEvent): readonly LendingEffect[] {
    this.#out.begin(nowUs);
    // First of all, expired leases end: blocks that went stale during a pause must not be used.
    this.debtor.expire();
    this.creditor.expire();
    switch (event.kind) {
      case 'message':
        this.#handle(event.envelope);
        break;
      case 'demand':
        this.#updateDemand(event);
        break;
      case 'fetched':
        this.#settlementMember.fetched(event.settlement);
        break;
      case 'fetchFailed':
        this.#settlementMember.fetchFailed(event.settlement);
        break;
      case 'creditorCut':
        this.debtor.abandon(event.creditor);
        break;
      case 'remoteAttentionLoad':
        this.debtor.limitRemoteAttention(event.creditor, event.permille);
        break;
      case 'instanceFailed':
        this.#peerRestarted(event.instance);
        break;
      case 'tick':
        break;
      default:
        assertNever(event);
    }
    this.#loanRequests.tick();
    this.#settlementMember.tick();
    this.#balance();
    this.debtor.flush();
    if (nowUs >= this.#heartbeatAtUs || this.#demand.reservation?.number !== this.#reportedReservation)
      this.#sendHeartbeat();
    return this.#out.effects;
  }

  /** Takes one idle rBlock outside device memory: borrowed, else in spare host memory. Undefined when none is idle. */
  take(): RBlockId | undefined {
    return this.takeOutside(1)?.[0];
  }

  /** Takes `count` rBlocks at one creditor, else in spare host memory. Undefined when neither has that many idle. */
  takeOutside(count: number): readonly RBlockId[] | undefined {
    const abroad = this.debtor.take(count);
    if (abroad !== undefined || this.#spareHostBlocks() < count) return abroad;
    return Array.from({ length: count }, () => {
      const block = this.takeHome('host');
      if (block === undefined) throw new Error('rManager broken: host memory that was spare cannot be had');
      return block;
    });
  }

  /** Idle blocks outside device memory. */
  get inHand(): number {
    return this.debtor.inHand + this.#spareHostBlocks();
  }

  /** Allocates an rBlock at home and evicts cached blocks if needed. Undefined when too many blocks are in use. */
  takeHome(memory: Memory): RBlockId | undefined {
    const block = this.#config.memories[memory].allocate('local');
    return block === undefined ? undefined : this.table.add({ kind: 'home', memory, block });
  }

  /** The current location, valid until the next step. Undefined when the rBlock was lost. */
  find(rblock: RBlockId): RBlockPlace | undefined {
    return this.table.find(rblock);
  }

  /** Frees an rBlock wherever it lies. */
  free(rblock: RBlockId): void {
    const place = this.table.find(rblock);
    if (place === undefined) throw new Error(`Cannot free an rBlock: it is not known: rBlock ${rblock}`);
    this.table.remove(rblock);
    if (place.kind === 'home') this.#config.memories[place.memory].free('local', place.block);
    else if (place.kind === 'staged') this.#settlementMember.forget(rblock);
    else this.debtor.find(place.loan)?.free(place.block);
  }

  #handle(envelope: Envelope): void {
    const { from, fromIncarnation, toIncarnation, message } = envelope;
    const { incarnation } = this.#config;
    if (from === 'gmanager') {
      if (fromIncarnation > this.#epoch) {
        this.#epoch = fromIncarnation;
        this.#settlementMember.newEpoch(fromIncarnation);
      }
      if (fromIncarnation < this.#epoch || (toIncarnation !== undefined && toIncarnation !== incarnation))
        this.#out.countAnomaly('orphan', message.kind);
      else this.#handleFromGManager(envelope);
      return;
    }
    const known = this.#incarnations.get(from) ?? 0;
    if (fromIncarnation > known) {
      this.#incarnations.set(from, fromIncarnation);
      if (known > 0) this.#peerRestarted(from);
    }
    if (fromIncarnation < known) this.#out.countAnomaly('orphan', message.kind);
    else if (toIncarnation !== undefined && toIncarnation !== incarnation) {
      this.#out.countAnomaly('orphan', message.kind);
      // The sender addressed an earlier incarnation: the answer carries the current one.
      if (toIncarnation < incarnation) this.#out.send(from, fromIncarnation, { kind: 'restarted' });
    } else this.#handleFromInstance(envelope);
  }

  #handleFromGManager(envelope: Envelope): void {
    const { message } = envelope;
    switch (message.kind) {
      case 'candidates':
        this.#loanRequests.candidates(message);
        break;
      case 'prepare':
        this.#settlementMember.prepare(message);
        break;
      case 'commit':
        this.#settlementMember.commit(message);
        break;
      case 'abort':
        this.#settlementMember.abort(message);
        break;
      default:
        this.#out.countAnomaly('orphan', message.kind);
    }
  }

  #handleFromInstance(envelope: Envelope): void {
    const { message } = envelope;
    switch (message.kind) {
      case 'borrow':
        this.creditor.borrow(envelope, message, this.#sequence);
        break;
      case 'renew':
        this.creditor.renew(envelope, message);
        break;
      case 'return':
        this.creditor.takeBack(envelope, message);
        break;
      case 'lend':
        if (this.debtor.lent(envelope, message)) this.#loanRequests.lent(message.loan);
        if (this.#demand.reservedSequences > 0 && !this.holdsReservation) this.debtor.commitHeld();
        break;
      case 'refuse':
        this.#loanRequests.refused(envelope, message);
        break;
      case 'renewed':
        this.debtor.renewed(envelope, message);
        break;
      case 'returned':
        this.debtor.returned(envelope, message);
        break;
      case 'recall':
        this.debtor.recalled(envelope, message);
        break;
      case 'restarted':
        // The envelope has already carried the new incarnation.
        break;
      default:
        this.#out.countAnomaly('orphan', message.kind);
    }
  }

  #peerRestarted(instance: InstanceIndex): void {
    this.creditor.restarted(instance);
    this.debtor.restarted(instance);
    this.#loanRequests.restarted(instance);
  }

  /** Borrows ahead of need, returns surplus, and recalls lent blocks when home memory runs short. */
  #balance(): void {
    const { policy, memories } = this.#config;
    const { available } = memories.device.totals;
    const reservation = this.#missingForReservation();
    this.#loanRequests.setDemand(this.#blocksMissing(), reservation, this.#demand.reservedSequences > 0);
    const aheadBlocks =
      this.#demand.aheadBlocks + (this.holdsReservation ? (this.#demand.reservation?.blocks ?? 0) : 0);
    const demand = { ...this.#demand, aheadBlocks };
    this.debtor.returnIdle(blocksToGiveBack(available, demand, this.debtor.inHand, policy));
    // While this creditor holds admission for another instance's prompt, prompts that wait here yield.
    const waits = this.creditor.hold === undefined ? this.#demand.starvedBlocks : 0;
    const starved = this.holdsReservation ? (reservation?.blocks ?? 0) : waits;
    const short = Math.max(policy.recallBlocks - available, starved);
    if (short > 0) this.creditor.recall('device', short);
  }

  /** The instance has to borrow. */
  get isShort(): boolean {
    return this.#blocksMissing() > 0 || this.#loanRequests.holdsReservation;
  }

  /** Device blocks committed to running sequences. */
  get committedBlocks(): number {
    return this.#demand.committedBlocks;
  }

  /** The part of `committedBlocks` that is not yet in hand. */
  get committedMissingBlocks(): number {
    return Math.max(0, this.#demand.committedBlocks - this.inHand);
  }

  /** A loan is being arranged, or will be as soon as the back-off ends. */
  get isAsking(): boolean {
    return this.#loanRequests.isBusy;
  }

  /** Device memory is needed, and a recent request found none. */
  get isUnsatisfied(): boolean {
    return this.#loanRequests.isUnsatisfied;
  }

  /** This instance may reserve memory for its waiting prompt. */
  get holdsReservation(): boolean {
    return this.#loanRequests.holdsReservation;
  }

  /**
   * Commits the held blocks when a reserved prompt is admitted; releases the commitment when the last such prompt ends.
   */
  #updateDemand(demand: DemandUpdate): void {
    const { reservation } = this.#demand;
    if (demand.reservationsAdmitted > this.#demand.reservationsAdmitted) this.debtor.commitHeld();
    else if (reservation !== undefined && demand.reservation?.number !== reservation.number)
      this.debtor.endReservation();
    if (demand.reservedSequences === 0 && this.#demand.reservedSequences > 0) this.debtor.uncommit();
    this.#demand = demand;
  }

  /** Blocks to borrow now, including `besides`. */
  #blocksMissing(besides = 0): number {
    const { policy, memories } = this.#config;
    const { inHand } = this;
    const demand = { ...this.#demand, aheadBlocks: this.#demand.aheadBlocks + besides };
    return blocksWanted(memories.device.totals.available, demand, inHand, policy);
  }

  /** The reservation of the waiting prompt, with the blocks that are still missing. */
  #missingForReservation(): Reservation | undefined {
    const { reservation } = this.#demand;
    return reservation && { number: reservation.number, blocks: this.#blocksMissing(reservation.blocks) };
  }

  /** Host memory of this instance counts only after device memory of others is exhausted: steps read it more slowly. */
  #spareHostBlocks(): number {
    return this.#loanRequests.isDeviceExhausted ? this.hostBlocks : 0;
  }

  /** Blocks of the instance's own host memory that are available, in whole units. */
  get hostBlocks(): number {
    return wholeUnits(this.#config.memories.host.totals.available, this.#config.policy);
  }

  #sendHeartbeat(): void {
    const { creditor, debtor } = this;
    this.#heartbeatAtUs = this.#out.nowUs + this.#config.times.heartbeatUs;
    this.#reportedReservation = this.#demand.reservation?.number;
    const report = {
      sequence: ++this.#sequence,
      lendable: { device: creditor.lendable('device'), host: creditor.lendable('host') },
      lendableLater: { device: creditor.lendableLater('device'), host: creditor.lendableLater('host') },
      recallable: { device: creditor.recallable('device'), host: creditor.recallable('host') },
      reservation: this.#reportedReservation,
      debts: debtor.totals,
      loans: creditor.totals,
    };
    this.#out.send('gmanager', undefined, { kind: 'heartbeat', report });
  }

  /** Loans from creditors, for checkers and reports. */
  get debts(): IterableIterator<Debt> {
    return this.debtor.debts;
  }

  /** Throws unless every block of every loan and every rBlock is accounted for exactly once. */
  check(): void {
    this.creditor.check();
    this.debtor.check();
    this.#settlementMember.check();
    let home = 0;
    for (const [, { kind }] of this.table.entries()) if (kind === 'home') home++;
    const { device, host } = this.#config.memories;
    if (home !== device.local + host.local)
      throw new Error(`rManager broken: ${home} rBlocks at home, ${device.local} + ${host.local} blocks for them`);
  }
}

/** No demand. */
export const noDemand: DemandUpdate = {
  kind: 'demand',
  blocksPerSecond: 0,
  aheadBlocks: 0,
  starvedBlocks: 0,
  committedBlocks: 0,
  reservation: undefined,
  reservedSequences: 0,
  reservationsAdmitted: 0,
};
