// Flows over shared resources in simulated time: what has been offered leaves at a fair rate, as far as it has been produced.
import { type SharedFlow, shareFairly } from './fair-share.ts';

export type FlowId = number;

/** Less than this is nothing: rounding of rates. */
const byteMin = 0.5;

class Flow implements SharedFlow {
  readonly resources: readonly number[];
  demand = 0;
  rate = 0;
  /** Bytes that exist by `settledUs`, of which `sent` have left. */
  produced = 0;
  sent = 0;
  settledUs: number;
  /** Bytes come into being evenly until then, when so many will exist; no less than exist now. */
  producesUntilUs = 0;
  producedThen = 0;
  /** Nothing more will be offered. */
  complete = false;
  /** The event that stands in the heap for it. */
  nextUs = Number.POSITIVE_INFINITY;

  constructor(resources: readonly number[], nowUs: number) {
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

  /** When its demand changes next, were its rate to stay. */
  eventUs(): number {
    const produces = this.productionRate;
    const until = this.producesUntilUs > this.settledUs ? this.producesUntilUs : Number.POSITIVE_INFINITY;
    if (this.backlog <= 0 || this.rate <= produces) return until;
    return Math.min(until, this.settledUs + Math.ceil(this.backlog / (this.rate - produces)));
  }
}

/**
 * Rates are recomputed exactly over all flows that share something, directly or through others, whenever one of them begins, ends, runs
 * dry or has something again. Times are whole microseconds, rounded up.
 */
export class Flows {
  /** Bytes per microsecond of each resource. */
  readonly #capacity: (resource: number) => number;
  readonly #schedule: (timeUs: number, flow: FlowId) => void;
  readonly #flows: (Flow | undefined)[] = [];
  readonly #free: FlowId[] = [];
  readonly #users = new Map<number, Set<Flow>>();
  readonly #ids = new Map<Flow, FlowId>();

  /** @param schedule asks for `due` to be called at that time; a call too many does nothing */
  constructor(capacity: (resource: number) => number, schedule: (timeUs: number, flow: FlowId) => void) {
    this.#capacity = capacity;
    this.#schedule = schedule;
  }

  get size(): number {
    return this.#ids.size;
  }

  open(nowUs: number, resources: readonly number[]): FlowId {
    const flow = new Flow(resources, nowUs);
    const id = this.#free.pop() ?? this.#flows.length;
    this.#flows[id] = flow;
    this.#ids.set(flow, id);
    for (const resource of resources) {
      const users = this.#users.get(resource);
      if (users === undefined) this.#users.set(resource, new Set([flow]));
      else users.add(flow);
    }
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
    this.#share(nowUs, flow);
  }

  /** The flow ends where it is; returns how many bytes have left, rounded. */
  close(nowUs: number, id: FlowId): number {
    const flow = this.#at(id);
    const others = this.#component(flow);
    for (const other of others) other.settle(nowUs);
    this.#flows[id] = undefined;
    this.#free.push(id);
    this.#ids.delete(flow);
    for (const resource of flow.resources) this.#users.get(resource)?.delete(flow);
    others.delete(flow);
    this.#fill(nowUs, others);
    return Math.round(flow.sent);
  }

  /** Something changes at `nowUs`: true when all that was offered has left, and the flow is to be closed. */
  due(nowUs: number, id: FlowId): boolean {
    const flow = this.#flows[id];
    if (flow === undefined || flow.nextUs !== nowUs) return false;
    flow.nextUs = Number.POSITIVE_INFINITY;
    flow.settle(nowUs);
    if (flow.drained) return true;
    this.#share(nowUs, flow);
    return false;
  }

  #share(nowUs: number, flow: Flow): void {
    const component = this.#component(flow);
    for (const other of component) other.settle(nowUs);
    flow.demand = flow.backlog > 0 ? Number.POSITIVE_INFINITY : flow.productionRate;
    this.#fill(nowUs, component);
  }

  #fill(nowUs: number, component: ReadonlySet<Flow>): void {
    shareFairly([...component], this.#capacity);
    for (const flow of component) {
      const eventUs = flow.drained ? nowUs : flow.eventUs();
      if (eventUs === flow.nextUs) continue;
      flow.nextUs = eventUs;
      const id = this.#ids.get(flow);
      if (id !== undefined && eventUs < Number.POSITIVE_INFINITY) this.#schedule(eventUs, id);
    }
  }

  /** All flows that share something with this one, directly or through others. */
  #component(flow: Flow): Set<Flow> {
    const component = new Set([flow]);
    // A set hears of what is added while it is walked.
    for (const member of component) {
      for (const resource of member.resources) {
        for (const other of this.#users.get(resource) ?? []) component.add(other);
      }
    }
    return component;
  }

  #at(id: FlowId): Flow {
    const flow = this.#flows[id];
    if (flow === undefined) throw new Error(`Cannot use a flow: it is closed: flow ${id}`);
    return flow;
  }

  /** Throws unless no resource carries more than it can and every flow that could send does. */
  check(): void {
    for (const [resource, users] of this.#users) {
      let rate = 0;
      for (const flow of users) rate += flow.rate;
      const capacity = this.#capacity(resource);
      if (rate > capacity * (1 + 1e-9))
        throw new Error(`Flows broken: resource ${resource} carries ${rate} of ${capacity}`);
    }
    for (const flow of this.#ids.keys()) {
      if (flow.demand > 0 && flow.rate === 0)
        throw new Error(`Flows broken: one stands still with ${flow.backlog} bytes`);
    }
  }
}
