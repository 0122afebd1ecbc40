// A run of a simulated cluster: requests arrive, time advances, and the outcome is collected.

import type { InstanceIndex } from '../../core/protocol/ids.ts';
import type { MessageCounts } from '../../core/protocol/message-counts.ts';
import type { InstanceSnapshot } from '../../core/protocol/ports.ts';
import type { PoolLoads } from '../../core/router/admission/admission-controller.ts';
import type { TraceRequest } from '../../trace/request.ts';
import type { RequestChecks } from '../checks/request-checks.ts';
import { migrationFigures, type Outcome } from '../report/outcome.ts';
import { sparseFigures } from '../report/sparse-figures.ts';
import { Cluster } from './cluster.ts';
import type { ClusterLending } from './lending/cluster-lending.ts';
import type { InstanceSpec, SimulationConfig } from './simulation-config.ts';

export type { InstanceSpec, SimulationConfig };

/** Time for instances to cancel needlessly retried requests and to release orphans, in units of `silentUs`. */
const restSilentTimes = 4;

/** Pure: a run is a function of its configuration and trace. Requests that arrive at a time come after all events of that time. */
export class Simulation {
  readonly cluster: Cluster;
  readonly #config: SimulationConfig;
  /** The SLO admission is active: the loads of the pools are sampled. */
  readonly #hasSlo: boolean;

  constructor(config: SimulationConfig) {
    this.#config = config;
    this.#hasSlo = config.admission.slo !== undefined || config.admission.classes !== undefined;
    this.cluster = new Cluster(config);
  }

  get outcome(): Outcome {
    return this.cluster.outcome;
  }

  /** Counts of messages that were lost, late, duplicated or without a receiver. */
  get messageCounts(): MessageCounts {
    return this.cluster.messageCounts;
  }

  get checks(): RequestChecks | undefined {
    return this.cluster.checks;
  }

  get lending(): ClusterLending | undefined {
    return this.cluster.lending;
  }

  get nowUs(): number {
    return this.cluster.queue.nowUs;
  }

  /** Requests that have arrived and not ended. */
  get unfinished(): number {
    return this.cluster.clients.unfinished;
  }

  /** Time of the next event; Infinity when nothing is left to happen. */
  get nextUs(): number {
    return this.cluster.nextUs;
  }

  /** True if another instance computes now. */
  isComputingBeside(index: InstanceIndex): boolean {
    return this.cluster.executors.some((executor, other) => other !== index && executor.isRunning);
  }

  snapshots(): readonly InstanceSnapshot[] {
    return this.cluster.instances.map((instance) => instance.snapshot());
  }

  /** Loads of the prefill and decode pools; undefined without an SLO. Everything before `nowUs` has happened. */
  loads(nowUs: number): PoolLoads | undefined {
    return this.cluster.gateways.loads(nowUs);
  }

  /**
   * A request arrives; everything due before it happens first. In a closed loop its time does not matter: the simulation runs until at most
   * as many requests wait as there are clients.
   */
  arrive(trace: TraceRequest): void {
    const { queue, clients } = this.cluster;
    const loop = this.#config.clients;
    if (loop === undefined) {
      this.#sampleLoadsUntil(trace.arrivalUs);
      this.advance(trace.arrivalUs);
      queue.skipTo(trace.arrivalUs);
    }
    clients.arrive(trace);
    this.cluster.afterEvent();
    while (loop !== undefined && clients.waiting > loop) {
      this.#sampleLoadsUntil(this.nextUs);
      this.advance(this.nextUs);
    }
  }

  #sampleLoadsUntil(timeUs: number): void {
    if (!this.#hasSlo) return;
    this.outcome.swing.sampleUntil(timeUs, (atUs) => {
      this.advance(atUs);
      return this.loads(atUs);
    });
  }

  cancel(id: string): void {
    if (this.cluster.clients.cancel(id)) this.cluster.deliverToConductor({ kind: 'cancel', id });
    this.cluster.afterEvent();
  }

  /** Runs everything due up to and at `timeUs`. A run is the same however it is divided into calls. */
  advance(timeUs: number): void {
    const { cluster } = this;
    for (let at = cluster.nextUs; at <= timeUs && at < Number.POSITIVE_INFINITY; at = cluster.nextUs) {
      cluster.queue.runNext();
      cluster.afterEvent();
    }
  }

  /** No more requests arrive: true when all are answered and, without faults, nothing is left to happen. With faults, instances report for ever. */
  get isOver(): boolean {
    const { faults, clients } = this.cluster;
    return faults === undefined
      ? this.nextUs === Number.POSITIVE_INFINITY
      : clients.unfinished + clients.returning + clients.waiting + clients.pausing === 0;
  }

  /** Runs to the end, without further arrivals. */
  finish(): void {
    while (!this.isOver) this.advance(this.nextUs);
    const { outcome, gateways, instances, executors, network, tiers, lending } = this.cluster;
    outcome.inlinePrefills = gateways.inlinePrefills;
    outcome.tiers = tiers.figures(this.snapshots(), this.#config.blockTokens);
    outcome.migration = migrationFigures(this.#config.instances, instances, gateways.instancesStarted);
    outcome.sparse = sparseFigures(this.#config.instances, this.snapshots(), executors);
    outcome.groupPrefills = gateways.groupPrefills;
    outcome.close(
      lending?.lastStepUs ?? this.nowUs,
      instances,
      network.moved,
      gateways.blocks,
      executors.map((executor) => executor.stepsEnded),
    );
    if (this.checks !== undefined) this.#checkAtRest(this.checks);
  }

  /** After all faults have ended, no request holds anything, and all loans have been returned. */
  #checkAtRest(checks: RequestChecks): void {
    const { lending, faults } = this.cluster;
    if (faults !== undefined) {
      checks.checkEnded();
      faults.heal();
      const untilUs = this.nowUs + (lending?.restUs ?? 0);
      while (lending?.hasNoLoans === false && this.nextUs <= untilUs) this.advance(this.nextUs);
      this.advance(this.nowUs + Math.max(lending?.restUs ?? 0, restSilentTimes * faults.times.silentUs));
    }
    checks.checkAtRest();
    lending?.checkAtRest();
  }
}
