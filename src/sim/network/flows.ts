// Flows over shared resources in simulated time: what has been offered leaves at a fair rate, as far as it has been produced.
import { type HeapOrder, IndexedHeap } from '../../util/indexed-heap.ts';
import { wideZero } from '../../util/wide-zero.ts';
import { FairShare, type SharedFlow, type SharedResource } from './fair-share.ts';

export type FlowId = number;

/** Less than this is nothing: rounding of rates. */
const byteMin = 0.5;
/** A rate that changes by less than this part of it has not changed: rounding of shares. */
const rateTolerance = 1e-12;

class Resource implements SharedResource {
  readonly name: number;
  /** Bytes per microsecond. */
  readonly capacity: number;
  readonly users: Flow[] = [];
  left: number = wideZero;
  open = 0;
  /** The last refresh that came by. */
  round = 0;

  constructor(name: number, capacity: number) {
    this.name = name;
    this.capacity = capacity;
  }
}

class Flow implements SharedFlow {
  readonly id: FlowId;
  readonly resources: readonly Resource[];
  demand: number = wideZero;
  share: number = wideZero;
  open = false;
  /** Bytes per microsecond at which it leaves. */
  rate: number = wideZero;
  /** More than its rate has changed since its next event was planned. */
  touched = false;
  round = 0;
  /** Bytes that exist by `settledUs`, of which `sent` have left. */
  produced: number = wideZero;
  sent: number = wideZero;
  settledUs: number = wideZero;
  /** Bytes come into being evenly until then, when so many will exist; no less than exist now. */
  producesUntilUs: number = wideZero;
  producedThen: number = wideZero;
  /** Nothing more will be offered. */
  complete = false;
  /** When it has to be looked at, were its rate to stay. */
  nextUs = Number.POSITIVE_INFINITY;

  constructor(id: FlowId, resources: readonly Resource[], nowUs: number) {
    this.id = id;
    this.resources = resources;
    this.settledUs = nowUs;
  }

  get productionRate(): number {
    const us = this.producesUntilUs - this.settledUs;
    return us > 0 ? (this.producedThen - this.produced) / us : 0;
  }

  get backlog(): number {
    return this.produced - this.sent;
  }

  get drained(): boolean {
    return this.complete && this.producesUntilUs <= this.settledUs && this.backlog < byteMin;
  }

  /** Bytes that have left by `nowUs`; it stays as it is. */
  sentBy(nowUs: number): number {
    const us = nowUs - this.settledUs;
    const produced = nowUs >= this.producesUntilUs ? this.producedThen : this.produced + this.productionRate * us;
    return Math.min(produced, this.sent + this.rate * us);
  }

  /** Brings it to `nowUs`, which no event of its own may lie before. */
  settle(nowUs: number): void {
    const us = nowUs - this.settledUs;
    if (us === 0) return;
    if (nowUs >= this.producesUntilUs) this.produced = this.producedThen;
    else this.produced += this.productionRate * us;
    this.sent = Math.min(this.produced, this.sent + this.rate * us);
    if (this.produced - this.sent < byteMin) this.sent = this.produced;
    this.settledUs = nowUs;
    this.demand = this.backlog > 0 ? Number.POSITIVE_INFINITY : this.productionRate;
  }

  /** When its demand changes next, were its rate to stay, or it has left. */
  eventUs(): number {
    if (this.drained) return this.settledUs;
    const produces = this.productionRate;
    const until = this.producesUntilUs > this.settledUs ? this.producesUntilUs : Number.POSITIVE_INFINITY;
    if (this.backlog <= 0 || this.rate <= produces) return until;
    return Math.min(until, this.settledUs + Math.ceil(this.backlog / (this.rate - produces)));
  }
}

/**
 * Rates are recomputed exactly over all flows that share something, directly or through others, whenever one of them begins, ends, runs
 * dry or has something again: once for all that changes at one time, in `refresh`. Times are whole microseconds, rounded up.
 */
export class Flows implements HeapOrder {
  /** Bytes per microsecond of each resource. */
  readonly #capacity: (resource: number) => number;
  readonly #flows: (Flow | undefined)[] = [];
  readonly #free: FlowId[] = [];
  /** Those that somebody uses, by name. */
  readonly #resources = new Map<number, Resource>();
  readonly #events: IndexedHeap;
  #room = 64;
  readonly #fair = new FairShare();
  /** Resources whose users changed since the last refresh, and when. */
  readonly #changed: Resource[] = [];
  #changedUs: number = wideZero;
  #round = 0;

  constructor(capacity: (resource: number) => number) {
    this.#capacity = capacity;
    this.#events = new IndexedHeap(this.#room, this);
  }

  /** Of the events. */
  before(a: FlowId, b: FlowId): boolean {
    const difference = this.#at(a).nextUs - this.#at(b).nextUs;
    return difference < 0 || (difference === 0 && a < b);
  }

  get size(): number {
    return this.#flows.length - this.#free.length;
  }

  /** Rates are to be refreshed before time goes on. */
  get changed(): boolean {
    return this.#changed.length > 0;
  }

  /** When `due` is to be called; after a refresh. */
  get nextUs(): number {
    const first = this.#events.peek();
    return first === undefined ? Number.POSITIVE_INFINITY : this.#at(first).nextUs;
  }

  open(nowUs: number, resources: readonly number[]): FlowId {
    const id = this.#free.pop() ?? this.#flows.length;
    const flow = new Flow(
      id,
      resources.map((name) => this.#resource(name)),
      nowUs,
    );
    this.#flows[id] = flow;
    if (id >= this.#room) {
      this.#room = 2 * id;
      this.#events.grow(this.#room);
    }
    for (const { users } of flow.resources) users.push(flow);
    return id;
  }

  /** Bytes more, which come into being evenly until `untilUs`: at once where that is now. With `last` nothing more will come. */
  offer(nowUs: number, id: FlowId, bytes: number, untilUs: number, last: boolean): void {
    const flow = this.#at(id);
    flow.settle(nowUs);
    flow.producedThen += bytes;
    if (untilUs > nowUs) flow.producesUntilUs = untilUs;
    else flow.produced += bytes;
    flow.complete ||= last;
    flow.demand = flow.backlog > 0 ? Number.POSITIVE_INFINITY : flow.productionRate;
    this.#touch(nowUs, flow);
  }

  /** The flow ends where it is; returns how many bytes have left, rounded. */
  close(nowUs: number, id: FlowId): number {
    const flow = this.#at(id);
    flow.settle(nowUs);
    this.#touch(nowUs, flow);
    this.#events.remove(id);
    this.#flows[id] = undefined;
    this.#free.push(id);
    for (const { users, name } of flow.resources) {
      const last = users.pop();
      if (last !== undefined && last !== flow) users[users.indexOf(flow)] = last;
      if (users.length === 0) this.#resources.delete(name);
    }
    return Math.round(flow.sent);
  }

  /** Bytes that have left by `nowUs`: looking changes nothing. */
  sentBy(nowUs: number, id: FlowId): number {
    return this.#at(id).sentBy(nowUs);
  }

  /** Looks at the flows that something happens to at `nowUs`: returns one that has left completely, to be closed, until there is none. */
  due(nowUs: number): FlowId | undefined {
    while (this.nextUs <= nowUs) {
      const id = this.#events.pop();
      if (id === undefined) return undefined;
      const flow = this.#at(id);
      flow.nextUs = Number.POSITIVE_INFINITY;
      flow.settle(nowUs);
      if (flow.drained) return id;
      this.#touch(nowUs, flow);
    }
    return undefined;
  }

  /** Rates follow what has changed. */
  refresh(): void {
    this.#round++;
    for (const resource of this.#changed) if (resource.round !== this.#round) this.#refreshAround(resource);
    this.#changed.length = 0;
  }

  #refreshAround(start: Resource): void {
    const [flows, resources] = this.#component(start);
    const nowUs = this.#changedUs;
    for (let i = 0; i < flows.length; i++) flows[i].settle(nowUs);
    this.#fair.share(flows, resources);
    for (let i = 0; i < flows.length; i++) {
      const flow = flows[i];
      if (!flow.touched && Math.abs(flow.share - flow.rate) <= rateTolerance * flow.rate) continue;
      flow.rate = flow.share;
      flow.touched = false;
      this.#plan(flow);
    }
  }

  #plan(flow: Flow): void {
    const { id } = flow;
    flow.nextUs = flow.eventUs();
    if (flow.nextUs === Number.POSITIVE_INFINITY) {
      this.#events.remove(id);
    } else if (this.#events.has(id)) {
      this.#events.moved(id);
    } else {
      this.#events.push(id);
    }
  }

  #touch(nowUs: number, flow: Flow): void {
    flow.touched = true;
    this.#changedUs = nowUs;
    for (const resource of flow.resources) this.#changed.push(resource);
  }

  /** All flows that share something with those of this resource, directly or through others, and all that they share. */
  #component(start: Resource): readonly [readonly Flow[], readonly Resource[]] {
    const flows: Flow[] = [];
    const resources = [start];
    start.round = this.#round;
    for (let r = 0; r < resources.length; r++) {
      for (const flow of resources[r].users) {
        if (flow.round === this.#round) continue;
        flow.round = this.#round;
        flows.push(flow);
        for (const resource of flow.resources) {
          if (resource.round === this.#round) continue;
          resource.round = this.#round;
          resources.push(resource);
        }
      }
    }
    return [flows, resources];
  }

  #resource(name: number): Resource {
    let resource = this.#resources.get(name);
    if (resource === undefined) {
      resource = new Resource(name, this.#capacity(name));
      this.#resources.set(name, resource);
    }
    return resource;
  }

  #at(id: FlowId): Flow {
    const flow = this.#flows[id];
    if (flow === undefined) throw new Error(`Cannot use a flow: it is closed: flow ${id}`);
    return flow;
  }

  /** After a refresh, throws unless no resource carries more than it can and every flow that could send does. */
  check(): void {
    if (this.changed) return;
    for (const { name, capacity, users } of this.#resources.values()) {
      let rate = 0;
      for (const flow of users) rate += flow.rate;
      if (rate > capacity * (1 + 1e-9))
        throw new Error(`Flows broken: resource ${name} carries ${rate} of ${capacity}`);
    }
    for (const flow of this.#flows) {
      if (flow !== undefined && flow.demand > 0 && flow.rate === 0)
        throw new Error(`Flows broken: one stands still with ${flow.backlog} bytes`);
    }
  }
}
