// The rManager machine (Infinite-LLM, section 5): owns the rBlocks of an instance at home and at creditors, lends,
// borrows ahead of demand, and reports to the gManager.

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
import type { LinkReport, Memory } from '../protocol/lending-report.ts';
import { Creditor, type OwnDemand } from './creditor/creditor.ts';
import type { Debt } from './debtor/debt.ts';
import { Debtor } from './debtor/debtor.ts';
import { LoanRequests } from './debtor/loan-requests.ts';
import { blocksToReturn, blocksWanted, type LendingPolicy, wholeUnits } from './lending-policy.ts';
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
 * Each page has one owner and each loan ends, even if messages are lost, duplicated, late, or for another incarnation.
 * Local callers use `take` and `free`; remote callers use the messages `borrow` and `return`.
 */
export class RManager implements OwnDemand {
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
  #links: readonly LinkReport[] = [];
  #isDraining = false;

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
    // Expired leases end first: after a pause, stale blocks must not be used.
    this.debtor.expire();
    this.creditor.expire();
    switch (event.kind) {
      case 'message':
        this.#handle(event.envelope);
        break;
      case 'demand':
        this.#updateDemand(event);
        break;
      case 'staged':
        this.#settlementMember.staged(event.settlement);
        break;
      case 'stagingFailed':
        this.#settlementMember.stagingFailed(event.settlement);
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
      case 'links':
        this.#links = event.links;
        break;
      case 'drain':
        this.#isDraining = true;
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

  /** Takes one idle rBlock: borrowed, else in spare host memory. Undefined if none is idle. */
  take(): RBlockId | undefined {
    return this.takeOutside(1)?.[0];
  }

  /** Takes `count` rBlocks at one creditor, else in spare host memory. Undefined if neither has that many idle. */
  takeOutside(count: number): readonly RBlockId[] | undefined {
    const borrowed = this.debtor.take(count);
    if (borrowed !== undefined || this.#spareHostBlocks() < count) return borrowed;
    return Array.from({ length: count }, () => {
      const block = this.takeHome('host');
      if (block === undefined) throw new Error('rManager broken: a spare block of host memory cannot be allocated');
      return block;
    });
  }

  /** Idle blocks outside device memory at home. */
  get idleBlocks(): number {
    return this.debtor.idleBlocks + this.#spareHostBlocks();
  }

  /** Allocates an rBlock at home, with evictions if necessary. Undefined if too many blocks are in use. */
  takeHome(memory: Memory): RBlockId | undefined {
    const block = this.#config.memories[memory].allocate('local');
    return block === undefined ? undefined : this.table.add({ kind: 'home', memory, block });
  }

  /** The current place, valid until the next step. Undefined if the rBlock was lost. */
  find(rblock: RBlockId): RBlockPlace | undefined {
    return this.table.find(rblock);
  }

  /** Frees an rBlock wherever it lies. */
  free(rblock: RBlockId): void {
    const place = this.table.find(rblock);
    if (place === undefined) throw new Error(`Cannot free an rBlock: there is none with this number: rBlock ${rblock}`);
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
      // For an earlier incarnation: the envelope of the answer carries the current one.
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
        if (this.#demand.reservedSequences > 0 && !this.holdsReservation) this.debtor.guaranteeLoans();
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
        // The envelope carried the new incarnation, which was handled above.
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

  /** Borrows ahead of demand, returns surplus blocks, and recalls lent blocks if home memory is short. */
  #balance(): void {
    const { policy, memories } = this.#config;
    const { available } = memories.device.totals;
    const reservation = this.#missingForReservation();
    this.#loanRequests.setDemand(this.#blocksMissing(), reservation, this.#demand.reservedSequences > 0);
    const aheadBlocks =
      this.#demand.aheadBlocks + (this.holdsReservation ? (this.#demand.reservation?.blocks ?? 0) : 0);
    const demand = { ...this.#demand, aheadBlocks };
    this.debtor.returnIdle(blocksToReturn(available, demand, this.debtor.idleBlocks, policy));
    // During an admission hold, local prompts recall nothing.
    const localStarved = this.creditor.hold === undefined ? this.#demand.starvedBlocks : 0;
    const starved = this.holdsReservation ? (reservation?.blocks ?? 0) : localStarved;
    const short = Math.max(policy.recallBlocks - available, starved);
    if (this.#isDraining) this.creditor.recallAll();
    else if (short > 0) this.creditor.recall('device', short);
  }

  /** The instance has to borrow. */
  get isShort(): boolean {
    return this.#blocksMissing() > 0 || this.#loanRequests.holdsReservation;
  }

  /** The instance ends when its requests have ended. */
  get isDraining(): boolean {
    return this.#isDraining;
  }

  /** Device blocks guaranteed to running sequences. */
  get guaranteedBlocks(): number {
    return this.#demand.guaranteedBlocks;
  }

  /** The part of `guaranteedBlocks` that idle borrowed blocks do not cover. */
  get guaranteedMissingBlocks(): number {
    return Math.max(0, this.#demand.guaranteedBlocks - this.idleBlocks);
  }

  /** A loan is being arranged for running sequences. */
  get isAsking(): boolean {
    return this.#loanRequests.isBusy;
  }

  /** Device memory is required, and a recent query found none. */
  get isUnsatisfied(): boolean {
    return this.#loanRequests.isUnsatisfied;
  }

  /** This instance may reserve memory for its waiting prompt. */
  get holdsReservation(): boolean {
    return this.#loanRequests.holdsReservation;
  }

  /** Guarantees the loans when a reserving prompt is admitted, and releases them when the last such prompt ends. */
  #updateDemand(demand: DemandUpdate): void {
    const { reservation } = this.#demand;
    if (demand.reservationsAdmitted > this.#demand.reservationsAdmitted) this.debtor.guaranteeLoans();
    else if (reservation !== undefined && demand.reservation?.number !== reservation.number)
      this.debtor.endReservation();
    if (demand.reservedSequences === 0 && this.#demand.reservedSequences > 0) this.debtor.releaseGuarantee();
    this.#demand = demand;
  }

  /** Blocks to borrow now. @param reserved blocks of a reservation, on top of the demand */
  #blocksMissing(reserved = 0): number {
    const { policy, memories } = this.#config;
    const { idleBlocks } = this;
    const demand = { ...this.#demand, aheadBlocks: this.#demand.aheadBlocks + reserved };
    return blocksWanted(memories.device.totals.available, demand, idleBlocks, policy);
  }

  /** The reservation of the waiting prompt, with the blocks that are still missing. */
  #missingForReservation(): Reservation | undefined {
    const { reservation } = this.#demand;
    return reservation && { number: reservation.number, blocks: this.#blocksMissing(reservation.blocks) };
  }

  /** Own host memory counts as spare only once device memory of others is exhausted, because steps read it more slowly. */
  #spareHostBlocks(): number {
    return this.#loanRequests.isDeviceExhausted ? this.hostBlocks : 0;
  }

  /** Available blocks of the instance's own host memory, in whole units. */
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
      stagingBlocks: this.#settlementMember.stagingBlocks,
      links: this.#links,
    };
    this.#out.send('gmanager', undefined, { kind: 'heartbeat', report });
  }

  /** Settlements in which this instance has returned blocks. */
  get settlements(): number {
    return this.#settlementMember.committed;
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
  guaranteedBlocks: 0,
  reservation: undefined,
  reservedSequences: 0,
  reservationsAdmitted: 0,
};
