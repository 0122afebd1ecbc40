// The simulator: carries the machines' effects out by turning each into a future event. It decides nothing.

import {
  createLengthInstance,
  type LengthEffect,
  type LengthEvent,
  type LengthInstance,
} from '../../core/instance/length-instance.ts';
import type { ConductorEvent } from '../../core/protocol/events.ts';
import type { InstanceIndex } from '../../core/protocol/ids.ts';
import { MessageCounts } from '../../core/protocol/message-counts.ts';
import type { InstanceSnapshot } from '../../core/protocol/ports.ts';
import type { PoolLoads } from '../../core/router/admission/admission-controller.ts';
import { sloRule } from '../../core/router/admission/length-admission.ts';
import type { LengthRequest } from '../../core/scheduler/executor/length-request.ts';
import type { TraceRequest } from '../../trace/request.ts';
import { wideZero } from '../../util/wide-zero.ts';
import { RequestChecks } from '../checks/request-checks.ts';
import { FaultLayer, type FaultyCluster } from '../faults/fault-layer.ts';
import { ClusterLending } from '../lending/cluster-lending.ts';
import type { LendingHost } from '../lending/lending-host.ts';
import { Network } from '../network/network.ts';
import { NetworkClock } from '../network/network-clock.ts';
import { migrationFigures } from '../report/migration-figures.ts';
import { Outcome } from '../report/outcome.ts';
import { Clients, endings } from '../workload/clients.ts';
import { Retries } from '../workload/retries.ts';
import { ConductorDriver } from './conductor-driver.ts';
import { conductorMessagesOf } from './conductor-messages.ts';
import { EffectRunner } from './effect-runner.ts';
import { EventHeap } from './event-heap.ts';
import { EventQueue } from './event-queue.ts';
import { SimulatedExecutor } from './executor.ts';
import { InOrder } from './in-order.ts';
import { MessageDelivery } from './message-delivery.ts';
import type { Inside, InstanceSpec, SimulationConfig } from './simulation-config.ts';
import { Streams } from './streams.ts';
import { SimulatedTiers } from './tiers.ts';

export type { InstanceSpec, SimulationConfig };

type ToInstance = LengthEvent;

/** What comes after the events of instances, in their order: the network's, and then messages. */
const networkNumber = 0;
const firstMessage = 1;
/** In so many silences whoever was given up wrongly is told, and orphans are found. */
const restSilences = 4;

/**
 * Pure: a run is a function of its configuration and trace. At one time steps end first, in the order of their instances, then flows change,
 * then messages arrive in the order in which they left, then requests come.
 */
export class Simulation {
  readonly outcome = new Outcome();
  /** Undefined unless the configuration wants them. */
  readonly checks: RequestChecks | undefined;
  readonly fates = new MessageCounts();
  readonly #config: SimulationConfig;
  readonly #conducting: ConductorDriver;
  readonly #faults: FaultLayer | undefined;
  readonly #instances: LengthInstance[];
  /** (instances): when each is to be woken. */
  readonly #wakeUs: Float64Array;
  readonly #effects: InOrder<LengthEffect>;
  readonly #performer: EffectRunner;
  readonly #hearing: MessageDelivery;
  readonly #executors: readonly SimulatedExecutor[];
  readonly #network: Network;
  readonly #streams: Streams;
  readonly #clock: NetworkClock;
  readonly lending: ClusterLending | undefined;
  readonly #tiers: SimulatedTiers;
  readonly #clients: Clients;
  readonly #heap = new EventHeap();
  readonly #actions: EventQueue;
  /** Some wait for their tokens: the loads of the pools are looked at. */
  readonly #watched: boolean;
  #nowUs: number = wideZero;

  constructor(config: SimulationConfig) {
    this.#config = config;
    this.outcome.retries = config.retries && new Retries(config.retries);
    const { instances, linkBytesPerSecond } = config;
    this.checks = config.checking ? new RequestChecks(config, this) : undefined;
    this.#instances = instances.map((_, index) => this.#create(index, 0));
    this.#actions = new EventQueue(this.#heap, instances.length + firstMessage);
    this.#effects = new InOrder(instances.length, (index, effect) => this.#perform(index, effect));
    this.#wakeUs = new Float64Array(instances.length).fill(Number.POSITIVE_INFINITY);
    this.#executors = instances.map(
      ({ machine }, index) => new SimulatedExecutor(machine, this.#heap, index, config.watch),
    );
    this.#network = new Network({ nics: instances.map(({ nic }) => nic), linkBytesPerSecond });
    const costs = instances.map(({ machine }) => machine.cost);
    this.#hearing = this.#createHearing();
    this.#streams = new Streams(this.#network, costs, config.lending && config.blockTokens, {
      post: (from, to, event, loadBytes) => this.#hearing.post(from, to, event, loadBytes),
      startsAhead: (index) => instances[index].machine.startsAhead === true,
      tell: (index, event) => this.#tellInstance(index, event),
      left: (departed) => this.lending?.departed(this.#nowUs, departed),
    });
    const networkKey = instances.length + networkNumber;
    this.#clock = new NetworkClock(this.#network, this.#streams, this.#heap, networkKey, config.checking);
    this.#tiers = new SimulatedTiers(config, (timeUs, to, event) => this.#laterAt(timeUs, to, event));
    this.#performer = new EffectRunner(
      { executors: this.#executors, streams: this.#streams, tiers: this.#tiers },
      {
        post: (from, to, event) => this.#hearing.post(from, to, event),
        awaited: (nowUs, index) => this.#instances[index].arriving(nowUs),
        lending: () => this.lending,
      },
    );
    const sloOf = sloRule(config.admission, instances);
    this.#watched = config.admission.slo !== undefined || config.admission.classes !== undefined;
    this.#clients = new Clients({
      config,
      sloOf,
      outcome: this.outcome,
      ended: endings(this.checks, config.inspect),
      submit: (request) => this.#tellConductor({ kind: 'submit', request }),
      pin: (id, request, ttlUs) => this.#tellConductor({ kind: 'pin', id, request, ttlUs }),
      at: (timeUs, action) => this.#actions.at(timeUs, action),
    });
    this.#conducting = new ConductorDriver({
      ...{ config, sloOf, fates: this.fates, clients: this.#clients, outcome: this.outcome },
      capacityTokens: () => this.#instances.map((instance) => instance.capacityTokens),
      later: (delayUs, action) => this.#later(delayUs, action),
      join: (joined) => this.#tellConductor(joined),
      toInstance: (index, event) => this.#hearing.toInstance(index, event),
    });
    this.lending = config.lending && new ClusterLending(config.lending, config, this.#lenders());
    this.#faults = config.faults && new FaultLayer(config.faults, this.#faultyCluster());
    if (this.#faults === undefined) return;
    for (const index of instances.keys()) {
      this.#tellConductor({ kind: 'instanceJoined', instance: index, incarnation: 0 });
      this.#scheduleWake(index);
    }
  }

  #create(index: InstanceIndex, incarnation: number): LengthInstance {
    const { machine } = this.#config.instances[index];
    const reportUs = this.#config.faults?.times.reportUs;
    const witness = this.checks?.witness(index);
    return createLengthInstance({
      ...machine,
      queueMax: 2 ** 53 - 1,
      incarnation,
      reportUs,
      fates: this.fates,
      witness,
    });
  }

  #createHearing(): MessageDelivery {
    return new MessageDelivery({
      threads: this.#config.threads,
      faults: () => this.#faults,
      instances: this.#instances.length,
      isComputing: (index) => this.#executors[index].isRunning,
      latencyUs: (from, to, bytes) => this.#network.latencyUs(from, to) + this.#tiers.landed(this.#nowUs, to, bytes),
      nowUs: () => this.#nowUs,
      later: (delayUs, action) => this.#later(delayUs, action),
      tellInstance: (index, event) => this.#tellInstance(index, event),
      tellConductor: (event) => this.#tellConductor(event),
    });
  }

  #lenders(): LendingHost {
    const tell = (nowUs: number, index: InstanceIndex, event: ToInstance) => {
      this.#nowUs = nowUs;
      this.#tellInstance(index, event);
    };
    return {
      ...{ instances: this.#instances, executors: this.#executors, tell },
      ...{ network: this.#network, streams: this.#streams },
      faults: () => this.#faults,
      nowUs: () => this.#nowUs,
      setNowUs: (nowUs) => {
        this.#nowUs = nowUs;
      },
    };
  }

  #faultyCluster(): FaultyCluster {
    return {
      instances: this.#instances.length,
      lends: this.lending !== undefined,
      latencyUs: (index) => this.#config.instances[index].nic.us,
      later: (delayUs, action) => this.#later(delayUs, action),
      tellInstance: (index, event) => this.#tellInstance(index, event),
      tellConductor: (event) => this.#tellConductor(event),
      clear: (index, incarnation) => {
        this.outcome.lost(this.#instances[index], this.#executors[index].stop(this.#nowUs));
        this.checks?.gone(index, this.#instances[index]);
        this.#hearing.clear(index);
        this.#instances[index] = this.#create(index, incarnation);
        this.#wakeUs[index] = Number.POSITIVE_INFINITY;
        this.lending?.died(this.#nowUs, index);
      },
      wake: (index) => {
        this.#scheduleWake(index);
        this.lending?.started(this.#nowUs, index);
      },
      slow: (index, factor) => {
        this.#executors[index].endRun(this.#nowUs);
        this.#executors[index].slowness = factor;
        this.lending?.slowed(this.#nowUs, index);
      },
      breakFlows: (isBroken) => {
        this.#streams.break(this.#nowUs, isBroken);
        this.lending?.break(this.#nowUs, isBroken);
      },
      restartConductor: () => this.#conducting.restart(this.#nowUs),
      restartGManager: () => this.lending?.restartGManager(this.#nowUs),
    };
  }

  /** It is not wanted any more. */
  cancel(id: string): void {
    if (this.#clients.leave(id)) this.#tellConductor({ kind: 'cancel', id });
    this.#looked();
  }

  /** All that there is, for those who check it. */
  get inside(): Inside {
    const { requests } = this.#clients;
    return {
      conductor: this.#conducting.conductor,
      instances: this.#instances,
      faults: this.#faults,
      network: this.#network,
      leftTo: (from, to, id) => this.#streams.leftTo(this.#nowUs, from, to, id),
      requests,
    };
  }

  get nowUs(): number {
    return this.#nowUs;
  }

  /** Does any other instance than this one compute now? */
  isComputingBeside(index: InstanceIndex): boolean {
    return this.#executors.some((executor, other) => other !== index && executor.isRunning);
  }

  get live(): number {
    return this.#clients.live;
  }

  /** When the next thing happens; Infinity when nothing is left to happen. */
  get nextUs(): number {
    if (this.#network.changed && this.#heap.nextUs > this.#nowUs) this.#clock.refresh();
    return this.lending?.nextBefore(this.#heap.nextUs, this.live) ?? this.#heap.nextUs;
  }

  /** How every instance stands. */
  snapshots(): readonly InstanceSnapshot[] {
    return this.#instances.map((instance) => instance.snapshot());
  }

  /** Of the pools that prefill and decode; undefined when nobody has an SLO. Everything before `nowUs` has happened. */
  loads(nowUs: number): PoolLoads | undefined {
    return this.#conducting.conductor.loads(nowUs);
  }

  /** A request arrives; everything due before it happens first. */
  arrive(trace: TraceRequest): void {
    if (this.#watched) this.outcome.swing.lookUntil(trace.arrivalUs, (atUs) => this.#loadsAt(atUs));
    this.advance(trace.arrivalUs);
    this.#nowUs = trace.arrivalUs;
    this.#clients.come(trace, String(trace.index));
    this.#looked();
  }

  #loadsAt(nowUs: number): PoolLoads | undefined {
    this.advance(nowUs);
    return this.loads(nowUs);
  }

  /** When no request comes any more: all are answered, and without faults nothing is left to happen (else instances report for ever). */
  get isOver(): boolean {
    if (this.#faults === undefined) return this.nextUs === Number.POSITIVE_INFINITY;
    return this.#clients.live + this.#clients.comingAgain === 0;
  }

  /** No request comes any more: runs until it is over. */
  finish(): void {
    while (!this.isOver) this.advance(this.nextUs);
    this.outcome.inlinePrefills = this.#conducting.conductor.inlinePrefills;
    this.outcome.tiers = this.#tiers.figures(this.snapshots(), this.#config.blockTokens);
    this.outcome.migration = migrationFigures(
      this.#config.instances,
      this.#instances,
      this.#conducting.conductor.instancesStarted,
    );
    this.outcome.groupPrefills = this.#conducting.conductor.groupPrefills;
    this.outcome.close(
      this.lending?.aliveUs ?? this.#nowUs,
      this.#instances,
      this.#network.moved,
      this.#conducting.conductor.blocks,
      this.#executors.map((executor) => executor.endedBy(this.#nowUs)),
    );
    if (this.checks !== undefined) this.#checkAtRest(this.checks);
  }

  /** Once nothing goes wrong any more, nobody holds anything, and all that was lent comes back. */
  #checkAtRest(checks: RequestChecks): void {
    const { lending } = this;
    if (this.#faults !== undefined) {
      checks.checkEnded();
      this.#faults.heal();
      const untilUs = this.#nowUs + (lending?.restUs ?? 0);
      while (lending?.isPaidBack === false && this.nextUs <= untilUs) this.advance(this.nextUs);
      this.advance(this.#nowUs + Math.max(lending?.restUs ?? 0, restSilences * this.#faults.times.silentUs));
    }
    checks.checkAtRest();
    lending?.checkAtRest();
  }

  /** Everything due up to and at `timeUs` happens: looking at the state in between changes nothing. */
  advance(timeUs: number): void {
    const heap = this.#heap;
    while (this.nextUs <= timeUs) {
      if (this.lending?.comesFirst(heap.nextUs) === true) {
        this.lending.advance();
      } else {
        if (heap.size === 0) return;
        this.#nowUs = heap.nextUs;
        const key = heap.nextKey;
        heap.pop();
        if (key < this.#instances.length) this.#stepEnds(key);
        else if (key === this.#instances.length + networkNumber) this.#clock.due(this.#nowUs);
        else this.#actions.do(key);
      }
      this.#looked();
    }
  }

  /** An event is over. */
  #looked(): void {
    this.checks?.look();
    this.#config.inspect?.after();
  }

  #stepEnds(index: InstanceIndex): void {
    const ended = this.#executors[index].due(this.#nowUs);
    if (ended !== undefined) {
      this.lending?.ended(this.#nowUs, index, ended);
      this.#hearing.stepEnds(index);
      this.#tellInstance(index, ended);
    }
    if (this.#faults?.isUp(index) === false) return;
    if (this.#wakeUs[index] <= this.#nowUs) this.#tellInstance(index, { kind: 'wake' });
  }

  #later(delayUs: number, action: () => void): void {
    this.#actions.at(this.#nowUs + delayUs, action);
  }

  /** The instance hears it then, if it has not started anew since. */
  #laterAt(timeUs: number, index: InstanceIndex, event: ToInstance): void {
    const incarnation = this.#faults?.incarnationOf(index);
    this.#actions.at(timeUs, () => {
      if (this.#faults?.incarnationOf(index) === incarnation) this.#tellInstance(index, event);
    });
  }

  #tellConductor(event: ConductorEvent<LengthRequest>): void {
    this.#conducting.tell(this.#nowUs, event);
  }

  #tellInstance(index: InstanceIndex, event: ToInstance): void {
    if (this.#faults?.isUp(index) === false) return;
    this.#executors[index].hear(this.#nowUs, event);
    if (this.#hearing.waits(index, event)) return;
    const effects = this.#instances[index].step(this.#nowUs, event);
    if (this.#config.learned !== undefined) this.#lookAt(index);
    if (this.checks !== undefined) this.#check(index, event, effects, this.checks);
    this.#effects.perform(index, effects);
    this.#hearing.turnEnds(index, event);
    this.#scheduleWake(index);
    this.lending?.stepped(this.#nowUs, index);
  }

  #lookAt(index: InstanceIndex): void {
    const standing = { ...this.#instances[index].snapshot(), sent: this.#network.sentBy(this.#nowUs, index) };
    this.#hearing.shows(index, () => this.#conducting.look(index, standing));
  }

  #check(index: InstanceIndex, event: ToInstance, effects: readonly LengthEffect[], checks: RequestChecks): void {
    this.#instances[index].check();
    checks.stepped(index, event, effects);
  }

  /** A wake that comes too early, or after another, finds nothing to do. */
  #scheduleWake(index: InstanceIndex): void {
    const { nextUs } = this.#instances[index];
    if (nextUs === this.#wakeUs[index]) return;
    this.#wakeUs[index] = nextUs;
    if (nextUs < Number.POSITIVE_INFINITY) this.#heap.push(Math.max(nextUs, this.#nowUs), index);
  }

  #perform(index: InstanceIndex, effect: LengthEffect): void {
    const words = conductorMessagesOf(index, effect);
    if (words !== undefined) this.#hearing.toConductor(index, words);
    this.#performer.perform(this.#nowUs, index, effect);
  }
}
