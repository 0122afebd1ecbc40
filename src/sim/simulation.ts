// The simulator: carries the machines' effects out by turning each into a future event. It decides nothing.
import { Conductor, type InstanceRole } from '../cluster/conductor.ts';
import type { ConductorEffect, InstanceEffect } from '../cluster/effects.ts';
import type { PoolLoads } from '../cluster/gate.ts';
import { type AdmissionSettings, admissionConfig, type SloRule, sloRule } from '../cluster/length-admission.ts';
import {
  createLengthInstance,
  type LengthInstance,
  type LengthInstanceConfig,
  LengthRequest,
  lengthJobs,
  lengthPlacement,
} from '../cluster/length-work.ts';
import type { ConductorEvent, InstanceEvent, InstanceIndex } from '../cluster/messages.ts';
import type { PipelineSettings, PlacementSettings } from '../cluster/placer.ts';
import type { GenerationEvent, InstanceSnapshot } from '../cluster/ports.ts';
import type { TraceRequest } from '../trace/request.ts';
import { Float64Pool } from '../util/float64-pool.ts';
import { EventHeap } from './event-heap.ts';
import { SimulatedExecutor, type StepWatch } from './executor.ts';
import { type ByteKind, Network, type Nic } from './network/network.ts';
import { Outcome } from './outcome.ts';
import { Retries, type RetrySettings } from './retries.ts';
import type { SsdRates } from './ssd.ts';
import { Streams } from './streams.ts';
import { SimulatedTiers } from './tiers.ts';

export interface InstanceSpec {
  readonly role: InstanceRole;
  readonly machine: Omit<LengthInstanceConfig, 'queueMax'>;
  readonly nic: Nic;
  /** What its SSD reads and writes, where blocks are kept there. */
  readonly ssd?: SsdRates | undefined;
}

export interface SimulationConfig {
  readonly instances: readonly InstanceSpec[];
  /** Between two instances, where that is less than their NICs. */
  readonly linkBytesPerSecond: number | undefined;
  readonly blockTokens: number;
  /** Requests accepted at once, over all instances. */
  readonly queueMax: number;
  readonly placement: PlacementSettings;
  readonly admission: AdmissionSettings;
  /** Undefined: who is refused does not come again. */
  readonly retries?: RetrySettings | undefined;
  /** Groups of instances that prefill compute long prompts together; undefined: none does. */
  readonly pipeline?: PipelineSettings | undefined;
  /** Every machine checks itself after every event. */
  readonly checking: boolean;
  /** Hears of every step. */
  readonly watch?: StepWatch | undefined;
}

type Effect = InstanceEffect<undefined, LengthRequest>;

/** What comes after the events of instances, in their order: the network's, and then messages. */
const networkNumber = 0;
const firstMessage = 1;

/**
 * Pure: a run is a function of its configuration and trace. At one time steps end first, in the order of their instances, then flows change,
 * then messages arrive in the order in which they left, then requests come.
 */
export class Simulation {
  readonly outcome = new Outcome();
  readonly #config: SimulationConfig;
  readonly #conductor: Conductor<LengthRequest>;
  readonly #instances: readonly LengthInstance[];
  /** (instances): when each is to be woken. */
  readonly #wakeUs: Float64Array;
  readonly #executors: readonly SimulatedExecutor[];
  readonly #network: Network;
  readonly #streams: Streams;
  readonly #tiers: SimulatedTiers;
  readonly #live = new Map<string, LengthRequest>();
  readonly #heap = new EventHeap();
  /** On their way to an instance, by number. */
  readonly #messages = new Map<
    number,
    { readonly to: InstanceIndex; readonly event: InstanceEvent<LengthRequest, undefined> }
  >();
  #messageNumber = 0;
  /** Who come again, by the numbers of their events. */
  readonly #comingAgain = new Map<number, number>();
  readonly #sloOf: SloRule;
  /** Some wait for their tokens: the loads of the pools are looked at. */
  readonly #watched: boolean;
  readonly #gaps = new Float64Pool();
  #nowUs = 0;
  /** When the network is looked at next: it stands in the heap. */
  #networkUs = Number.POSITIVE_INFINITY;

  constructor(config: SimulationConfig) {
    this.#config = config;
    this.outcome.retries = config.retries && new Retries(config.retries);
    const { instances, linkBytesPerSecond } = config;
    this.#instances = instances.map(({ machine }) =>
      createLengthInstance({ ...machine, queueMax: Number.MAX_SAFE_INTEGER }),
    );
    this.#wakeUs = new Float64Array(instances.length).fill(Number.POSITIVE_INFINITY);
    this.#executors = instances.map(
      ({ machine }, index) => new SimulatedExecutor(machine, this.#heap, index, config.watch),
    );
    this.#network = new Network({ nics: instances.map(({ nic }) => nic), linkBytesPerSecond });
    const costs = instances.map(({ machine }) => machine.cost);
    this.#streams = new Streams(this.#network, costs, {
      post: (from, to, event) => this.#post(from, to, event),
      tell: (index, event) => this.#tellInstance(index, event),
    });
    const tiered = instances.map(({ ssd }, i) => {
      const bytesPerToken = costs[i].kvBytesPerToken;
      return { bytesPerToken, blockBytes: bytesPerToken * config.blockTokens, ssd };
    });
    this.#tiers = new SimulatedTiers(tiered, (timeUs, to, event) => this.#send(to, event, timeUs - this.#nowUs));
    this.#sloOf = sloRule(config.admission, instances);
    this.#watched = config.admission.slo !== undefined || config.admission.classes !== undefined;
    this.#conductor = new Conductor({
      instances: this.#instances.map(({ capacityTokens }, i) => ({ capacityTokens, role: instances[i].role })),
      queueMax: config.queueMax,
      size: ({ size }) => size,
      placement: lengthPlacement(config.placement, instances, linkBytesPerSecond, config.pipeline),
      admission: admissionConfig(
        config.admission,
        this.#sloOf,
        instances,
        this.#instances.map(({ capacityTokens }) => capacityTokens),
        linkBytesPerSecond,
      ),
      jobs: lengthJobs(instances),
    });
  }

  get nowUs(): number {
    return this.#nowUs;
  }

  /** Requests that came and have not ended. */
  get live(): number {
    return this.#live.size;
  }

  /** When the next thing happens; Infinity when nothing is left to happen. */
  get nextUs(): number {
    if (this.#network.changed && this.#heap.nextUs > this.#nowUs) {
      // All that changes at one time has changed.
      this.#network.refresh();
      if (this.#config.checking) this.#network.check();
      this.#scheduleNetwork();
    }
    return this.#heap.nextUs;
  }

  #scheduleNetwork(): void {
    const { nextUs } = this.#network;
    if (nextUs >= this.#networkUs) return;
    this.#networkUs = nextUs;
    this.#heap.push(nextUs, this.#instances.length + networkNumber);
  }

  /** How every instance stands. */
  snapshots(): readonly InstanceSnapshot[] {
    return this.#instances.map((instance) => instance.snapshot());
  }

  /** Of the pools that prefill and decode; undefined when nobody has an SLO. Everything before `nowUs` has happened. */
  loads(nowUs: number): PoolLoads | undefined {
    return this.#conductor.loads(nowUs);
  }

  /** So far, over the network. */
  get bytesMoved(): Readonly<Record<ByteKind, number>> {
    return this.#network.moved;
  }

  /** A request arrives; everything due before it happens first. */
  arrive(trace: TraceRequest): void {
    if (this.#watched) this.#lookUntil(trace.arrivalUs);
    this.advance(trace.arrivalUs);
    this.#submit(trace, String(trace.index));
  }

  #submit(trace: TraceRequest, name: string): void {
    this.#nowUs = trace.arrivalUs;
    const request = new LengthRequest(trace, this.#config.blockTokens, this.#gaps, name);
    if (trace.pinUs !== undefined) {
      this.#tellConductor({ kind: 'pin', id: name, request, ttlUs: trace.pinUs });
      return;
    }
    request.slo = trace.batch === true ? undefined : this.#sloOf(trace, trace.outputTokens);
    this.#live.set(request.id, request);
    this.#tellConductor({ kind: 'submit', request });
  }

  /** Looks at the loads of the pools at equal distances. */
  #lookUntil(timeUs: number): void {
    const { swing } = this.outcome;
    while (swing.nextUs < timeUs) {
      const atUs = swing.nextUs;
      this.advance(atUs);
      swing.look(this.#conductor.loads(atUs));
    }
  }

  /** No request comes any more: runs until nothing is left to happen. */
  finish(): void {
    this.advance(Number.POSITIVE_INFINITY);
    this.outcome.inlinePrefills = this.#conductor.inlinePrefills;
    this.outcome.tiers = this.#tiers.figures(this.snapshots(), this.outcome.cachedTokens, this.#config.blockTokens);
    this.outcome.groupPrefills = this.#conductor.groupPrefills;
    this.outcome.close(this.#nowUs, this.#instances, this.#network.moved, this.#conductor.blocks);
  }

  /** Everything due up to and at `timeUs` happens: looking at the state in between changes nothing. */
  advance(timeUs: number): void {
    const heap = this.#heap;
    while (this.nextUs <= timeUs) {
      if (heap.size === 0) return;
      this.#nowUs = heap.nextUs;
      const key = heap.nextKey;
      heap.pop();
      if (key < this.#instances.length) this.#stepEnds(key);
      else this.#networkEvent(key - this.#instances.length);
    }
  }

  #stepEnds(index: InstanceIndex): void {
    const ended = this.#executors[index].due(this.#nowUs);
    if (ended !== undefined) this.#tellInstance(index, ended);
    if (this.#instances[index].nextUs <= this.#nowUs) this.#tellInstance(index, { kind: 'wake' });
  }

  /** A flow changes, or a message arrives. */
  #networkEvent(number: number): void {
    if (number === networkNumber) {
      // Else an earlier time has taken its place since.
      if (this.#networkUs === this.#nowUs) this.#networkDue();
      return;
    }
    const message = this.#messages.get(number);
    this.#messages.delete(number);
    if (message !== undefined) this.#tellInstance(message.to, message.event);
    const { retries } = this.outcome;
    const again = this.#comingAgain.get(number);
    if (again === undefined || retries === undefined) return;
    this.#comingAgain.delete(number);
    const { trace, name } = retries.come(again);
    this.#submit(trace, name);
  }

  #comesAgain(request: LengthRequest, atUs: number): void {
    const number = firstMessage + this.#messageNumber++;
    this.#comingAgain.set(number, request.trace.index);
    this.#heap.push(atUs, this.#instances.length + number);
  }

  #networkDue(): void {
    this.#networkUs = Number.POSITIVE_INFINITY;
    this.#streams.due(this.#nowUs);
    this.#scheduleNetwork();
  }

  #post(from: InstanceIndex, to: InstanceIndex, event: InstanceEvent<LengthRequest, undefined>): void {
    this.#send(to, event, this.#network.latencyUs(from, to));
  }

  #send(to: InstanceIndex, event: InstanceEvent<LengthRequest, undefined>, latencyUs: number): void {
    const number = firstMessage + this.#messageNumber++;
    this.#messages.set(number, { to, event });
    this.#heap.push(this.#nowUs + latencyUs, this.#instances.length + number);
  }

  #tellConductor(event: ConductorEvent<LengthRequest>): void {
    const effects = this.#conductor.step(this.#nowUs, event);
    if (this.#config.checking) this.#conductor.check();
    for (const effect of effects) this.#conduct(effect);
  }

  #conduct(effect: ConductorEffect<LengthRequest>): void {
    switch (effect.kind) {
      case 'forward': {
        const { instance, request, decodeAt, predicted, prefix, group } = effect;
        request.predicted = predicted;
        const event = { kind: 'submit', request, decodeAt, prefix, group } as const;
        // A job may be sent because another instance's step ended: whatever else ends now comes first.
        if (request.trace.batch === true) this.#send(instance, event, 0);
        else this.#tellInstance(instance, event);
        break;
      }
      case 'emit':
        this.#hear(effect.id, effect.event);
        break;
      case 'cancel':
        this.#tellInstance(effect.instance, { kind: 'cancel', id: effect.id });
        break;
      case 'askBlocks':
        this.#tellInstance(effect.instance, { kind: 'tellBlocks' });
        break;
      case 'pin':
      case 'unpin':
        this.#tellInstance(effect.instance, effect);
        break;
      case 'pinTold':
        this.outcome.pins[effect.state.kind]++;
        break;
      case 'ignored':
      case 'drained':
        break;
    }
  }

  #tellInstance(index: InstanceIndex, event: InstanceEvent<LengthRequest, undefined>): void {
    const effects = this.#instances[index].step(this.#nowUs, event);
    if (this.#config.checking) this.#instances[index].check();
    for (const effect of effects) this.#perform(index, effect);
    this.#scheduleWake(index);
  }

  /** A wake that comes too early, or after another, finds nothing to do. */
  #scheduleWake(index: InstanceIndex): void {
    const { nextUs } = this.#instances[index];
    if (nextUs === this.#wakeUs[index]) return;
    this.#wakeUs[index] = nextUs;
    if (nextUs < Number.POSITIVE_INFINITY) this.#heap.push(nextUs, index);
  }

  #perform(index: InstanceIndex, effect: Effect): void {
    switch (effect.kind) {
      case 'runStep':
        this.#executors[index].run(this.#nowUs, effect);
        this.#tiers.ran(index, effect, this.#executors[index].exposedUs);
        break;
      case 'endRun':
        this.#executors[index].endRun(this.#nowUs);
        break;
      case 'emit':
        this.#tellConductor({ kind: 'heard', instance: index, id: effect.id, event: effect.event });
        break;
      case 'prefilled':
        this.#tellConductor({ kind: 'prefilled', instance: index, id: effect.id });
        break;
      case 'send':
        this.#post(index, effect.to, { kind: 'peer', from: index, message: effect.message });
        break;
      case 'stream':
        this.#streams.handOff(this.#nowUs, index, effect, this.#executors[index].endsUs);
        break;
      case 'pass':
      case 'streamPrefix':
      case 'stopStream':
        this.#streams.carry(this.#nowUs, index, effect);
        break;
      case 'readSsd':
        this.#tiers.read(this.#nowUs, index, effect);
        break;
      case 'writeSsd':
        this.#tiers.write(this.#nowUs, index, effect);
        break;
      case 'journal':
        this.#tellConductor({ kind: 'journal', instance: index, journal: effect.journal });
        break;
      case 'snapshot':
        this.#tellConductor({ kind: 'snapshot', instance: index, snapshot: effect.snapshot });
        break;
      case 'letGo':
        this.#tellConductor({ kind: 'letGo', instance: index, id: effect.id, why: effect.why });
        break;
      case 'pinTold':
        this.#tellConductor({ ...effect, instance: index });
        break;
      case 'report':
        this.#tellConductor({ kind: 'report', instance: index, report: effect.report });
        break;
      case 'abortStep':
        this.#executors[index].abort(this.#nowUs);
        break;
      case 'ignored':
        break;
      case 'fault':
        throw new Error(effect.message);
    }
  }

  /** A client hears of its request. */
  #hear(id: string, event: GenerationEvent): void {
    if (event.kind !== 'finished' && event.kind !== 'failed') return;
    const request = this.#live.get(id);
    if (request === undefined) throw new Error(`Simulation broken: request ${id} ended twice`);
    this.#live.delete(id);
    if (event.kind === 'finished') this.outcome.completed(request);
    else {
      const againUs = this.outcome.failed(this.#nowUs, request, event);
      if (againUs !== undefined) this.#comesAgain(request, againUs);
    }
    request.release();
  }
}
