// What stands between a simulated cluster's machines where faults are wanted: messages that go astray, lives that end, connections that break.

import type { LengthEvent } from '../../core/instance/length-instance.ts';
import type { ConductorEvent } from '../../core/protocol/events.ts';
import type { InstanceIndex } from '../../core/protocol/ids.ts';
import type { LengthRequest } from '../../core/scheduler/executor/length-request.ts';
import { Prng } from '../../util/prng.ts';
import type { FaultName, FaultPlan, FaultTimes } from './faults.ts';
import { FaultyNetwork, type Party } from './faulty-network.ts';
import { Injector } from './injector.ts';

type ToInstance = LengthEvent;
type ToConductor = ConductorEvent<LengthRequest>;

/** The simulation, as faults see it. */
export interface FaultyCluster {
  readonly instances: number;
  /** Instances lend memory to one another, and a gManager helps. */
  readonly lends: boolean;
  /** Of messages between the conductor and an instance. */
  readonly latencyUs: (instance: InstanceIndex) => number;
  readonly later: (delayUs: number, action: () => void) => void;
  readonly tellInstance: (instance: InstanceIndex, event: ToInstance) => void;
  readonly tellConductor: (event: ToConductor) => void;
  /** All that it had is gone; what it was doing has never been. */
  readonly clear: (instance: InstanceIndex, incarnation: number) => void;
  /** It runs. */
  readonly wake: (instance: InstanceIndex) => void;
  readonly slow: (instance: InstanceIndex, factor: number) => void;
  /** Flows between the two are at an end. */
  readonly breakFlows: (isBroken: (from: InstanceIndex, to: InstanceIndex) => boolean) => void;
  /** A conductor that knows nothing takes the place of the one that there is. */
  readonly restartConductor: () => void;
  readonly restartGManager: () => void;
}

/** Stream of the seed that nothing else draws from. */
const stream = 40;

export class FaultLayer {
  readonly times: FaultTimes;
  readonly injected = new Map<FaultName, number>();
  readonly #cluster: FaultyCluster;
  readonly #courier: FaultyNetwork;
  readonly #injector: Injector;
  readonly #up: boolean[];
  readonly #incarnations: number[];
  #healed = false;

  constructor(plan: FaultPlan, cluster: FaultyCluster) {
    const { instances, lends, later } = cluster;
    const managers: Party[] = lends ? ['conductor', 'gmanager'] : ['conductor'];
    this.times = plan.times;
    this.#cluster = cluster;
    this.#up = Array.from({ length: instances }, () => true);
    this.#incarnations = Array.from({ length: instances }, () => 0);
    const count = (fault: FaultName) => this.injected.set(fault, (this.injected.get(fault) ?? 0) + 1);
    this.#courier = new FaultyNetwork(new Prng(plan.seed, stream), plan.faults, later, count);
    this.#injector = new Injector(plan, {
      instances,
      parties: [...managers, ...this.#up.keys()],
      later,
      count,
      crash: (instance) => this.#crash(instance),
      start: (instance) => this.#start(instance),
      slow: cluster.slow,
      cut: (parties) => this.#cut(parties),
      join: (parties) => this.#courier.join(parties),
      restartConductor: cluster.restartConductor,
      restartGManager: cluster.restartGManager,
    });
  }

  /** What a message between two has taken, at most. */
  get longestUs(): number {
    return this.#courier.longestUs;
  }

  isUp(instance: InstanceIndex): boolean {
    return this.#up[instance];
  }

  incarnationOf(instance: InstanceIndex): number {
    return this.#incarnations[instance];
  }

  /** Both run, and nothing stands between them. */
  reaches(a: InstanceIndex, b: InstanceIndex): boolean {
    return this.#up[a] && this.#up[b] && this.#courier.canHear(a, b);
  }

  /** What instances and their gManager say about memory. */
  aboutMemory(from: Party, to: Party, latencyUs: number, deliver: () => void): void {
    this.#courier.send(from, to, latencyUs, deliver);
  }

  /** Nothing goes wrong any more, and whoever is down comes back. */
  heal(): void {
    this.#injector.stop();
    this.#courier.heal();
    for (let i = 0; i < this.#up.length; i++) this.#start(i);
    this.#healed = true;
  }

  toInstance(instance: InstanceIndex, event: ToInstance): void {
    this.#courier.send('conductor', instance, this.#cluster.latencyUs(instance), () =>
      this.#cluster.tellInstance(instance, event),
    );
  }

  toConductor(instance: InstanceIndex, event: ToConductor): void {
    const told = kept(event);
    this.#courier.send(instance, 'conductor', this.#cluster.latencyUs(instance), () =>
      this.#cluster.tellConductor(told),
    );
  }

  /** What peers say may go astray; what has been streamed arrives, or both ends know that it has not. */
  toPeer(from: InstanceIndex, to: InstanceIndex, event: ToInstance, latencyUs: number): void {
    if (event.kind === 'peer') {
      this.#courier.send(from, to, latencyUs, () => this.#cluster.tellInstance(to, event));
      return;
    }
    const incarnations = [this.#incarnations[from], this.#incarnations[to]];
    this.#cluster.later(latencyUs, () => {
      const same = this.#incarnations[from] === incarnations[0] && this.#incarnations[to] === incarnations[1];
      if (same && this.#courier.canHear(from, to)) this.#cluster.tellInstance(to, event);
      else if (event.kind === 'landed' && this.#incarnations[from] === incarnations[0])
        this.#cluster.tellInstance(from, { kind: 'streamBroken', id: event.id, to });
      else if (event.kind === 'activations') {
        const broken = { kind: 'streamBroken', id: event.id, to, passes: true } as const;
        if (this.#incarnations[from] === incarnations[0]) this.#cluster.tellInstance(from, broken);
        if (this.#incarnations[to] === incarnations[1]) this.#cluster.tellInstance(to, broken);
      } else if (event.kind === 'loaded' && this.#incarnations[to] === incarnations[1])
        this.#cluster.tellInstance(to, { ...event, to: 0 });
    });
  }

  #crash(instance: InstanceIndex): boolean {
    if (!this.#up[instance]) return false;
    this.#up[instance] = false;
    this.#incarnations[instance]++;
    this.#cluster.clear(instance, this.#incarnations[instance]);
    this.#cluster.breakFlows((from, to) => from === instance || to === instance);
    return true;
  }

  #start(instance: InstanceIndex): boolean {
    if (this.#up[instance] || this.#healed) return false;
    this.#up[instance] = true;
    this.#cluster.wake(instance);
    return true;
  }

  #cut(parties: readonly Party[]): void {
    this.#courier.cut(parties);
    this.#cluster.breakFlows((from, to) => !this.#courier.canHear(from, to));
  }
}

/** Arrays of journals are used again for the next. */
export function kept(event: ToConductor): ToConductor {
  if (event.kind !== 'journal') return event;
  const { words, stored, ...rest } = event.journal;
  return { ...event, journal: { ...rest, words: words.slice(), stored: stored.slice() } };
}
