// A chaos world of rManagers without engines: carries out their effects, injects faults, and checks the invariants of
// lending after every event.
import { GManager } from '../../../core/lending/manager/gmanager.ts';
import { noDemand } from '../../../core/lending/rmanager.ts';
import type { Envelope, LendingEffect } from '../../../core/protocol/lending-messages.ts';
import type { LinkReport } from '../../../core/protocol/lending-report.ts';
import { assertNever } from '../../../util/assert-never.ts';
import { counterUniform } from '../../../util/counter-random.ts';
import { Prng } from '../../../util/prng.ts';
import {
  BorrowWaits,
  checkAtRest,
  checkEmpty,
  checkLoans,
  checkRecall,
  checkSettlementCommit,
  checkVacatedBlocks,
  guaranteedLoans,
  unfrozen,
} from '../../checks/lending-checks.ts';
import { countFault, type Fault, type FaultCounts } from '../../faults/fault-plan.ts';
import { type Endpoint, FaultyNetwork } from '../../faults/faulty-network.ts';
import { type FaultTarget, Injector } from '../../faults/injector.ts';
import { EventQueue } from '../event-queue.ts';
import { LendingNode, type NodeConfig, type NodeIncarnation } from './lending-node.ts';

export interface LendingWorldConfig extends NodeConfig {
  readonly seed: number;
  readonly instances: number;
  /** Empty: no faults. */
  readonly faults: readonly Fault[];
  /** Mean time for which the old gManager may continue after a restart. */
  readonly gmanagerOverlapUs: number;
  /** Between two blocks of a sequence. */
  readonly growUs: number;
  /** Period of the load, with a phase for each instance. */
  readonly loadPeriodUs: number;
  readonly settleBlocksMin: number;
}

export type LendingTotal =
  /** Blocks placed at home by settlements, lost with their loans, and vacated after recalls; loans made. */
  | ('placedBlocks' | 'lostBlocks' | 'vacatedBlocks' | 'loans')
  /** Admitted sequences that exceed every instance, admission holds for them, and renewals of loans guaranteed to them. */
  | ('reservations' | 'holds' | 'committedLoans')
  | 'events';

const noneGuaranteed: ReadonlyMap<number, number> = new Map();
const stagingUs = 20_000;
const vacateUs = 50_000;

/** Streams of the seed. Node i draws from stream `nodes + i`. */
const streams = { world: 1, network: 2, gmanagers: 1_000, nodes: 100 };

export class LendingWorld implements FaultTarget {
  readonly queue = new EventQueue();
  readonly nodes: readonly LendingNode[];
  readonly injected: FaultCounts = new Map();
  /** By `anomaly message`. */
  readonly anomalies = new Map<string, number>();
  readonly totals: Record<LendingTotal, number> = {
    ...{ placedBlocks: 0, lostBlocks: 0, vacatedBlocks: 0, loans: 0 },
    ...{ reservations: 0, holds: 0, committedLoans: 0, events: 0 },
  };
  readonly #config: LendingWorldConfig;
  readonly #network: FaultyNetwork;
  readonly #injector: Injector;
  readonly #waits = new BorrowWaits();
  readonly #prng: Prng;
  /** Messages go to the last one; earlier ones may still send. */
  #gmanagers: GManager[] = [];
  #epoch = 0;
  /** Instances that the current event has changed. */
  readonly #touched = new Set<LendingNode>();
  #isLoaded = true;
  /** Long sequences are not cancelled while they wait. */
  keepsLongSequences = false;

  constructor(config: LendingWorldConfig) {
    const { seed, instances, faults } = config;
    this.#config = config;
    this.#prng = new Prng(seed, streams.world);
    this.#network = new FaultyNetwork(new Prng(seed, streams.network), faults, this.queue, this.injected);
    this.nodes = Array.from(
      { length: instances },
      (_, i) => new LendingNode(i, config, new Prng(seed, streams.nodes + i)),
    );
    this.#startGManager(0);
    for (const node of this.nodes) this.start(node.instance);
    this.#injector = new Injector(config, this);
  }

  get size(): number {
    return this.nodes.length;
  }

  get endpoints(): readonly Endpoint[] {
    return ['gmanager', ...this.nodes.keys()];
  }

  get gmanager(): GManager {
    return this.#gmanagers[this.#gmanagers.length - 1];
  }

  /** Runs for so long, with checks after every event. */
  run(forUs: number): void {
    this.queue.runUntil(this.queue.nowUs + forUs, () => {
      this.totals.events++;
      for (const node of this.#touched) node.check();
      if (this.#touched.size > 0) checkLoans(this.queue.nowUs, this.nodes);
      this.#touched.clear();
      this.#waits.check(this.nodes);
    });
  }

  /** Ends all faults, those of messages too. */
  heal(): void {
    this.#injector.stop();
    this.#network.heal();
  }

  /** Messages are lost, duplicated and delayed again. */
  restartMessageFaults(): void {
    this.#network.setMessageFaults(this.#config.faults);
  }

  /** Sequences neither arrive nor grow from now on. */
  stopLoad(): void {
    this.#isLoaded = false;
    for (const node of this.nodes) {
      const { incarnation } = node;
      this.#whenAwake(node, incarnation, () => {
        incarnation?.sequences.cancelPending();
        const { reservedSequences = 0, reservationsAdmitted = 0 } = incarnation?.sequences.demand ?? {};
        this.#carryOut(node, node.step(this.queue.nowUs, { ...noDemand, reservedSequences, reservationsAdmitted }));
      });
    }
  }

  /** True if sequences arrive that exceed every instance. */
  get hasLongSequences(): boolean {
    return this.#config.longChance > 0;
  }

  /** Incarnations with a sequence that waits for a reservation, with the number of the reservation. */
  get waiting(): ReadonlyMap<NodeIncarnation, number> {
    const waiting = new Map<NodeIncarnation, number>();
    for (const { incarnation } of this.nodes) {
      const pending = incarnation?.sequences.pending;
      if (incarnation !== undefined && pending !== undefined) waiting.set(incarnation, pending.number);
    }
    return waiting;
  }

  checkAtRest(): void {
    checkAtRest(this.nodes, this.gmanager);
  }

  endAll(): void {
    for (const node of this.nodes) {
      node.incarnation?.sequences.endAll();
      this.#wake(node);
    }
  }

  checkEmpty(): void {
    checkEmpty(this.nodes);
  }

  /** No instance has attention workers. */
  loseAttentionWorker(): boolean {
    return false;
  }

  restartGManager(): void {
    const overlaps = this.#prng.chance(0.5);
    if (overlaps) countFault(this.injected, 'two gManagers at once');
    this.#startGManager(overlaps ? this.#prng.exponentialUs(this.#config.gmanagerOverlapUs) + 1 : 0);
  }

  /** A gManager of a new epoch starts without a ledger. The earlier ones continue for `overlapUs`. */
  #startGManager(overlapUs: number): void {
    const { seed, settleBlocksMin, times } = this.#config;
    const epoch = ++this.#epoch;
    const next = new GManager({
      epoch,
      times,
      blocksMin: settleBlocksMin,
      rangeBlocks: 1,
      uniform: (counter) => counterUniform(seed, streams.gmanagers + epoch, counter),
    });
    const earlier = this.#gmanagers;
    this.#gmanagers = [...earlier, next];
    const end = () => {
      this.#gmanagers = this.#gmanagers.filter((gmanager) => !earlier.includes(gmanager));
    };
    if (overlapUs > 0) this.queue.after(overlapUs, end);
    else end();
    this.#wakeGManager(next);
  }

  start(instance: number): boolean {
    const node = this.nodes[instance];
    if (node.incarnation !== undefined) return false;
    const incarnation = node.start();
    this.#carryOut(node, node.step(this.queue.nowUs, { kind: 'links', links: this.#ringOf(instance) }));
    this.#wake(node);
    this.#grow(node, incarnation);
    return true;
  }

  /** The instances form a ring: a round trip takes twice as long with each hop. */
  #ringOf(instance: number): readonly LinkReport[] {
    const { instances } = this.#config;
    return Array.from({ length: instances - 1 }, (_, i) => {
      const hops = Math.min(i + 1, instances - 1 - i);
      return { peer: (instance + i + 1) % instances, roundTripUs: 1_000 * 2 ** hops };
    });
  }

  crash(instance: number): boolean {
    const node = this.nodes[instance];
    if (node.incarnation === undefined) return false;
    node.incarnation = undefined;
    return true;
  }

  /** A slow instance is paused until the fault ends. Then it runs all delayed actions at once. */
  setSlowness(instance: number, factor: number): void {
    const node = this.nodes[instance];
    if (factor > 1) node.paused ??= [];
    else {
      const actions = node.paused ?? [];
      node.paused = undefined;
      for (const action of actions) action();
    }
  }

  partition(endpoints: readonly Endpoint[]): void {
    this.#network.partition(endpoints);
  }

  reconnect(endpoints: readonly Endpoint[]): void {
    this.#network.reconnect(endpoints);
  }

  restartConductor(): void {
    throw new Error('Cannot restart the conductor: a lending world has none');
  }

  send(envelope: Envelope): void {
    const { from, to, message } = envelope;
    if (message.kind === 'lend') this.totals.loans++;
    if (message.kind === 'renew') this.totals.committedLoans += message.committed.length;
    this.#network.send(from, to, this.#prng.integer(100, 2_000), () => this.#deliver(envelope));
  }

  #deliver(envelope: Envelope): void {
    if (envelope.to === 'gmanager') {
      const { gmanager } = this;
      this.#carryOutCommon(gmanager.step(this.queue.nowUs, { kind: 'message', envelope }));
      this.#wakeGManager(gmanager);
      return;
    }
    const node = this.nodes[envelope.to];
    this.#whenAwake(node, node.incarnation, () => {
      const staying = envelope.message.kind === 'commit' ? unfrozen(node) : [];
      const kept = envelope.message.kind === 'recall' ? guaranteedLoans(node) : noneGuaranteed;
      const effects = node.step(this.queue.nowUs, { kind: 'message', envelope });
      checkSettlementCommit(node, staying);
      checkRecall(node, kept);
      this.#waits.stepped(envelope, effects);
      this.#carryOut(node, effects);
    });
  }

  /** Runs the action now, or when the instance's pause ends; not at all after that incarnation. */
  #whenAwake(node: LendingNode, incarnation: NodeIncarnation | undefined, action: () => void): void {
    if (incarnation === undefined || node.incarnation !== incarnation) return;
    if (node.paused === undefined) {
      this.#touched.add(node);
      action();
    } else node.paused.push(() => this.#whenAwake(node, incarnation, action));
  }

  #wakeGManager(gmanager: GManager): void {
    this.queue.at(gmanager.nextUs, () => {
      if (!this.#gmanagers.includes(gmanager) || gmanager.nextUs > this.queue.nowUs) return;
      this.#carryOutCommon(gmanager.step(this.queue.nowUs, { kind: 'tick' }));
      this.#wakeGManager(gmanager);
    });
  }

  #wake(node: LendingNode): void {
    const { incarnation } = node;
    if (incarnation === undefined) return;
    this.queue.at(node.nextUs, () => {
      if (node.nextUs > this.queue.nowUs) return;
      this.#whenAwake(node, incarnation, () => this.#carryOut(node, node.step(this.queue.nowUs, { kind: 'tick' })));
    });
  }

  /** Effects of an instance. */
  #carryOut(node: LendingNode, effects: readonly LendingEffect[]): void {
    const { incarnation } = node;
    if (incarnation === undefined) return;
    for (const effect of effects) {
      if (effect.kind === 'rblocksLost') {
        this.totals.lostBlocks += effect.rblocks.length;
        incarnation.sequences.contentsLost(effect.rblocks);
      } else if (effect.kind === 'vacate') this.#vacate(node, incarnation, effect.rblocks);
      else if (effect.kind === 'stage') this.#stage(node, incarnation, effect);
    }
    this.#carryOutCommon(effects);
    this.#wake(node);
  }

  #vacate(node: LendingNode, incarnation: NodeIncarnation, rblocks: readonly number[]): void {
    checkVacatedBlocks(node, rblocks);
    this.totals.vacatedBlocks += rblocks.length;
    this.queue.after(vacateUs, () =>
      this.#whenAwake(node, incarnation, () => {
        incarnation.sequences.vacate(rblocks);
        this.#wake(node);
      }),
    );
  }

  #stage(
    node: LendingNode,
    incarnation: NodeIncarnation,
    { settlement, rblocks }: Extract<LendingEffect, { kind: 'stage' }>,
  ): void {
    for (const rblock of rblocks) incarnation.staged.delete(rblock);
    this.queue.after(stagingUs, () =>
      this.#whenAwake(node, incarnation, () => {
        for (const rblock of rblocks) incarnation.staged.add(rblock);
        this.#carryOut(node, node.step(this.queue.nowUs, { kind: 'staged', settlement }));
      }),
    );
  }

  /** Effects that an instance and a gManager have in common. */
  #carryOutCommon(effects: readonly LendingEffect[]): void {
    for (const effect of effects) {
      switch (effect.kind) {
        case 'send':
          this.send(effect.envelope);
          break;
        case 'anomaly': {
          const key = `${effect.anomaly} ${effect.message}`;
          this.anomalies.set(key, (this.anomalies.get(key) ?? 0) + 1);
          break;
        }
        case 'placed':
          this.totals.placedBlocks++;
          break;
        // Contents are not simulated.
        case 'rblocksLost':
        case 'vacate':
        case 'stage':
        case 'cancelStaging':
        case 'granted':
        case 'reclaimed':
          break;
        default:
          assertNever(effect);
      }
    }
  }

  #grow(node: LendingNode, incarnation: NodeIncarnation): void {
    const { growUs, loadPeriodUs, instances } = this.#config;
    this.queue.after(growUs, () => {
      if (node.incarnation !== incarnation || !this.#isLoaded) return;
      this.#grow(node, incarnation);
      this.#whenAwake(node, incarnation, () => {
        if (!this.#isLoaded) return;
        const { sequences } = incarnation;
        const phase = this.queue.nowUs / loadPeriodUs + node.instance / instances;
        const { reservations, holds } = sequences;
        const blocks = sequences.grow(phase % 1 < 0.35 ? 0.5 : 0.03);
        this.totals.reservations += sequences.reservations - reservations;
        this.totals.holds += sequences.holds - holds;
        if (this.#prng.chance(0.02)) this.#cancelOne(incarnation);
        const blocksPerSecond = Math.round((blocks * 1e6) / growUs);
        const demand = { kind: 'demand', blocksPerSecond, ...sequences.demand } as const;
        this.#carryOut(node, node.step(this.queue.nowUs, demand));
        this.#reportAttentionLoad(node);
      });
    });
  }

  #cancelOne({ sequences }: NodeIncarnation): void {
    if (!this.keepsLongSequences && sequences.pending !== undefined) sequences.cancelPending();
    else sequences.cancelOne();
  }

  /** At random, a creditor reports too much remote attention to a debtor that has memory at home for its blocks there. */
  #reportAttentionLoad(node: LendingNode): void {
    const debts = [...(node.incarnation?.rmanager.debts ?? [])];
    const [debt] = debts;
    const there = debts.filter(({ creditor }) => creditor === debt?.creditor);
    const held = there.reduce((sum, each) => sum + each.held, 0);
    const available = node.incarnation?.memory.lending.device.totals.available ?? 0;
    if (
      debt === undefined ||
      held > available ||
      there.some(({ guaranteed }) => guaranteed) ||
      !this.#prng.chance(0.03)
    )
      return;
    const load = {
      kind: 'remoteAttentionLoad',
      creditor: debt.creditor,
      permille: this.#prng.integer(50, 400),
    } as const;
    this.#carryOut(node, node.step(this.queue.nowUs, load));
  }
}
