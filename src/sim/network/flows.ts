// Flows over shared resources in simulated time: offered bytes leave at a fair rate, once they have been produced.
import { type HeapOrder, IndexedHeap } from '../../util/indexed-heap.ts';
import { wideZero } from '../../util/wide-zero.ts';
import { FairShare, type SharedFlow, type SharedResource } from './fair-share.ts';

export type FlowId = number;

/** Smaller amounts count as zero: rounding of rates. */
const byteMin = 0.5;
/** Relative change of a rate that counts as none: rounding of shares. */
const rateTolerance = 1e-12;

class Resource implements SharedResource {
  readonly name: number;
  /** Bytes per microsecond. */
  readonly capacity: number;
  readonly users: Flow[] = [];
  left: number = wideZero;
  open = 0;
  /** The last refresh that visited it. */
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
  /** Bytes per microsecond. */
  rate: number = wideZero;
  /** Its next event must be planned again even if its rate stays. */
  touched = false;
  round = 0;
  /** Bytes produced by `updatedUs`, of which `sent` have left. */
  produced: number = wideZero;
  sent: number = wideZero;
  updatedUs: number = wideZero;
  /** Bytes are produced at a constant rate until then, up to `producedThen`. */
  producesUntilUs: number = wideZero;
  producedThen: number = wideZero;
  /** No more bytes will be offered. */
  complete = false;
  /** Its next event at the present rate. */
  nextUs = Number.POSITIVE_INFINITY;

  constructor(id: FlowId, resources: readonly Resource[], nowUs: number) {
    this.id = id;
    this.resources = resources;
    this.updatedUs = nowUs;
  }

  get productionRate(): number {
    const us = this.producesUntilUs - this.updatedUs;
    return us > 0 ? (this.producedThen - this.produced) / us : 0;
  }

  get backlog(): number {
    return this.produced - this.sent;
  }

  get drained(): boolean {
    return this.complete && this.producesUntilUs <= this.updatedUs && this.backlog < byteMin;
  }

  /** Bytes that have left by `nowUs`, without a change of state. */
  sentBy(nowUs: number): number {
    const us = nowUs - this.updatedUs;
    const produced = nowUs >= this.producesUntilUs ? this.producedThen : this.produced + this.productionRate * us;
    return Math.min(produced, this.sent + this.rate * us);
  }

  /** Advances the flow to `nowUs`. It must have no event before that time. */
  advanceTo(nowUs: number): void {
    const us = nowUs - this.updatedUs;
    if (us === 0) return;
    if (nowUs >= this.producesUntilUs) this.produced = this.producedThen;
    else this.produced += this.productionRate * us;
    this.sent = Math.min(this.produced, this.sent + this.rate * us);
    if (this.produced - this.sent < byteMin) this.sent = this.produced;
    this.updatedUs = nowUs;
    this.demand = this.backlog > 0 ? Number.POSITIVE_INFINITY : this.productionRate;
  }

  /** When its demand changes or its last byte leaves, at the present rate. */
  eventUs(): number {
    if (this.drained) return this.updatedUs;
    const produces = this.productionRate;
    const until = this.producesUntilUs > this.updatedUs ? this.producesUntilUs : Number.POSITIVE_INFINITY;
    if (this.backlog <= 0 || this.rate <= produces) return until;
    return Math.min(until, this.updatedUs + Math.ceil(this.backlog / (this.rate - produces)));
  }
}

/**
 * When a flow begins, ends, runs dry or has bytes again, the rates of all flows connected to it by shared resources are recomputed exactly:
 * once for all changes of one time, in `refresh`. Times are whole microseconds, rounded up.
 */
export class Flows implements HeapOrder {
  /** Bytes per microsecond of each resource. */
  readonly #capacity: (resource: number) => number;
  readonly #flows: (Flow | undefined)[] = [];
  readonly #free: FlowId[] = [];
  /** Resources in use, by name. */
  readonly #resources = new Map<number, Resource>();
  readonly #events: IndexedHeap;
  #heapCapacity = 64;
  readonly #fair = new FairShare();
  /** Resources with changes since the last refresh, and the time of the changes. */
  readonly #changed: Resource[] = [];
  #changedUs: number = wideZero;
  #round = 0;

  constructor(capacity: (resource: number) => number) {
    this.#capacity = capacity;
    this.#events = new IndexedHeap(this.#heapCapacity, this);
  }

  /** The order of events. */
  before(a: FlowId, b: FlowId): boolean {
    const difference = this.#at(a).nextUs - this.#at(b).nextUs;
    return difference < 0 || (difference === 0 && a < b);
  }

  get size(): number {
    return this.#flows.length - this.#free.length;
  }

  /** True if `refresh` must run before time advances. */
  get changed(): boolean {
    return this.#changed.length > 0;
  }

  /** The time of the next `due`; valid after a refresh. */
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
    if (id >= this.#heapCapacity) {
      this.#heapCapacity = 2 * id;
      this.#events.grow(this.#heapCapacity);
    }
    for (const { users } of flow.resources) users.push(flow);
    return id;
  }

  /** Adds bytes that are produced at a constant rate until `untilUs`, or at once. @param last no more will be offered */
  offer(nowUs: number, id: FlowId, bytes: number, untilUs: number, last: boolean): void {
    const flow = this.#at(id);
    flow.advanceTo(nowUs);
    flow.producedThen += bytes;
    if (untilUs > nowUs) flow.producesUntilUs = untilUs;
    else flow.produced += bytes;
    flow.complete ||= last;
    flow.demand = flow.backlog > 0 ? Number.POSITIVE_INFINITY : flow.productionRate;
    this.#touch(nowUs, flow);
  }

  /** Ends the flow. Returns the bytes that have left, rounded. */
  close(nowUs: number, id: FlowId): number {
    const flow = this.#at(id);
    flow.advanceTo(nowUs);
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

  /** Bytes that have left by `nowUs`, without a change of state. */
  sentBy(nowUs: number, id: FlowId): number {
    return this.#at(id).sentBy(nowUs);
  }

  /** Handles the events of `nowUs` until a flow has left completely, and returns it to be closed; undefined: no event is left. */
  due(nowUs: number): FlowId | undefined {
    while (this.nextUs <= nowUs) {
      const id = this.#events.pop();
      if (id === undefined) return undefined;
      const flow = this.#at(id);
      flow.nextUs = Number.POSITIVE_INFINITY;
      flow.advanceTo(nowUs);
      if (flow.drained) return id;
      this.#touch(nowUs, flow);
    }
    return undefined;
  }

  /** Recomputes the rates that the changes affect. */
  refresh(): void {
    this.#round++;
    for (const resource of this.#changed) if (resource.round !== this.#round) this.#refreshAround(resource);
    this.#changed.length = 0;
  }

  #refreshAround(start: Resource): void {
    const [flows, resources] = this.#component(start);
    const nowUs = this.#changedUs;
    for (let i = 0; i < flows.length; i++) flows[i].advanceTo(nowUs);
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

  /** The flows connected to this resource by shared resources, and those resources. */
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

  /** After a refresh: throws unless every resource is within its capacity and every flow with demand has a rate. */
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
        throw new Error(`Flows broken: flow ${flow.id} has no rate and ${flow.backlog} bytes left`);
    }
  }
}
