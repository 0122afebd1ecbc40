// Lending between the instances of a simulated cluster: delivers messages and blocks, wakes machines, and slows creditors
// down by remote attention.

import type { QueryLink } from '../../../core/cost/dist-attention.ts';
import type { LengthEvent, LengthInstance } from '../../../core/instance/length-instance.ts';
import type { BorrowingTotals } from '../../../core/lending/debtor/borrower-config.ts';
import { GManager } from '../../../core/lending/manager/gmanager.ts';
import type { BorrowerEffect, RemoteWork } from '../../../core/protocol/lending-effects.ts';
import type { Envelope, LendingEffect } from '../../../core/protocol/lending-messages.ts';
import type { LinkReport } from '../../../core/protocol/lending-report.ts';
import { assertNever } from '../../../util/assert-never.ts';
import { counterUniform } from '../../../util/counter-random.ts';
import { checkAtRest, checkLoans, type LendingInstance } from '../../checks/lending-checks.ts';
import type { FaultLayer } from '../../faults/fault-layer.ts';
import type { Departed, Network } from '../../network/network.ts';
import type { EventQueue, Timer } from '../event-queue.ts';
import type { SimulatedExecutor } from '../executor.ts';
import type { ClusterHost, ClusterLendingConfig } from '../simulation-config.ts';
import { BlockCopies } from './block-copies.ts';
import { hasNoLoans, LendingProgress } from './progress.ts';
import { RemoteAttention } from './remote-attention.ts';

export interface Debt {
  readonly debtor: number;
  readonly creditor: number;
  readonly blocks: number;
}

interface LendingCounts {
  loans: number;
  recalls: number;
  refusals: number;
  settlements: number;
  /** Queries to the gManager. */
  queries: number;
}

interface LendingHost extends ClusterHost {
  readonly executors: readonly SimulatedExecutor[];
  readonly network: Network;
  readonly streams: { reads(instance: number, rows: readonly number[]): boolean };
  readonly faults: FaultLayer | undefined;
  incarnationOf(instance: number): number;
}

/** Number of lease times in which, after the last fault, all requests are released and all loans end. */
const restLeases = 15;

/** Its timers and, without faults, its messages run in the background: heartbeats do not keep a simulation alive. */
export class ClusterLending {
  readonly counts: LendingCounts = { loans: 0, recalls: 0, refusals: 0, settlements: 0, queries: 0 };
  readonly attention: RemoteAttention;
  readonly queue: EventQueue;
  readonly network: Network;
  readonly executors: readonly SimulatedExecutor[];
  readonly streams: LendingHost['streams'];
  readonly #config: ClusterLendingConfig;
  readonly #host: LendingHost;
  #gmanager: GManager;
  #epoch = 0;
  readonly #gmanagerTimer: WakeTimer;
  /** (instances) */
  readonly #timers: readonly WakeTimer[];
  readonly #copies: BlockCopies;
  /** (instances): 1 while the instance computes. */
  readonly #busy: Uint8Array;
  /** (instances): since when the running step waits for a creditor that is lost. */
  readonly #creditorLostUs: Float64Array;
  readonly #progress: LendingProgress;
  /** Settlements for which a commit was sent. */
  readonly #committed = new Set<string>();

  constructor(config: ClusterLendingConfig, host: LendingHost) {
    const { instances, blockTokens } = host.config;
    this.#config = config;
    this.#host = host;
    this.queue = host.queue;
    this.network = host.network;
    this.executors = host.executors;
    this.streams = host.streams;
    const costs = instances.map(({ machine }) => machine.cost);
    const { hostTokenUs = costs.map(() => 0) } = config;
    this.#copies = new BlockCopies(
      this,
      costs.map(({ kvBytesPerToken }) => kvBytesPerToken * blockTokens),
      hostTokenUs.map((us) => us * blockTokens),
    );
    this.#busy = new Uint8Array(instances.length);
    this.#creditorLostUs = new Float64Array(instances.length).fill(Number.POSITIVE_INFINITY);
    this.attention = new RemoteAttention(
      {
        costs,
        hostTokenUs,
        remoteAttentionPermilleMax: config.remoteAttentionPermilleMax,
        ...{ kind: config.remoteAttention ?? 'dist', rowBytes: config.queryRowBytes },
      },
      this,
    );
    this.#progress = new LendingProgress(config.times);
    this.#gmanager = this.#createGManager();
    this.#timers = instances.map((_, index) => new WakeTimer(host.queue, () => this.#wakeInstance(index)));
    this.#gmanagerTimer = new WakeTimer(host.queue, () => this.#wakeGManager());
    for (const index of this.#timers.keys()) this.instanceStarted(index);
    this.#gmanagerTimer.schedule(this.#gmanager.nextUs);
  }

  /** A gManager of a new epoch starts without a ledger. */
  #createGManager(): GManager {
    const { settles, times, settleBlocksMin, rangeBlocks, seed } = this.#config;
    const epoch = ++this.#epoch;
    return new GManager({
      epoch,
      times: settles ? times : { ...times, settleUs: Number.MAX_SAFE_INTEGER },
      blocksMin: settleBlocksMin,
      rangeBlocks,
      uniform: (counter) => counterUniform(seed, 6 + epoch, counter),
    });
  }

  restartGManager(): void {
    this.#gmanager = this.#createGManager();
    this.#gmanagerTimer.schedule(this.#gmanager.nextUs);
  }

  #wakeGManager(): void {
    const { nowUs } = this.queue;
    if (this.#gmanager.nextUs <= nowUs) this.#perform(this.#gmanager.step(nowUs, { kind: 'tick' }));
    this.#gmanagerTimer.schedule(this.#gmanager.nextUs);
  }

  #wakeInstance(index: number): void {
    const nextUs = nextUsOf(this.#host.instances[index]);
    if (nextUs <= this.queue.nowUs) this.#host.deliverToInstance(index, { kind: 'wake' });
    else this.#timers[index].schedule(nextUs);
  }

  /** The instance loses all that it had borrowed and lent. `break` ends its connections. */
  instanceFailed(instance: number): void {
    this.#copies.debtorFailed(instance);
    this.#updateAttention(instance, []);
    this.executors[instance].servedAttentionPermille = 0;
    this.#busy[instance] = 0;
    this.#timers[instance].cancel();
  }

  instanceStarted(instance: number): void {
    this.#timers[instance].schedule(nextUsOf(this.#host.instances[instance]));
    this.sendToDebtor(0, instance, { kind: 'links', links: this.#linksOf(instance) });
  }

  /** What a live instance measures of its links, from the network without other traffic. */
  #linksOf(instance: number): readonly LinkReport[] {
    return this.#host.instances.flatMap((_, peer) => {
      if (peer === instance) return [];
      const roundTripUs = 2 * this.network.latencyUs(instance, peer);
      return [{ peer, roundTripUs, bytesPerSecond: this.network.bytesPerUs(instance, peer) * 1e6 }];
    });
  }

  slownessChanged(instance: number): void {
    this.#notifyDebtors(instance);
  }

  /** Notifies debtors that wait for partials or copies over broken connections. */
  break(isBroken: (a: number, b: number) => boolean): void {
    const events = [...this.#copies.break(isBroken)];
    for (const debtor of this.#host.instances.keys()) {
      for (const creditor of this.attention.creditorsOf(debtor)) {
        if (!isBroken(debtor, creditor)) continue;
        if (this.executors[debtor].isRunning) this.#creditorLostUs[debtor] = this.queue.nowUs;
        events.push([debtor, { kind: 'creditorCut', creditor }]);
      }
    }
    for (const [debtor, event] of events) this.#host.deliverToInstance(debtor, event);
  }

  isConnected(a: number, b: number): boolean {
    return this.#host.faults?.isConnected(a, b) ?? true;
  }

  incarnationOf(instance: number): number {
    return this.#host.incarnationOf(instance);
  }

  /** True while lending has work other than heartbeats. @param live requests that have not ended */
  isActive(live: number): boolean {
    return !this.#progress.isOver(this.queue.nowUs, live, this.totals);
  }

  /** The instance has handled an event, and its effects have been carried out. */
  stepped(instance: number): void {
    this.#timers[instance].schedule(nextUsOf(this.#host.instances[instance]));
    if (this.#host.config.checking) checkLoans(this.queue.nowUs, this.#lenders);
    const busy = Number(this.executors[instance].isRunning);
    if (busy === this.#busy[instance]) return;
    this.#busy[instance] = busy;
    this.#notifyDebtors(instance);
    if (busy === 0) this.#updateAttention(instance, []);
  }

  /** The speed of the creditor's work for its debtors has changed. */
  #notifyDebtors(creditor: number): void {
    for (const debtor of this.attention.debtorsOf(creditor))
      this.#send(creditor, debtor, { kind: 'wake' }, () => this.attention.creditorChanged(debtor, creditor));
  }

  perform(instance: number, effect: BorrowerEffect): void {
    switch (effect.kind) {
      case 'lending':
        this.#sendEnvelope(effect.envelope);
        break;
      case 'moveBlocks':
        this.#copies.start(instance, effect);
        break;
      case 'fillBlocks':
        this.#copies.fill(instance, effect);
        break;
      case 'stopMove':
        this.#copies.stop(instance, effect.move);
        break;
      // Simulated blocks have no contents.
      case 'copyHome':
      case 'lendBlocks':
      case 'takeBackBlocks':
        break;
      default:
        assertNever(effect);
    }
  }

  #sendEnvelope(envelope: Envelope): void {
    const { from, to, message } = envelope;
    if (message.kind === 'lend') this.counts.loans++;
    if (message.kind === 'refuse') this.counts.refusals++;
    if (message.kind === 'recall') this.counts.recalls++;
    if (message.kind === 'query') this.counts.queries++;
    const { faults } = this.#host;
    // Messages of the gManager have the latency of an instance to itself.
    const sender = typeof from === 'number' ? from : to;
    const receiver = typeof to === 'number' ? to : from;
    const latencyUs = this.network.latencyUs(Number(sender), Number(receiver));
    const deliver = () => this.#deliver(envelope);
    if (faults === undefined) this.queue.afterInBackground(latencyUs, deliver);
    else faults.sendLending(from, to, latencyUs, deliver);
  }

  /** The last bytes of a copy have left. */
  departed(departed: Departed): void {
    this.#copies.departed(departed);
  }

  /** A step begins. It waits for the keys at creditors that its rows attend to, and the creditors' steps take longer. */
  run(instance: number, effect: Parameters<SimulatedExecutor['run']>[0]): void {
    const remote = effect.remote ?? [];
    const executor = this.executors[instance];
    executor.run(effect, effect.remote && this.attention.waitOf(instance, effect.shape, remote));
    this.#updateAttention(instance, remote, executor.firstStepUs);
    this.#creditorLostUs[instance] = Number.POSITIVE_INFINITY;
    for (const { creditor } of remote) {
      if (this.answers(instance, creditor)) continue;
      this.#creditorLostUs[instance] = this.queue.nowUs;
      this.sendToDebtor(0, instance, { kind: 'creditorCut', creditor });
    }
  }

  /** True if the creditor is reachable, and in the incarnation that lent. */
  answers(debtor: number, creditor: number): boolean {
    if (this.#host.faults === undefined) return true;
    if (!this.isConnected(debtor, creditor)) return false;
    const incarnation = this.incarnationOf(creditor) + 1;
    for (const debt of this.#host.instances[debtor].components.borrower?.rmanager.debts ?? [])
      if (debt.creditor === creditor && debt.used.size > 0 && debt.creditorIncarnation !== incarnation) return false;
    return true;
  }

  /** A run of the instance has ended. */
  stepEnded(instance: number, event: LengthEvent): void {
    const { nowUs } = this.queue;
    this.#progress.stepEnded(nowUs);
    if (nowUs > this.#creditorLostUs[instance])
      throw new Error(`Lending broken: a step of instance ${instance} counts, though a creditor did not answer it`);
    const steps = event.kind === 'stepDone' ? (event.stepUs?.length ?? 1) : 0;
    this.attention.stepsEnded(instance, steps);
  }

  #updateAttention(debtor: number, remote: readonly RemoteWork[], stepUs = 1): void {
    for (const { creditor, exceedsPermille } of this.attention.update(debtor, remote, stepUs)) {
      this.#sendServedAttention(debtor, creditor);
      if (exceedsPermille !== undefined)
        this.#send(creditor, debtor, { kind: 'remoteAttentionLoad', creditor, permille: exceedsPermille });
    }
  }

  /** The creditor's steps change, its machine has their share for debtors at once, and gateways after a message. */
  #sendServedAttention(debtor: number, creditor: number): void {
    const incarnation = this.incarnationOf(creditor);
    this.queue.afterInBackground(this.network.latencyUs(debtor, creditor), () => {
      if (this.incarnationOf(creditor) !== incarnation) return;
      const permille = this.attention.takenPermille(creditor);
      this.executors[creditor].servedAttentionPermille = permille;
      this.#host.deliverToInstance(creditor, { kind: 'servedAttention', permille });
      this.queue.afterInBackground(this.#host.config.instances[creditor].nic.us, () => {
        if (this.incarnationOf(creditor) === incarnation)
          this.#host.deliverToConductor({ kind: 'servedAttention', instance: creditor, permille });
      });
    });
  }

  #send(from: number, to: number, event: LengthEvent, before: () => void = () => {}): void {
    this.sendToDebtor(this.network.latencyUs(from, to), to, event, before);
  }

  /** Delivers after `us`, unless the instance restarts before. @param before runs before the delivery */
  sendToDebtor(us: number, to: number, event: LengthEvent, before: () => void = () => {}): void {
    const incarnation = this.incarnationOf(to);
    this.queue.afterInBackground(us, () => {
      if (this.incarnationOf(to) !== incarnation) return;
      before();
      this.#host.deliverToInstance(to, event);
    });
  }

  #deliver(envelope: Envelope): void {
    if (typeof envelope.to === 'number') {
      this.#host.deliverToInstance(envelope.to, { kind: 'lending', envelope });
      return;
    }
    const { nowUs } = this.queue;
    this.#perform(this.#gmanager.step(nowUs, { kind: 'message', envelope }));
    this.#progress.checkReservation(nowUs, this.#gmanager.borrowQueue);
    this.#gmanagerTimer.schedule(this.#gmanager.nextUs);
  }

  /** Effects of the gManager. */
  #perform(effects: readonly LendingEffect[]): void {
    for (const effect of effects) {
      if (effect.kind !== 'send') continue;
      const { message } = effect.envelope;
      if (message.kind === 'commit') this.#committed.add(`${this.#epoch} ${message.settlement.number}`);
      this.#sendEnvelope(effect.envelope);
    }
    this.counts.settlements = this.#committed.size;
  }

  /** The connection of a debtor to a creditor, for queries and partials. */
  linkOf(from: number, to: number): QueryLink {
    const { layers, queryRowBytes: rowBytes } = this.#config;
    const oneWayUs = this.network.latencyUs(from, to);
    return { layers, rowBytes, oneWayUs, bytesPerUs: this.network.bytesPerUs(from, to) };
  }

  /** The debts by the accounts of the debtors. */
  get debts(): readonly Debt[] {
    return this.#host.instances.flatMap(({ components: { borrower } }, debtor) => {
      const owed = new Map<number, number>();
      for (const { creditor, blocks } of borrower?.rmanager.debtor.totals ?? [])
        if (blocks > 0) owed.set(creditor, (owed.get(creditor) ?? 0) + blocks);
      return [...owed].map(([creditor, blocks]) => ({ debtor, creditor, blocks }));
    });
  }

  get totals(): readonly BorrowingTotals[] {
    return this.#host.instances.flatMap(({ components: { borrower } }) => borrower?.totals ?? []);
  }

  get #lenders(): readonly LendingInstance[] {
    const { instances, faults } = this.#host;
    return instances.map(({ components: { borrower } }, instance) => ({
      instance,
      skewUs: 0,
      incarnation:
        borrower === undefined || faults?.isUp(instance) === false
          ? undefined
          : { number: this.incarnationOf(instance) + 1, rmanager: borrower.rmanager },
    }));
  }

  /** End of the last step. */
  get lastStepUs(): number {
    return this.#progress.lastStepUs;
  }

  /** No block is lent. */
  get hasNoLoans(): boolean {
    return this.totals.every(hasNoLoans);
  }

  /** Time until all loans are returned and accounted for, once no more faults occur. */
  get restUs(): number {
    const { leaseUs, remoteCacheUs } = this.#config.times;
    return restLeases * leaseUs + remoteCacheUs;
  }

  /** All messages have been received. Throws unless the ledger equals the loans. */
  checkAtRest(): void {
    checkAtRest(this.#lenders, this.#gmanager);
  }
}

/** Wakes one machine at the earliest scheduled time. */
class WakeTimer {
  readonly #queue: EventQueue;
  readonly #timer: Timer;
  #wakeUs = Number.POSITIVE_INFINITY;

  constructor(queue: EventQueue, wake: () => void) {
    this.#queue = queue;
    this.#timer = queue.backgroundTimer(() => {
      this.#wakeUs = Number.POSITIVE_INFINITY;
      wake();
    });
  }

  schedule(timeUs: number): void {
    const nextUs = Math.max(this.#queue.nowUs, timeUs);
    if (nextUs >= this.#wakeUs || nextUs >= Number.MAX_SAFE_INTEGER) return;
    this.#wakeUs = nextUs;
    this.#timer.schedule(nextUs);
  }

  /** A scheduled wake may still fire. */
  cancel(): void {
    this.#wakeUs = Number.POSITIVE_INFINITY;
  }
}

function nextUsOf({ components: { borrower } }: LengthInstance): number {
  return borrower?.tickUs ?? Number.POSITIVE_INFINITY;
}
