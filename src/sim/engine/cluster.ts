// A simulated cluster: its instances, its conductor and the network between them, on one event queue. It only carries effects out.

import { createLengthInstance, type LengthEvent, type LengthInstance } from '../../core/instance/length-instance.ts';
import type { ConductorEvent } from '../../core/protocol/events.ts';
import type { InstanceIndex } from '../../core/protocol/ids.ts';
import { MessageCounts } from '../../core/protocol/message-counts.ts';
import { type SloRule, sloRule } from '../../core/router/admission/length-admission.ts';
import type { Conductor } from '../../core/router/conductor.ts';
import type { LengthRequest } from '../../core/scheduler/executor/length-request.ts';
import { RequestChecks } from '../checks/request-checks.ts';
import { FaultLayer } from '../faults/fault-layer.ts';
import { Network } from '../network/network.ts';
import { ClosedLoopFigures } from '../report/closed-loop-figures.ts';
import { Outcome } from '../report/outcome.ts';
import { Clients } from '../workload/clients.ts';
import { Retries } from '../workload/retries.ts';
import { SimulatedAttentionWorkers } from './attention-workers.ts';
import { EffectRunner } from './effect-runner.ts';
import { EventQueue, type Timer } from './event-queue.ts';
import { SimulatedExecutor } from './executor.ts';
import { Gateways } from './gateways.ts';
import { ClusterLending } from './lending/cluster-lending.ts';
import { MessageDelivery } from './message-delivery.ts';
import { type ClusterHost, type LearnedState, predictedInstances, type SimulationConfig } from './simulation-config.ts';
import { Streams } from './streams.ts';
import { SimulatedTiers } from './tiers.ts';

/**
 * The host of all its parts. At one time steps end first, in the order of their instances; then flows change; then messages arrive in the
 * order of sending; then lending runs.
 */
export class Cluster implements ClusterHost {
  readonly config: SimulationConfig;
  readonly queue = new EventQueue();
  readonly outcome = new Outcome();
  readonly messageCounts = new MessageCounts();
  readonly sloOf: SloRule;
  /** Undefined unless the configuration requires checks. */
  readonly checks: RequestChecks | undefined;
  readonly instances: LengthInstance[];
  readonly executors: readonly SimulatedExecutor[];
  readonly network: Network;
  readonly delivery: MessageDelivery;
  readonly streams: Streams;
  readonly tiers: SimulatedTiers;
  readonly clients: Clients;
  readonly gateways: Gateways;
  readonly lending: ClusterLending | undefined;
  /** Undefined: no instance has attention workers. */
  readonly attentionWorkers: SimulatedAttentionWorkers | undefined;
  readonly faults: FaultLayer | undefined;
  readonly #effects: EffectRunner;
  /** (instances): ends of steps, and wakes. */
  readonly #timers: readonly Timer[];
  /** (instances): next wake. */
  readonly #wakeUs: Float64Array;
  /** (instances): what the next heartbeat reports; undefined: nothing new. */
  readonly #unreported: (LearnedState | undefined)[] = [];

  constructor(config: SimulationConfig) {
    this.config = config;
    const { instances } = config;
    const { queue } = this;
    this.outcome.retries = config.retries && new Retries(config.retries);
    if (config.clients !== undefined) this.outcome.closedLoop = new ClosedLoopFigures(config.clients);
    this.sloOf = sloRule(config.admission, predictedInstances(config));
    this.checks = config.checking ? new RequestChecks(this) : undefined;
    this.instances = instances.map((_, index) => this.#create(index, 0));
    this.#effects = new EffectRunner(this);
    this.#wakeUs = new Float64Array(instances.length).fill(Number.POSITIVE_INFINITY);
    this.#timers = instances.map((_, index) => queue.timer(() => this.#timerFired(index)));
    this.executors = instances.map(
      ({ machine }, index) => new SimulatedExecutor(machine, queue, this.#timers[index], index, config.stepListener),
    );
    this.network = new Network({
      nics: instances.map(({ nic }) => nic),
      linkBytesPerSecond: config.linkBytesPerSecond,
      racks: config.racks,
      transferListener: config.transferListener,
    });
    this.delivery = new MessageDelivery(this);
    this.streams = new Streams(this);
    this.tiers = new SimulatedTiers(this);
    this.clients = new Clients(this);
    this.gateways = new Gateways(this);
    this.lending = config.lending && new ClusterLending(config.lending, this);
    const hasWorkers = instances.some(({ machine }) => machine.attentionWorkers !== undefined);
    this.attentionWorkers = hasWorkers ? new SimulatedAttentionWorkers(this) : undefined;
    this.faults = config.faults && new FaultLayer(config.faults, this);
    if (config.threads?.nextReportUs !== undefined)
      for (const index of instances.keys()) {
        if (this.#hasHeartbeats(index)) this.#awaitHeartbeat(index, 0);
        else this.#reportLater(index, this.#learnedOf(index));
      }
    if (this.faults === undefined) return;
    for (const index of instances.keys()) {
      this.deliverToConductor({ kind: 'instanceJoined', instance: index, incarnation: 0 });
      this.#scheduleWake(index);
    }
  }

  #create(index: InstanceIndex, incarnation: number): LengthInstance {
    const { machine } = this.config.instances[index];
    return createLengthInstance({
      ...machine,
      queueMax: 2 ** 53 - 1,
      incarnation,
      reportUs: this.config.faults?.times.reportUs,
      messageCounts: this.messageCounts,
      blockListener: this.checks?.blockListener(index),
    });
  }

  /** Of the first gateway. */
  get conductor(): Conductor<LengthRequest> {
    return this.gateways.conductor;
  }

  deliverToConductor(event: ConductorEvent<LengthRequest>): void {
    this.gateways.deliver(event);
  }

  deliverToInstance(index: InstanceIndex, event: LengthEvent): void {
    if (this.faults?.isUp(index) === false) return;
    this.executors[index].observe(event);
    if (this.delivery.defer(index, event)) return;
    this.gateways.delivered(index, event);
    const effects = this.instances[index].step(this.queue.nowUs, event);
    if (this.config.learned !== undefined) this.#observe(index);
    if (this.checks !== undefined) {
      this.instances[index].check();
      this.checks.stepped(index, event, effects);
    }
    this.#effects.run(index, effects);
    if (this.config.learned !== undefined) this.#observeAtHeartbeat(index);
    this.delivery.endTurn(index, event);
    this.#scheduleWake(index);
    this.lending?.stepped(index);
  }

  /** Delivers at that time, unless the instance restarts before. */
  deliverToInstanceAt(timeUs: number, index: InstanceIndex, event: LengthEvent): void {
    const incarnation = this.incarnationOf(index);
    this.queue.at(timeUs, () => {
      if (this.incarnationOf(index) === incarnation) this.deliverToInstance(index, event);
    });
  }

  incarnationOf(index: InstanceIndex): number {
    return this.faults?.incarnationOf(index) ?? 0;
  }

  latencyUs(from: InstanceIndex, to: InstanceIndex, loadBytes: number): number {
    return this.network.latencyUs(from, to) + this.tiers.loadReceived(to, loadBytes);
  }

  /** The conductor learns from the instance's snapshot, with its next messages. */
  #observe(index: InstanceIndex): void {
    if (this.config.threads?.nextReportUs !== undefined) return;
    const snapshot = this.#learnedOf(index);
    this.delivery.withTurn(index, () => this.gateways.observe(index, snapshot));
  }

  /** A heartbeat has the state of the instance's last turn whose messages were sent before: turns without messages do not count. */
  #observeAtHeartbeat(index: InstanceIndex): void {
    if (this.config.threads?.nextReportUs === undefined || !this.delivery.hasMessages(index)) return;
    if (this.#hasHeartbeats(index)) return;
    const snapshot = this.#learnedOf(index);
    this.delivery.withTurn(index, () => this.#reportLater(index, snapshot));
  }

  /** Recorded heartbeats of the instance follow. */
  #hasHeartbeats(index: InstanceIndex): boolean {
    const last = this.config.threads?.heartbeats?.[index]?.at(-1);
    return last !== undefined && last.receivedUs > this.queue.nowUs;
  }

  #awaitHeartbeat(index: InstanceIndex, number: number): void {
    const heartbeat = this.config.threads?.heartbeats?.[index]?.[number];
    if (heartbeat === undefined) return;
    this.queue.at(heartbeat.receivedUs, () => {
      this.gateways.observe(index, heartbeat.state);
      this.#awaitHeartbeat(index, number + 1);
    });
  }

  /** The next heartbeat of the instance reports this, or what has replaced it by then. */
  #reportLater(index: InstanceIndex, snapshot: LearnedState): void {
    const { nextReportUs } = this.config.threads ?? {};
    if (nextReportUs === undefined) return;
    const isReported = this.#unreported[index] !== undefined;
    this.#unreported[index] = snapshot;
    if (isReported) return;
    this.queue.at(nextReportUs(this.queue.nowUs, index), () => {
      const latest = this.#unreported[index];
      this.#unreported[index] = undefined;
      if (latest !== undefined) this.gateways.observe(index, latest);
    });
  }

  #learnedOf(index: InstanceIndex) {
    return { ...this.instances[index].snapshot(), sent: this.network.sentBy(this.queue.nowUs, index) };
  }

  #timerFired(index: InstanceIndex): void {
    const ended = this.executors[index].takeEnd();
    if (ended !== undefined) {
      this.lending?.stepEnded(index, ended);
      this.attentionWorkers?.stepEnded(index, ended);
      this.delivery.deliverDeferred(index);
      this.deliverToInstance(index, ended);
    }
    if (this.faults?.isUp(index) === false) return;
    if (this.#wakeUs[index] <= this.queue.nowUs) this.deliverToInstance(index, { kind: 'wake' });
  }

  /** A wake that is early or superseded has no effect. */
  #scheduleWake(index: InstanceIndex): void {
    const { nextUs } = this.instances[index];
    if (nextUs === this.#wakeUs[index]) return;
    this.#wakeUs[index] = nextUs;
    if (nextUs < Number.POSITIVE_INFINITY) this.#timers[index].schedule(Math.max(nextUs, this.queue.nowUs));
  }

  /** An instance fails: its state and the results of its running step are lost. */
  instanceFailed(index: InstanceIndex, incarnation: number): void {
    this.outcome.instanceFailed(this.instances[index], this.executors[index].stop());
    this.checks?.reset(index, this.instances[index]);
    this.delivery.reset(index);
    this.instances[index] = this.#create(index, incarnation);
    this.#wakeUs[index] = Number.POSITIVE_INFINITY;
    this.lending?.instanceFailed(index);
    this.attentionWorkers?.instanceFailed(index);
  }

  instanceStarted(index: InstanceIndex): void {
    this.#scheduleWake(index);
    this.lending?.instanceStarted(index);
    this.attentionWorkers?.instanceStarted(index);
  }

  loseAttentionWorker(index: InstanceIndex, forUs: number): boolean {
    return this.attentionWorkers?.lose(index, forUs) === true;
  }

  /** Multiplies the times of the instance's steps from now on. */
  setSlowness(index: InstanceIndex, factor: number): void {
    this.executors[index].endStepRun();
    this.executors[index].slowness = factor;
    this.lending?.slownessChanged(index);
  }

  breakConnections(isBroken: (from: InstanceIndex, to: InstanceIndex) => boolean): void {
    this.streams.break(isBroken);
    this.lending?.break(isBroken);
  }

  restartConductor(): void {
    this.gateways.restart();
  }

  restartGManager(): void {
    this.lending?.restartGManager();
  }

  /** Time of the next event; Infinity when nothing is left to happen. */
  get nextUs(): number {
    const { queue, network } = this;
    if (network.changed && (queue.isIdle || queue.nextUs > queue.nowUs)) this.streams.refresh();
    if (queue.isIdle && this.lending?.isActive(this.clients.unfinished) !== true) return Number.POSITIVE_INFINITY;
    return queue.nextUs;
  }

  /** Runs after every event. */
  afterEvent(): void {
    this.checks?.check();
    this.config.inspect?.after();
  }
}
