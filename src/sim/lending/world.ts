// A world of instances that lend memory to one another: carries out what their machines decide, with faults, and checks after every event.
import { GManager } from '../../core/lending/manager/gmanager.ts';
import { noDemand } from '../../core/lending/rmanager.ts';
import type {
  Envelope,
  LendingEffect,
  LendingMessageKind,
  MessageFate,
  Party,
} from '../../core/protocol/lending-messages.ts';
import { counterUniform } from '../../util/counter-random.ts';
import { Prng } from '../../util/prng.ts';
import { Agenda } from './agenda.ts';
import {
  checkAtRest,
  checkCommit,
  checkEmpty,
  checkLoans,
  checkPromises,
  checkRecall,
  promised,
  unfrozen,
  Waits,
} from './checks.ts';
import type { FaultName, LendingFaults } from './faults.ts';
import { LendingNetwork } from './network.ts';
import { type Incarnation, LendingNode, type NodeConfig } from './node.ts';

export interface LendingWorldConfig extends NodeConfig {
  readonly seed: number;
  readonly instances: number;
  readonly faults: LendingFaults | undefined;
  /** Between two blocks of a sequence. */
  readonly growUs: number;
  /** Loads rise and fall with this period, each instance at a time of its own. */
  readonly loadPeriodUs: number;
  readonly settleBlocksMin: number;
}

export interface LendingCounts {
  readonly faults: Map<FaultName, number>;
  /** By `fate message`. */
  readonly met: Map<string, number>;
  /** Blocks whose contents came home by settlements, blocks lost, recalls heeded, loans made. */
  placedBlocks: number;
  lostBlocks: number;
  vacatedBlocks: number;
  loans: number;
  /** Sequences let in that no instance could hold alone, and holds of creditors for such. */
  gatherings: number;
  holds: number;
  /** Loans that such were promised, as debtors say with their renewals. */
  firmLoans: number;
  events: number;
}

const nothingPromised: ReadonlyMap<number, number> = new Map();
const fetchUs = 20_000;
const vacateUs = 50_000;

export class LendingWorld {
  readonly counts: LendingCounts = {
    faults: new Map(),
    met: new Map(),
    placedBlocks: 0,
    lostBlocks: 0,
    vacatedBlocks: 0,
    loans: 0,
    gatherings: 0,
    holds: 0,
    firmLoans: 0,
    events: 0,
  };
  readonly agenda = new Agenda();
  readonly network: LendingNetwork;
  readonly nodes: readonly LendingNode[];
  readonly #config: LendingWorldConfig;
  readonly #waits = new Waits();
  readonly #prng: Prng;
  /** The last is the one that is addressed; others may still speak. */
  #gmanagers: GManager[] = [];
  #epoch = 0;
  /** Instances that the current action changed. */
  readonly #touched = new Set<LendingNode>();
  #loading = true;
  /** Whoever waits goes on waiting. */
  patient = false;

  constructor(config: LendingWorldConfig) {
    this.#config = config;
    this.#prng = new Prng(config.seed, 1);
    const count = (fault: FaultName) => this.count(fault);
    const prng = new Prng(config.seed, 2);
    this.network = new LendingNetwork(this.agenda, prng, config.faults, (envelope) => this.#deliver(envelope), count);
    this.nodes = Array.from(
      { length: config.instances },
      (_, i) => new LendingNode(i, config, new Prng(config.seed, 100 + i)),
    );
    this.startGManager();
    for (const node of this.nodes) this.start(node);
  }

  get gmanager(): GManager {
    return this.#gmanagers[this.#gmanagers.length - 1];
  }

  count(fault: FaultName): void {
    this.counts.faults.set(fault, (this.counts.faults.get(fault) ?? 0) + 1);
  }

  /** Runs for so long, with checks after every event. */
  run(forUs: number): void {
    this.agenda.runTo(this.agenda.nowUs + forUs, () => {
      this.counts.events++;
      for (const node of this.#touched) node.check();
      if (this.#touched.size > 0) checkLoans(this.agenda.nowUs, this.nodes);
      this.#touched.clear();
      this.#waits.check(this.nodes);
    });
  }

  /** Sequences stay as they are from now on. */
  hold(): void {
    this.#loading = false;
    for (const node of this.nodes) {
      const { incarnation } = node;
      this.#whenAwake(node, incarnation, () => {
        incarnation?.workload.dismiss();
        const { reservedSequences: gathered = 0, reservationsAdmitted: gatherings = 0 } =
          incarnation?.workload.demand ?? {};
        this.#follow(
          node,
          node.step(this.agenda.nowUs, { ...noDemand, reservedSequences: gathered, reservationsAdmitted: gatherings }),
        );
      });
    }
  }

  /** Do sequences come that no instance could hold? */
  get gathers(): boolean {
    return this.#config.longChance > 0;
  }

  /** Who waits for memory that no instance has alone, each with its number. */
  get waiting(): ReadonlyMap<Incarnation, number> {
    const waiting = new Map<Incarnation, number>();
    for (const { incarnation } of this.nodes)
      if (incarnation?.workload.waits !== undefined) waiting.set(incarnation, incarnation.workload.waits.number);
    return waiting;
  }

  checkAtRest(): void {
    checkAtRest(this.nodes, this.gmanager);
  }

  endAll(): void {
    for (const node of this.nodes) {
      node.incarnation?.workload.endAll();
      this.#wake(node);
    }
  }

  checkEmpty(): void {
    checkEmpty(this.nodes);
  }

  /** A gManager of a new epoch, which knows nothing. The one before goes on for `togetherUs`. */
  startGManager(togetherUs = 0): void {
    const { instances, seed, settleBlocksMin, stagingBlocks, times } = this.#config;
    const epoch = ++this.#epoch;
    const next = new GManager({
      epoch,
      times,
      blocksMin: settleBlocksMin,
      blocksMax: stagingBlocks,
      uniform: (counter) => counterUniform(seed, 1_000 + epoch, counter),
      // A ring.
      distance: (a, b) => Math.min((a - b + instances) % instances, (b - a + instances) % instances),
    });
    const before = this.#gmanagers;
    this.#gmanagers = [...before, next];
    const end = () => {
      this.#gmanagers = this.#gmanagers.filter((gmanager) => !before.includes(gmanager));
    };
    if (togetherUs > 0) this.agenda.after(togetherUs, end);
    else end();
    this.#wakeGManager(next);
  }

  start(node: LendingNode): void {
    const incarnation = node.start();
    this.#wake(node);
    this.#grow(node, incarnation);
  }

  crash(node: LendingNode): void {
    node.incarnation = undefined;
  }

  /** It hears and does nothing for so long, then all at once. */
  slow(node: LendingNode, forUs: number): void {
    node.slowUntilUs = Math.max(node.slowUntilUs, this.agenda.nowUs + forUs);
  }

  #deliver(envelope: Envelope): void {
    if (envelope.to === 'gmanager') {
      const { gmanager } = this;
      this.#perform(gmanager.step(this.agenda.nowUs, { kind: 'message', envelope }));
      this.#wakeGManager(gmanager);
      return;
    }
    const node = this.nodes[envelope.to];
    this.#whenAwake(node, node.incarnation, () => {
      const staying = envelope.message.kind === 'commit' ? unfrozen(node) : [];
      const kept = envelope.message.kind === 'recall' ? promised(node) : nothingPromised;
      const effects = node.step(this.agenda.nowUs, { kind: 'message', envelope });
      checkCommit(node, staying);
      checkRecall(node, kept);
      this.#waits.heard(envelope, effects);
      this.#follow(node, effects);
    });
  }

  /** Does it now, or once the instance is quick again; not at all when that life is over. */
  #whenAwake(node: LendingNode, incarnation: Incarnation | undefined, action: () => void): void {
    if (incarnation === undefined || node.incarnation !== incarnation) return;
    if (node.slowUntilUs <= this.agenda.nowUs) {
      this.#touched.add(node);
      action();
    } else this.agenda.at(node.slowUntilUs, () => this.#whenAwake(node, incarnation, action));
  }

  #wakeGManager(gmanager: GManager): void {
    this.agenda.at(gmanager.nextUs, () => {
      if (!this.#gmanagers.includes(gmanager) || gmanager.nextUs > this.agenda.nowUs) return;
      this.#perform(gmanager.step(this.agenda.nowUs, { kind: 'tick' }));
      this.#wakeGManager(gmanager);
    });
  }

  #wake(node: LendingNode): void {
    const { incarnation } = node;
    if (incarnation === undefined) return;
    this.agenda.at(node.nextUs, () => {
      if (node.incarnation !== incarnation || node.nextUs > this.agenda.nowUs) return;
      this.#whenAwake(node, incarnation, () => this.#follow(node, node.step(this.agenda.nowUs, { kind: 'tick' })));
    });
  }

  /** Carries out what an instance's machine asks for. */
  #follow(node: LendingNode, effects: readonly LendingEffect[]): void {
    const { incarnation } = node;
    if (incarnation === undefined) return;
    for (const effect of effects) {
      if (effect.kind === 'lost') {
        this.counts.lostBlocks += effect.rblocks.length;
        incarnation.workload.lose(effect.rblocks);
      } else if (effect.kind === 'vacate') {
        checkPromises(node, effect.rblocks);
        this.counts.vacatedBlocks += effect.rblocks.length;
        this.agenda.after(vacateUs, () =>
          this.#whenAwake(node, incarnation, () => {
            incarnation.workload.vacate(effect.rblocks);
            this.#wake(node);
          }),
        );
      } else if (effect.kind === 'fetch') {
        const { settlement, rblocks } = effect;
        for (const rblock of rblocks) incarnation.fetched.delete(rblock);
        this.agenda.after(fetchUs, () =>
          this.#whenAwake(node, incarnation, () => {
            for (const rblock of rblocks) incarnation.fetched.add(rblock);
            this.#follow(node, node.step(this.agenda.nowUs, { kind: 'fetched', settlement }));
          }),
        );
      }
    }
    this.#perform(effects);
    this.#wake(node);
  }

  #perform(effects: readonly LendingEffect[]): void {
    for (const effect of effects) {
      if (effect.kind === 'send') this.#send(effect.envelope);
      else if (effect.kind === 'met') this.#met(effect.fate, effect.message);
      else if (effect.kind === 'placed') this.counts.placedBlocks++;
    }
  }

  #send(envelope: Envelope): void {
    const { message } = envelope;
    if (message.kind === 'lend') this.counts.loans++;
    if (message.kind === 'renew') this.counts.firmLoans += message.committed.length;
    this.network.send(envelope);
  }

  #met(fate: MessageFate, message: LendingMessageKind): void {
    const key = `${fate} ${message}`;
    this.counts.met.set(key, (this.counts.met.get(key) ?? 0) + 1);
  }

  #grow(node: LendingNode, incarnation: Incarnation): void {
    const { growUs, loadPeriodUs, instances } = this.#config;
    this.agenda.after(growUs, () => {
      if (node.incarnation !== incarnation || !this.#loading) return;
      this.#grow(node, incarnation);
      this.#whenAwake(node, incarnation, () => {
        if (!this.#loading) return;
        const phase = this.agenda.nowUs / loadPeriodUs + node.instance / instances;
        const { gatherings, holds } = incarnation.workload;
        const blocks = incarnation.workload.grow(phase % 1 < 0.35 ? 0.5 : 0.03);
        this.counts.gatherings += incarnation.workload.gatherings - gatherings;
        this.counts.holds += incarnation.workload.holds - holds;
        if (this.#prng.chance(0.02)) this.#cancel(incarnation);
        const blocksPerSecond = Math.round((blocks * 1e6) / growUs);
        const growth = { kind: 'demand', blocksPerSecond, ...incarnation.workload.demand } as const;
        this.#follow(node, node.step(this.agenda.nowUs, growth));
        this.#loadGuests(node);
      });
    });
  }

  #cancel({ workload }: Incarnation): void {
    if (!this.patient && workload.waits !== undefined) workload.dismiss();
    else workload.cancelOne();
  }

  /** Now and then a creditor's step takes longer for a guest than it should, and there is room at home for what it has there. */
  #loadGuests(node: LendingNode): void {
    const debts = [...(node.incarnation?.rmanager.debts ?? [])];
    const [debt] = debts;
    const there = debts.filter(({ creditor }) => creditor === debt?.creditor);
    const held = there.reduce((sum, each) => sum + each.held, 0);
    const room = node.incarnation?.memory.lending.device.figures.available ?? 0;
    if (debt === undefined || held > room || there.some(({ committed: firm }) => firm) || !this.#prng.chance(0.03))
      return;
    const load = {
      kind: 'remoteAttentionLoad',
      creditor: debt.creditor,
      permille: this.#prng.integer(50, 400),
    } as const;
    this.#follow(node, node.step(this.agenda.nowUs, load));
  }

  /** Parties that a partition may cut off. */
  get parties(): readonly Party[] {
    return ['gmanager', ...this.nodes.map(({ instance }) => instance)];
  }
}
