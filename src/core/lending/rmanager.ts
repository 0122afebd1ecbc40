// The rManager machine: owns an instance's rBlocks at home and abroad, lends to others, borrows ahead of need, and tells the gManager.

import type { LendingMemory } from '../kvcache/lending-memory.ts';
import type { InstanceIndex, RBlockId } from '../protocol/ids.ts';
import type { Envelope, Gathering, Growth, LendingEffect, RManagerEvent } from '../protocol/lending-messages.ts';
import type { Memory } from '../protocol/lending-terms.ts';
import { Creditor } from './creditor/creditor.ts';
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
  /** Which start of this instance it is: greater than that of every one before. */
  readonly incarnation: number;
  readonly memories: Readonly<Record<Memory, LendingMemory>>;
  readonly policy: LendingPolicy;
  readonly times: LendingTimes;
  /** Blocks of the buffer that settled contents pass through. */
  readonly stagingBlocks: number;
}

/**
 * Messages may be lost, doubled, late or for another life: whatever comes, every page has one owner and every loan ends. `take` and `free`
 * are its local callers' side of the API; remote callers' is `borrow` and `return`.
 */
export class RManager {
  readonly table = new RBlockTable();
  readonly creditor: Creditor;
  readonly debtor: Debtor;
  readonly #config: RManagerConfig;
  readonly #out: Outbox;
  readonly #asking: LoanRequests;
  readonly #settler: SettlementMember;
  readonly #incarnations = new Map<InstanceIndex, number>();
  #epoch = 0;
  #sequence = 0;
  #heartbeatAtUs = 0;
  #growth: Growth = noGrowth;
  #toldTurn: number | undefined;

  constructor(config: RManagerConfig) {
    const { memories, policy, times } = config;
    this.#config = config;
    this.#out = new Outbox(config.instance, config.incarnation);
    this.creditor = new Creditor(memories, policy, times, this.#out, {
      isShort: () => this.#wanted() > 0 || this.#asking.hasTurn,
      promisedBlocks: () => this.#growth.promisedBlocks,
      keptBlocks: () => Math.max(0, this.#growth.promisedBlocks - this.inHand),
    });
    this.debtor = new Debtor(times, this.#out, this.table, policy);
    this.#asking = new LoanRequests(times, this.#out, this.debtor, () => this.#hostBlocks());
    const parts = { memories, table: this.table, creditor: this.creditor, debtor: this.debtor };
    this.#settler = new SettlementMember(times, this.#out, config.stagingBlocks, parts);
  }

  /** When a `tick` is due, if nothing comes before. */
  get nextUs(): number {
    const parts = [this.creditor, this.debtor, this.#asking, this.#settler];
    return Math.min(this.#heartbeatAtUs, ...parts.map(({ nextUs }) => nextUs));
  }

  /** `nowUs` never goes back. The effects are to be carried out in order. */
  step(nowUs: number, event: RManagerEvent): readonly LendingEffect[] {
    this.#out.begin(nowUs);
    // Before anything else: what a pause has made stale must not be used.
    this.debtor.expire();
    this.creditor.expire();
    switch (event.kind) {
      case 'message':
        this.#hear(event.envelope);
        break;
      case 'growth':
        this.#grow(event);
        break;
      case 'fetched':
        this.#settler.fetched(event.settlement);
        break;
      case 'unfetched':
        this.#settler.unfetched(event.settlement);
        break;
      case 'creditorCut':
        this.debtor.abandon(event.creditor);
        break;
      case 'guestLoad':
        this.debtor.bound(event.creditor, event.permille);
        break;
      case 'instanceLost':
        this.#reborn(event.instance);
        break;
      case 'tick':
        break;
    }
    this.#asking.tick();
    this.#settler.tick();
    this.#balance();
    this.debtor.flush();
    if (nowUs >= this.#heartbeatAtUs || this.#growth.turn?.number !== this.#toldTurn) this.#beat();
    return this.#out.effects;
  }

  /** An rBlock outside device memory, for a local caller whose own runs short: abroad, else in spare host memory. Undefined when none is in hand. */
  take(): RBlockId | undefined {
    return this.takeOutside(1)?.[0];
  }

  /** `count` rBlocks that lie at one creditor, else in spare host memory. Undefined when none has so many in hand. */
  takeOutside(count: number): readonly RBlockId[] | undefined {
    const abroad = this.debtor.take(count);
    if (abroad !== undefined || this.#spareHost() < count) return abroad;
    return Array.from({ length: count }, () => {
      const block = this.takeHome('host');
      if (block === undefined) throw new Error('rManager broken: host memory that was spare cannot be had');
      return block;
    });
  }

  /** Blocks outside device memory that nobody uses. */
  get inHand(): number {
    return this.debtor.inHand + this.#spareHost();
  }

  /** An rBlock at home, evicting what nobody uses. Undefined when too much is in use. */
  takeHome(memory: Memory): RBlockId | undefined {
    const block = this.#config.memories[memory].allocate('local');
    return block === undefined ? undefined : this.table.add({ kind: 'home', memory, block });
  }

  /** Where it lies now: until the next step. Undefined when it was lost. */
  find(rblock: RBlockId): RBlockPlace | undefined {
    return this.table.find(rblock);
  }

  /** Its holder needs it no more, wherever it lies. */
  free(rblock: RBlockId): void {
    const place = this.table.find(rblock);
    if (place === undefined) throw new Error(`Cannot free an rBlock: it is not known: rBlock ${rblock}`);
    this.table.remove(rblock);
    if (place.kind === 'home') this.#config.memories[place.memory].free('local', place.block);
    else if (place.kind === 'staged') this.#settler.forget(rblock);
    else this.debtor.find(place.loan)?.free(place.block);
  }

  #hear(envelope: Envelope): void {
    const { from, fromIncarnation, toIncarnation, message } = envelope;
    const { incarnation } = this.#config;
    if (from === 'gmanager') {
      if (fromIncarnation > this.#epoch) {
        this.#epoch = fromIncarnation;
        this.#settler.newEpoch(fromIncarnation);
      }
      if (fromIncarnation < this.#epoch || (toIncarnation !== undefined && toIncarnation !== incarnation))
        this.#out.met('orphan', message.kind);
      else this.#hearManager(envelope);
      return;
    }
    const known = this.#incarnations.get(from) ?? 0;
    if (fromIncarnation > known) {
      this.#incarnations.set(from, fromIncarnation);
      if (known > 0) this.#reborn(from);
    }
    if (fromIncarnation < known) this.#out.met('orphan', message.kind);
    else if (toIncarnation !== undefined && toIncarnation !== incarnation) {
      this.#out.met('orphan', message.kind);
      // What it takes for alive is gone: it hears our new life.
      if (toIncarnation < incarnation) this.#out.send(from, fromIncarnation, { kind: 'reborn' });
    } else this.#hearInstance(envelope);
  }

  #hearManager(envelope: Envelope): void {
    const { message } = envelope;
    switch (message.kind) {
      case 'candidates':
        this.#asking.candidates(message);
        break;
      case 'prepare':
        this.#settler.prepare(message);
        break;
      case 'commit':
        this.#settler.commit(message);
        break;
      case 'abort':
        this.#settler.abort(message);
        break;
      default:
        this.#out.met('orphan', message.kind);
    }
  }

  #hearInstance(envelope: Envelope): void {
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
        if (this.debtor.lent(envelope, message)) this.#asking.lent(message.loan);
        if (this.#growth.gathered > 0 && !this.hasTurn) this.debtor.promise();
        break;
      case 'refuse':
        this.#asking.refused(envelope, message);
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
      case 'reborn':
        // Its envelope has told all there is.
        break;
      default:
        this.#out.met('orphan', message.kind);
    }
  }

  #reborn(instance: InstanceIndex): void {
    this.creditor.reborn(instance);
    this.debtor.reborn(instance);
    this.#asking.reborn(instance);
  }

  /** Borrows ahead of need, gives back what is too much, recalls when its own memory runs short. */
  #balance(): void {
    const { policy, memories } = this.#config;
    const { available } = memories.device.figures;
    const turn = this.#gathering();
    this.#asking.want(this.#wanted(), turn, this.#growth.gathered > 0);
    const aheadBlocks = this.#growth.aheadBlocks + (this.hasTurn ? (this.#growth.turn?.blocks ?? 0) : 0);
    const demand = { ...this.#growth, aheadBlocks };
    this.debtor.giveIdle(blocksToGiveBack(available, demand, this.debtor.inHand, policy));
    // While room is made for another, prompts that wait here give way.
    const waits = this.creditor.hold === undefined ? this.#growth.starvedBlocks : 0;
    const starved = this.hasTurn ? (turn?.blocks ?? 0) : waits;
    const short = Math.max(policy.recallBlocks - available, starved);
    if (short > 0) this.creditor.recall('device', short);
  }

  /** Is a loan on its way, or will one be asked for as soon as that makes sense? */
  get isAsking(): boolean {
    return this.#asking.isBusy;
  }

  /** Device memory is wanted, and was asked for in vain a short while ago. */
  get isInVain(): boolean {
    return this.#asking.isInVain;
  }

  /** It gathers for the prompt that waits. */
  get hasTurn(): boolean {
    return this.#asking.hasTurn;
  }

  /** A prompt that is let in was promised what is held; when the last one has ended, nobody is. One that is gone needs nothing. */
  #grow(growth: Growth): void {
    const { turn } = this.#growth;
    if (growth.gatherings > this.#growth.gatherings) this.debtor.promise();
    else if (turn !== undefined && growth.turn?.number !== turn.number) this.debtor.sate();
    if (growth.gathered === 0 && this.#growth.gathered > 0) this.debtor.unpromise();
    this.#growth = growth;
  }

  /** Blocks to borrow now, with so many needed besides. */
  #wanted(besides = 0): number {
    const { policy, memories } = this.#config;
    const { inHand } = this;
    const demand = { ...this.#growth, aheadBlocks: this.#growth.aheadBlocks + besides };
    return blocksWanted(memories.device.figures.available, demand, inHand, policy);
  }

  /** What is missing for the prompt that waits. */
  #gathering(): Gathering | undefined {
    const { turn } = this.#growth;
    return turn && { number: turn.number, blocks: this.#wanted(turn.blocks) };
  }

  /** Of its own, once no more device memory is to be had: steps reach what lies there more slowly than what others have in theirs. */
  #spareHost(): number {
    return this.#asking.isDeviceSpent ? this.#hostBlocks() : 0;
  }

  #hostBlocks(): number {
    return wholeUnits(this.#config.memories.host.figures.available, this.#config.policy);
  }

  #beat(): void {
    const { creditor, debtor } = this;
    this.#heartbeatAtUs = this.#out.nowUs + this.#config.times.heartbeatUs;
    this.#toldTurn = this.#growth.turn?.number;
    const report = {
      sequence: ++this.#sequence,
      lendable: { device: creditor.lendable('device'), host: creditor.lendable('host') },
      lendableInTime: { device: creditor.lendableInTime('device'), host: creditor.lendableInTime('host') },
      recallable: { device: creditor.recallable('device'), host: creditor.recallable('host') },
      turn: this.#toldTurn,
      debts: debtor.totals,
      loans: creditor.totals,
    };
    this.#out.send('gmanager', undefined, { kind: 'heartbeat', report });
  }

  /** Debts, for checkers and reports. */
  get debts(): IterableIterator<Debt> {
    return this.debtor.debts;
  }

  /** Throws unless every block of every loan and every rBlock is accounted for once. */
  check(): void {
    this.creditor.check();
    this.debtor.check();
    this.#settler.check();
    let home = 0;
    for (const [, { kind }] of this.table.entries()) if (kind === 'home') home++;
    const { device, host } = this.#config.memories;
    if (home !== device.local + host.local)
      throw new Error(`rManager broken: ${home} rBlocks at home, ${device.local} + ${host.local} blocks for them`);
  }
}

/** Nothing is going to be needed. */
export const noGrowth: Growth = {
  kind: 'growth',
  blocksPerSecond: 0,
  aheadBlocks: 0,
  starvedBlocks: 0,
  promisedBlocks: 0,
  turn: undefined,
  gathered: 0,
  gatherings: 0,
};
