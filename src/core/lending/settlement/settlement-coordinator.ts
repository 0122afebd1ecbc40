// The gManager's side of settlements, a two-phase commit: selects cycles, prepares their members, decides, and sends the
// decision until all have acknowledged it.

import type { InstanceIndex, SettlementId } from '../../protocol/ids.ts';
import type { Envelope } from '../../protocol/lending-messages.ts';
import { type Memory, memories } from '../../protocol/lending-report.ts';
import type { DebtLedger } from '../manager/debt-ledger.ts';
import type { Outbox } from '../outbox.ts';
import type { LendingTimes } from '../times.ts';
import { findCycle } from './debt-cycles.ts';

interface Member {
  readonly instance: InstanceIndex;
  readonly incarnation: number;
  readonly creditor: InstanceIndex;
  /** The vote during the prepare phase; the acknowledgement after the decision. */
  answered: boolean;
}

interface Settlement {
  readonly settlement: SettlementId;
  readonly memory: Memory;
  readonly blocks: number;
  readonly members: readonly Member[];
  stage: 'preparing' | 'committed';
  untilUs: number;
  resendAtUs: number;
}

export interface CoordinatorConfig {
  readonly times: LendingTimes;
  /** Smallest debt of a cycle that is settled. */
  readonly blocksMin: number;
  /** Blocks of one attention range: settlements move whole ranges. */
  readonly rangeBlocks: number;
  /** A value in [0, 1) that depends on the counter alone. */
  readonly uniform: (counter: number) => number;
}

/**
 * Presumed abort: an abort is not stored, so a restarted gManager can answer members in doubt. An instance takes part in
 * one settlement at a time.
 */
export class SettlementCoordinator {
  readonly #config: CoordinatorConfig;
  readonly #ledger: DebtLedger;
  readonly #out: Outbox;
  readonly #running = new Map<number, Settlement>();
  #number = 0;
  #counter = 0;
  #searchAtUs: number | undefined;

  constructor(config: CoordinatorConfig, ledger: DebtLedger, out: Outbox) {
    this.#config = config;
    this.#ledger = ledger;
    this.#out = out;
  }

  get nextUs(): number {
    let next = this.#searchAtUs ?? 0;
    for (const { resendAtUs } of this.#running.values()) next = Math.min(next, resendAtUs);
    return next;
  }

  tick(): void {
    const { nowUs } = this.#out;
    for (const settlement of this.#running.values())
      if (nowUs >= settlement.resendAtUs) this.#resendOrAbort(settlement);
    // The first search waits for one round of heartbeats.
    this.#searchAtUs ??= nowUs + this.#config.times.settleUs;
    if (nowUs < this.#searchAtUs) return;
    this.#searchAtUs = nowUs + this.#config.times.settleUs;
    for (const memory of memories) this.#startSettlements(memory);
  }

  prepared({ from, fromIncarnation }: Envelope, id: SettlementId): void {
    const running = this.#find(id);
    const member = running?.members.find(
      ({ instance, incarnation }) => instance === from && incarnation === fromIncarnation,
    );
    if (running === undefined || member === undefined) {
      this.#out.countAnomaly(id.epoch === this.#out.incarnation ? 'late' : 'orphan', 'prepared');
      this.#out.send(from, fromIncarnation, { kind: 'abort', settlement: id });
      return;
    }
    if (running.stage === 'committed' || member.answered) {
      this.#out.countAnomaly('duplicate', 'prepared');
      return;
    }
    member.answered = true;
    if (!running.members.every(({ answered }) => answered)) return;
    running.stage = 'committed';
    for (const other of running.members) other.answered = false;
    this.#sendToMembers(running);
  }

  declined({ from }: Envelope, id: SettlementId): void {
    const running = this.#find(id);
    if (running?.stage !== 'preparing')
      this.#out.countAnomaly(id.epoch === this.#out.incarnation ? 'late' : 'orphan', 'declined');
    else this.#abort(running, from as InstanceIndex);
  }

  settled({ from }: Envelope, id: SettlementId): void {
    const running = this.#find(id);
    const member = running?.members.find(({ instance }) => instance === from);
    if (running?.stage !== 'committed' || member === undefined) {
      this.#out.countAnomaly(id.epoch === this.#out.incarnation ? 'late' : 'orphan', 'settled');
      return;
    }
    if (member.answered) this.#out.countAnomaly('duplicate', 'settled');
    member.answered = true;
    if (running.members.every(({ answered }) => answered)) this.#running.delete(id.number);
  }

  /** Answers a member in doubt, except while the decision is pending. */
  outcome({ from, fromIncarnation }: Envelope, id: SettlementId): void {
    const running = this.#find(id);
    if (running === undefined) {
      this.#out.countAnomaly(id.epoch === this.#out.incarnation ? 'late' : 'orphan', 'outcome');
      this.#out.send(from, fromIncarnation, { kind: 'abort', settlement: id });
    } else if (running.stage === 'committed') this.#out.send(from, fromIncarnation, { kind: 'commit', settlement: id });
  }

  #find({ epoch, number }: SettlementId): Settlement | undefined {
    return epoch === this.#out.incarnation ? this.#running.get(number) : undefined;
  }

  /** Settles cycles without a common member, each by as many ranges as its smallest debt and its staging buffers allow. */
  #startSettlements(memory: Memory): void {
    const { blocksMin, rangeBlocks, uniform } = this.#config;
    const busy = new Set([...this.#running.values()].flatMap(({ members }) => members.map(({ instance }) => instance)));
    const stagingOf = (instance: InstanceIndex): number => this.#ledger.stagingBlocks(instance) ?? rangeBlocks;
    for (;;) {
      const edges = this.#ledger
        .edges(memory)
        .filter(({ debtor, creditor }) => !busy.has(debtor) && !busy.has(creditor) && stagingOf(debtor) >= rangeBlocks);
      const cycle = findCycle(edges, Math.max(blocksMin, rangeBlocks), uniform(this.#counter++));
      if (cycle === undefined) return;
      const blocks = Math.min(cycle.blocks, ...cycle.members.map(stagingOf));
      this.#start(memory, cycle.members, blocks - (blocks % rangeBlocks));
      for (const member of cycle.members) busy.add(member);
    }
  }

  #start(memory: Memory, instances: readonly InstanceIndex[], blocks: number): void {
    const members = instances.map((instance, i) => ({
      instance,
      incarnation: this.#ledger.incarnation(instance) ?? 0,
      creditor: instances[(i + 1) % instances.length],
      answered: false,
    }));
    const settlement: Settlement = {
      settlement: { epoch: this.#out.incarnation, number: ++this.#number },
      memory,
      blocks,
      members,
      stage: 'preparing',
      untilUs: this.#out.nowUs + this.#config.times.prepareUs,
      resendAtUs: 0,
    };
    this.#running.set(this.#number, settlement);
    this.#sendToMembers(settlement);
  }

  /** Some members have not answered in time. */
  #resendOrAbort(running: Settlement): void {
    const { nowUs } = this.#out;
    this.#out.countAnomaly('lost', running.stage === 'preparing' ? 'prepare' : 'settled');
    if (running.stage === 'preparing' && nowUs >= running.untilUs) {
      this.#abort(running);
      return;
    }
    // A member that has failed or restarted has nothing to settle.
    for (const member of running.members) {
      if (running.stage === 'committed' && this.#ledger.incarnation(member.instance) !== member.incarnation)
        member.answered = true;
    }
    if (running.members.every(({ answered }) => answered)) this.#running.delete(running.settlement.number);
    else this.#sendToMembers(running);
  }

  #sendToMembers(running: Settlement): void {
    const { settlement, memory, blocks, members, stage } = running;
    running.resendAtUs = this.#out.nowUs + this.#config.times.inDoubtUs;
    for (const { instance, incarnation, creditor, answered } of members) {
      if (answered) continue;
      if (stage === 'committed') this.#out.send(instance, incarnation, { kind: 'commit', settlement });
      else this.#out.send(instance, incarnation, { kind: 'prepare', settlement, creditor, memory, blocks });
    }
  }

  #abort({ settlement, members }: Settlement, except?: InstanceIndex): void {
    this.#running.delete(settlement.number);
    for (const { instance, incarnation } of members) {
      if (instance !== except) this.#out.send(instance, incarnation, { kind: 'abort', settlement });
    }
  }
}
