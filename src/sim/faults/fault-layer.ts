// The faults between a simulated cluster's machines: messages that are lost or late, instances that fail, connections that break.

import type { LengthEvent } from '../../core/instance/length-instance.ts';
import type { ConductorEvent } from '../../core/protocol/events.ts';
import type { InstanceIndex } from '../../core/protocol/ids.ts';
import type { LengthRequest } from '../../core/scheduler/executor/length-request.ts';
import { Prng } from '../../util/prng.ts';
import type { EventQueue } from '../engine/event-queue.ts';
import type { ClusterHost } from '../engine/simulation-config.ts';
import type { FaultCounts, FaultPlan, FaultTimes } from './fault-plan.ts';
import { type Endpoint, FaultyNetwork } from './faulty-network.ts';
import { type FaultTarget, Injector } from './injector.ts';

interface FaultyCluster extends ClusterHost {
  /** The instance loses its state and its running step, and restarts as a new incarnation. */
  instanceFailed(instance: InstanceIndex, incarnation: number): void;
  instanceStarted(instance: InstanceIndex): void;
  setSlowness(instance: InstanceIndex, factor: number): void;
  breakConnections(isBroken: (from: InstanceIndex, to: InstanceIndex) => boolean): void;
  /** The conductor restarts without state. */
  restartConductor(): void;
  restartGManager(): void;
  /** False when none can be lost. */
  loseAttentionWorker(instance: InstanceIndex, forUs: number): boolean;
}

/** Random stream of this file alone. */
const stream = 40;

export class FaultLayer implements FaultTarget {
  readonly times: FaultTimes;
  readonly injected: FaultCounts = new Map();
  readonly size: number;
  readonly endpoints: readonly Endpoint[];
  readonly #cluster: FaultyCluster;
  readonly #network: FaultyNetwork;
  readonly #injector: Injector;
  readonly #up: boolean[];
  readonly #incarnations: number[];
  #healed = false;

  constructor(plan: FaultPlan, cluster: FaultyCluster) {
    const { instances, lending } = cluster.config;
    this.times = plan.times;
    this.#cluster = cluster;
    this.size = instances.length;
    this.#up = instances.map(() => true);
    this.#incarnations = instances.map(() => 0);
    const managers: readonly Endpoint[] = lending === undefined ? ['conductor'] : ['conductor', 'gmanager'];
    this.endpoints = [...managers, ...instances.keys()];
    this.#network = new FaultyNetwork(new Prng(plan.seed, stream), plan.faults, cluster.queue, this.injected);
    this.#injector = new Injector(plan, this);
  }

  get queue(): EventQueue {
    return this.#cluster.queue;
  }

  /** The longest delivery time of a message so far. */
  get longestUs(): number {
    return this.#network.longestUs;
  }

  isUp(instance: InstanceIndex): boolean {
    return this.#up[instance];
  }

  incarnationOf(instance: InstanceIndex): number {
    return this.#incarnations[instance];
  }

  /** True if both are up and no partition separates them. */
  isConnected(a: InstanceIndex, b: InstanceIndex): boolean {
    return this.#up[a] && this.#up[b] && this.#network.isConnected(a, b);
  }

  /** Ends all faults; instances that are down restart. */
  heal(): void {
    this.#injector.stop();
    this.#network.heal();
    for (let i = 0; i < this.#up.length; i++) this.start(i);
    this.#healed = true;
  }

  sendToInstance(instance: InstanceIndex, event: LengthEvent): void {
    this.#network.send('conductor', instance, this.#latencyUs(instance), () =>
      this.#cluster.deliverToInstance(instance, event),
    );
  }

  sendToConductor(instance: InstanceIndex, event: ConductorEvent<LengthRequest>): void {
    const message = withOwnArrays(event);
    this.#network.send(instance, 'conductor', this.#latencyUs(instance), () =>
      this.#cluster.deliverToConductor(message),
    );
  }

  #latencyUs(instance: InstanceIndex): number {
    return this.#cluster.config.instances[instance].nic.us;
  }

  /** Messages about lending between instances and the gManager. */
  sendLending(from: Endpoint, to: Endpoint, latencyUs: number, deliver: () => void): void {
    this.#network.send(from, to, latencyUs, deliver);
  }

  /** Peer messages may be lost. Streamed data arrives, or both ends are notified that it did not. */
  sendToPeer(from: InstanceIndex, to: InstanceIndex, event: LengthEvent, latencyUs: number): void {
    if (event.kind === 'peer') {
      this.#network.send(from, to, latencyUs, () => this.#cluster.deliverToInstance(to, event));
      return;
    }
    const incarnations = [this.#incarnations[from], this.#incarnations[to]];
    this.queue.after(latencyUs, () => {
      const isSame = [this.#incarnations[from] === incarnations[0], this.#incarnations[to] === incarnations[1]];
      if (isSame[0] && isSame[1] && this.#network.isConnected(from, to)) this.#cluster.deliverToInstance(to, event);
      else this.#notifyUndelivered(isSame[0] ? from : undefined, isSame[1] ? to : undefined, to, event);
    });
  }

  /** @param sender undefined: it has restarted @param receiver undefined: it has restarted */
  #notifyUndelivered(
    sender: InstanceIndex | undefined,
    receiver: InstanceIndex | undefined,
    to: InstanceIndex,
    event: LengthEvent,
  ): void {
    const notify = (instance: InstanceIndex | undefined, notice: LengthEvent) => {
      if (instance !== undefined) this.#cluster.deliverToInstance(instance, notice);
    };
    if (event.kind === 'promptReceived') notify(sender, { kind: 'streamBroken', id: event.id, to });
    else if (event.kind === 'activations') {
      const broken = { kind: 'streamBroken', id: event.id, to, ofActivations: true } as const;
      notify(sender, broken);
      notify(receiver, broken);
    } else if (event.kind === 'loaded') notify(receiver, { ...event, to: 0 });
  }

  crash(instance: InstanceIndex): boolean {
    if (!this.#up[instance]) return false;
    this.#up[instance] = false;
    this.#incarnations[instance]++;
    this.#cluster.instanceFailed(instance, this.#incarnations[instance]);
    this.#cluster.breakConnections((from, to) => from === instance || to === instance);
    return true;
  }

  start(instance: InstanceIndex): boolean {
    if (this.#up[instance] || this.#healed) return false;
    this.#up[instance] = true;
    this.#cluster.instanceStarted(instance);
    return true;
  }

  loseAttentionWorker(instance: InstanceIndex, forUs: number): boolean {
    return this.#up[instance] && this.#cluster.loseAttentionWorker(instance, forUs);
  }

  setSlowness(instance: InstanceIndex, factor: number): void {
    this.#cluster.setSlowness(instance, factor);
  }

  partition(endpoints: readonly Endpoint[]): void {
    this.#network.partition(endpoints);
    this.#cluster.breakConnections((from, to) => !this.#network.isConnected(from, to));
  }

  reconnect(endpoints: readonly Endpoint[]): void {
    this.#network.reconnect(endpoints);
  }

  restartConductor(): void {
    this.#cluster.restartConductor();
  }

  restartGManager(): void {
    this.#cluster.restartGManager();
  }
}

/** A copy with arrays of its own: the next batch reuses those of this one. */
export function withOwnArrays(event: ConductorEvent<LengthRequest>): ConductorEvent<LengthRequest> {
  if (event.kind !== 'kvEvents') return event;
  const { words, stored, ...rest } = event.batch;
  return { ...event, batch: { ...rest, words: words.slice(), stored: stored.slice() } };
}
