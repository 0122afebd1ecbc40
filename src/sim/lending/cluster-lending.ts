// Lending between the instances of a simulated cluster: carries messages and blocks, wakes machines, and has guests slow their creditors down.

import type { StepCostModel } from '../../core/cost/roofline.ts';
import type { LengthInstance } from '../../core/instance/length-instance.ts';
import type { BorrowingTotals } from '../../core/lending/debtor/borrower-config.ts';
import { GManager } from '../../core/lending/manager/gmanager.ts';
import type { BorrowerEffect, RemoteWork } from '../../core/protocol/lending-effects.ts';
import type { Envelope, LendingEffect } from '../../core/protocol/lending-messages.ts';
import { counterUniform } from '../../util/counter-random.ts';
import { EventHeap } from '../engine/event-heap.ts';
import { EventQueue } from '../engine/event-queue.ts';
import type { SimulatedExecutor } from '../engine/executor.ts';
import type { Departed } from '../network/network.ts';
import { BlockCopies } from './block-copies.ts';
import { checkAtRest, checkLoans, type LendingParty } from './checks.ts';
import type { ClusterLendingConfig, Debt, ToldEvent as Event, LendingCounts, LendingHost } from './lending-host.ts';
import { isPaidBack, Progress } from './progress.ts';
import { RemoteAttention } from './remote-attention.ts';

/** The cluster that lends. */
interface Lenders {
  readonly instances: readonly { readonly machine: { readonly cost: StepCostModel } }[];
  readonly blockTokens: number;
  readonly checking: boolean;
}

/** For reports that name what nobody wants, for leases to end and for heartbeats to tell. */
const restLeases = 15;

export class ClusterLending {
  readonly counts: LendingCounts = { loans: 0, recalls: 0, refusals: 0, settlements: 0, queries: 0 };
  readonly guests: RemoteAttention;
  readonly #config: ClusterLendingConfig;
  readonly #host: LendingHost;
  readonly #checking: boolean;
  #gmanager: GManager;
  #epoch = 0;
  /** Keys: wakes of instances, then of the gManager, then what is on its way. */
  readonly #heap = new EventHeap();
  readonly #wakeUs: Float64Array;
  readonly #posts: EventQueue;
  readonly #copies: BlockCopies;
  readonly #busy: Uint8Array;
  /** (instances): since when the step that runs waits in vain. */
  readonly #strandedUs: Float64Array;
  #nowUs = 0;
  readonly #progress: Progress;
  #over = false;

  constructor(config: ClusterLendingConfig, cluster: Lenders, host: LendingHost) {
    this.#checking = cluster.checking;
    const costs = cluster.instances.map(({ machine }) => machine.cost);
    const blockBytes = costs.map(({ kvBytesPerToken }) => kvBytesPerToken * cluster.blockTokens);
    this.#config = config;
    this.#host = host;
    const { instances, executors, network, streams } = host;
    this.#posts = new EventQueue(this.#heap, instances.length + 1);
    const { hostTokenUs = costs.map(() => 0) } = config;
    const hostBlockUs = hostTokenUs.map((us) => us * cluster.blockTokens);
    this.#copies = new BlockCopies(network, blockBytes, hostBlockUs, {
      tell: (us, debtor, event) => this.#put(us, debtor, event),
      later: (us, action) => this.#posts.at(this.#nowUs + us, action),
      reaches: (a, b) => this.#reaches(a, b),
      answers: (debtor, creditor) => this.#answers(debtor, creditor),
      incarnationOf: (instance) => this.#incarnationOf(instance),
      reads: (instance, rows) => streams.reads(this.#nowUs, instance, rows),
    });
    this.#wakeUs = new Float64Array(instances.length + 1).fill(Number.POSITIVE_INFINITY);
    this.#busy = new Uint8Array(instances.length);
    this.#strandedUs = new Float64Array(instances.length).fill(Number.POSITIVE_INFINITY);
    const { layers, queryRowBytes: rowBytes } = config;
    this.guests = new RemoteAttention({
      costs,
      hostTokenUs,
      link: (from, to) => ({
        layers,
        rowBytes,
        oneWayUs: network.latencyUs(from, to),
        bytesPerUs: network.bytesPerUs(from, to),
      }),
      remoteAttentionPermilleMax: config.remoteAttentionPermilleMax,
      isBusy: (instance) => executors[instance].isRunning,
      slowness: (instance) => executors[instance].slowness,
    });
    this.#progress = new Progress(config.times);
    this.#gmanager = this.#createGManager();
    for (let i = 0; i <= instances.length; i++) this.#schedule(i);
  }

  /** One of a new epoch knows nothing. */
  #createGManager(): GManager {
    const { settles, times, settleBlocksMin, settleBlocksMax, seed } = this.#config;
    const epoch = ++this.#epoch;
    return new GManager({
      epoch,
      times: settles ? times : { ...times, settleUs: Number.MAX_SAFE_INTEGER },
      blocksMin: settleBlocksMin,
      blocksMax: settleBlocksMax,
      uniform: (counter) => counterUniform(seed, 6 + epoch, counter),
      distance: () => 1,
    });
  }

  restartGManager(nowUs: number): void {
    this.#nowUs = nowUs;
    this.#gmanager = this.#createGManager();
    this.#schedule(this.#host.instances.length);
  }

  /** An instance is gone with all that it had borrowed and lent. Connections end besides (`break`). */
  died(nowUs: number, instance: number): void {
    this.#nowUs = nowUs;
    this.#copies.died(nowUs, instance);
    this.#tellNews(instance, []);
    this.#host.executors[instance].remoteAttentionPermille = 0;
    this.#busy[instance] = 0;
    this.#wakeUs[instance] = Number.POSITIVE_INFINITY;
  }

  /** It begins a new life. */
  started(nowUs: number, instance: number): void {
    this.#nowUs = nowUs;
    this.#schedule(instance);
  }

  /** Its steps take more or less time from now on, and so does its guests' work. */
  slowed(nowUs: number, instance: number): void {
    this.#nowUs = nowUs;
    this.#tellDebtors(instance);
  }

  /** Connections between such instances have ended: debtors that wait for partials or for copies hear so at once. */
  break(nowUs: number, isBroken: (a: number, b: number) => boolean): void {
    this.#nowUs = nowUs;
    const told = [...this.#copies.break(nowUs, isBroken)];
    for (const debtor of this.#host.instances.keys()) {
      for (const creditor of this.guests.creditorsOf(debtor)) {
        if (!isBroken(debtor, creditor)) continue;
        if (this.#host.executors[debtor].isRunning) this.#strandedUs[debtor] = nowUs;
        told.push([debtor, { kind: 'creditorCut', creditor }]);
      }
    }
    for (const [debtor, event] of told) this.#host.tell(nowUs, debtor, event);
  }

  #reaches(a: number, b: number): boolean {
    return this.#host.faults()?.reaches(a, b) ?? true;
  }

  #incarnationOf(instance: number): number {
    return this.#host.faults()?.incarnationOf(instance) ?? 0;
  }

  /** When the next of its own events is due. */
  get nextUs(): number {
    return this.#heap.nextUs;
  }

  /** When the next thing happens, with what else happens at `mainUs`: nothing but heartbeats once all is paid back. */
  nextBefore(mainUs: number, live: number): number {
    this.#over = mainUs === Number.POSITIVE_INFINITY && this.#progress.isOver(this.#nowUs, live, this.totals);
    return this.#over ? mainUs : Math.min(mainUs, this.nextUs);
  }

  /** Is it its turn, before what else happens at `mainUs`? At one time others go first. */
  comesFirst(mainUs: number): boolean {
    return !this.#over && this.nextUs < mainUs;
  }

  /** Carries out the next event: nothing else is due before. */
  advance(): void {
    // Later, when nothing was to happen for a while.
    this.#nowUs = Math.max(this.#nowUs, this.#heap.nextUs);
    this.#host.setNowUs(this.#nowUs);
    const key = this.#heap.nextKey;
    this.#heap.pop();
    const { instances } = this.#host;
    if (key > instances.length) this.#posts.do(key);
    else {
      this.#wakeUs[key] = Number.POSITIVE_INFINITY;
      if (key === instances.length) {
        if (this.#gmanager.nextUs <= this.#nowUs) this.#perform(this.#gmanager.step(this.#nowUs, { kind: 'tick' }));
        this.#schedule(key);
      } else if (nextUsOf(instances[key]) <= this.#nowUs) this.#host.tell(this.#nowUs, key, { kind: 'wake' });
      else this.#schedule(key);
    }
  }

  /** The instance has done a step of its machine, whose effects are carried out. */
  stepped(nowUs: number, instance: number): void {
    this.#nowUs = nowUs;
    this.#schedule(instance);
    if (this.#checking) checkLoans(nowUs, this.#parties);
    const busy = Number(this.#host.executors[instance].isRunning);
    if (busy === this.#busy[instance]) return;
    this.#busy[instance] = busy;
    this.#tellDebtors(instance);
    if (busy === 0) this.#tellNews(instance, []);
  }

  /** How its guests' work goes has changed. */
  #tellDebtors(instance: number): void {
    for (const debtor of this.guests.debtorsOf(instance))
      this.#post(instance, debtor, { kind: 'wake' }, () => this.guests.heard(debtor, instance));
  }

  /** Carries out what an instance's borrower wants. */
  perform(nowUs: number, instance: number, effect: BorrowerEffect): void {
    this.#nowUs = nowUs;
    if (effect.kind === 'lending') this.#send(effect.envelope);
    else if (effect.kind === 'moveBlocks') this.#copies.start(nowUs, instance, effect);
    else if (effect.kind === 'fillBlocks')
      this.#copies.fill(nowUs, instance, effect, this.#host.executors[instance].endsUs);
    else if (effect.kind === 'stopMove') this.#copies.stop(nowUs, instance, effect.move);
  }

  #send({ from, to, message, ...incarnations }: Envelope): void {
    if (message.kind === 'lend') this.counts.loans++;
    if (message.kind === 'refuse') this.counts.refusals++;
    if (message.kind === 'recall') this.counts.recalls++;
    if (message.kind === 'query') this.counts.queries++;
    const envelope = { from, to, message, ...incarnations };
    const { network } = this.#host;
    const faults = this.#host.faults();
    const [one, other] = [typeof from === 'number' ? from : to, typeof to === 'number' ? to : from] as [number, number];
    const latencyUs = network.latencyUs(one, other);
    const deliver = () => this.#deliver(envelope);
    if (faults === undefined) this.#posts.at(this.#nowUs + latencyUs, deliver);
    else faults.aboutMemory(from, to, latencyUs, deliver);
  }

  /** The last bytes of a copy have left. */
  departed(nowUs: number, departed: Departed): void {
    this.#nowUs = nowUs;
    this.#copies.departed(departed);
  }

  /** A step begins, of rows that may see keys at creditors: it waits for those, and their steps take longer. */
  run(nowUs: number, instance: number, effect: Parameters<SimulatedExecutor['run']>[1]): void {
    this.#nowUs = nowUs;
    const { remote } = effect;
    const executor = this.#host.executors[instance];
    executor.run(nowUs, effect, remote === undefined ? undefined : this.guests.part(instance, remote));
    this.#tellNews(instance, remote ?? [], executor.firstStepUs);
    this.#strandedUs[instance] = Number.POSITIVE_INFINITY;
    for (const { creditor } of remote ?? []) {
      if (this.#answers(instance, creditor)) continue;
      this.#strandedUs[instance] = nowUs;
      this.#put(0, instance, { kind: 'creditorCut', creditor });
    }
  }

  /** Is the creditor there, and the one that lent? */
  #answers(debtor: number, creditor: number): boolean {
    if (this.#host.faults() === undefined) return true;
    if (!this.#reaches(debtor, creditor)) return false;
    for (const debt of this.#host.instances[debtor].borrower?.rmanager.debts ?? [])
      if (
        debt.creditor === creditor &&
        debt.used.size > 0 &&
        debt.creditorIncarnation !== this.#incarnationOf(creditor) + 1
      )
        return false;
    return true;
  }

  /** So many equal steps have run. */
  ended(nowUs: number, instance: number, event: Event): void {
    this.#progress.stepEnded(nowUs);
    if (nowUs > this.#strandedUs[instance])
      throw new Error(`Lending broken: a step of instance ${instance} counts, though a creditor did not answer it`);
    const steps = event.kind === 'stepDone' ? (event.stepUs?.length ?? 1) : 0;
    this.guests.ended(instance, steps, this.#config.queryRowBytes);
  }

  #tellNews(debtor: number, remote: readonly RemoteWork[], stepUs = 1): void {
    for (const { creditor, exceedsPermille } of this.guests.began(debtor, remote, stepUs)) {
      this.#post(debtor, creditor, { kind: 'wake' }, () => {
        this.#host.executors[creditor].remoteAttentionPermille = this.guests.takenPermille(creditor);
      });
      if (exceedsPermille === undefined) continue;
      this.#post(creditor, debtor, { kind: 'remoteAttentionLoad', creditor, permille: exceedsPermille });
    }
  }

  /** @param before what is done when it arrives, before it is told */
  #post(from: number, to: number, event: Event, before: () => void = () => {}): void {
    this.#put(this.#host.network.latencyUs(from, to), to, event, before);
  }

  /** It is for the life that there is now. */
  #put(us: number, to: number, event: Event, before: () => void = () => {}): void {
    const incarnation = this.#incarnationOf(to);
    this.#posts.at(this.#nowUs + us, () => {
      if (this.#incarnationOf(to) !== incarnation) return;
      before();
      this.#host.tell(this.#nowUs, to, event);
    });
  }

  #deliver(envelope: Envelope): void {
    this.#nowUs = this.#host.nowUs();
    if (typeof envelope.to === 'number') {
      this.#host.tell(this.#nowUs, envelope.to, { kind: 'lending', envelope });
      return;
    }
    this.#perform(this.#gmanager.step(this.#nowUs, { kind: 'message', envelope }));
    this.#progress.lookAtTurn(this.#nowUs, this.#gmanager.reservations);
    this.#schedule(this.#host.instances.length);
  }

  /** Settlements whose commit has been said. */
  readonly #committed = new Set<string>();

  #perform(effects: readonly LendingEffect[]): void {
    for (const effect of effects) {
      if (effect.kind !== 'send') continue;
      const { message } = effect.envelope;
      if (message.kind === 'commit') this.#committed.add(`${this.#epoch} ${message.settlement.number}`);
      this.#send(effect.envelope);
    }
    this.counts.settlements = this.#committed.size;
  }

  #schedule(index: number): void {
    const { instances } = this.#host;
    const nextUs = Math.max(
      this.#nowUs,
      index === instances.length ? this.#gmanager.nextUs : nextUsOf(instances[index]),
    );
    if (nextUs >= this.#wakeUs[index] || nextUs >= Number.MAX_SAFE_INTEGER) return;
    this.#wakeUs[index] = nextUs;
    this.#heap.push(nextUs, index);
  }

  /** Who owes whom, as debtors have it. */
  get debts(): readonly Debt[] {
    return this.#host.instances.flatMap(({ borrower }, debtor) => {
      const owed = new Map<number, number>();
      for (const { creditor, blocks } of borrower?.rmanager.debtor.totals ?? [])
        if (blocks > 0) owed.set(creditor, (owed.get(creditor) ?? 0) + blocks);
      return [...owed].map(([creditor, blocks]) => ({ debtor, creditor, blocks }));
    });
  }

  get totals(): readonly BorrowingTotals[] {
    return this.#host.instances.flatMap(({ borrower }) => borrower?.totals ?? []);
  }

  get #parties(): readonly LendingParty[] {
    const { instances } = this.#host;
    const faults = this.#host.faults();
    return instances.map(({ borrower }, instance) => ({
      instance,
      skewUs: 0,
      incarnation:
        borrower === undefined || faults?.isUp(instance) === false
          ? undefined
          : { number: this.#incarnationOf(instance) + 1, rmanager: borrower.rmanager },
    }));
  }

  /** When a step ended last. */
  get aliveUs(): number {
    return this.#progress.aliveUs;
  }

  /** Nothing is lent. */
  get isPaidBack(): boolean {
    return this.totals.every(isPaidBack);
  }

  /** How long it takes until all is paid back once nothing goes wrong, and everybody knows. */
  get restUs(): number {
    const { leaseUs, remoteCacheUs: spreadUs } = this.#config.times;
    return restLeases * leaseUs + spreadUs;
  }

  /** Everything said has been heard. Throws unless the ledger equals the loans. */
  checkAtRest(): void {
    checkAtRest(this.#parties, this.#gmanager);
  }
}

function nextUsOf({ borrower }: LengthInstance): number {
  return borrower?.nextUs ?? Number.POSITIVE_INFINITY;
}
