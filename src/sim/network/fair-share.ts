// Max-min fair rates: every flow has its demand, or the largest share on a resource that is full.

export interface SharedResource {
  readonly capacity: number;
  readonly users: readonly SharedFlow[];
  /** Scratch of `FairShare`: capacity left, and users with open shares. */
  left: number;
  open: number;
}

export interface SharedFlow {
  /** At least one; the flow uses each at its full rate. */
  readonly resources: readonly SharedResource[];
  /** Maximum usable rate. */
  demand: number;
  /** The computed rate. */
  share: number;
  /** Scratch of `FairShare`. */
  open: boolean;
}

/**
 * Progressive filling: all shares rise together. A flow stops at its demand, and the flows of a resource stop when it is full. Exact but for
 * rounding. A resource is examined when it may be the next to fill: O((flows + resources) log resources).
 */
export class FairShare {
  /** A heap of resources by the share of an open user, a lower bound from the last examination. */
  readonly #heap: SharedResource[] = [];
  #keys = new Float64Array(64);
  readonly #limited: SharedFlow[] = [];

  /** Sets the shares of all flows that use these resources. */
  share(flows: readonly SharedFlow[], resources: readonly SharedResource[]): void {
    this.#begin(flows, resources);
    const limited = this.#limited;
    let next = 0;
    for (;;) {
      while (next < limited.length && !limited[next].open) next++;
      const full = this.#firstToFill();
      if (full === undefined) return;
      const level = full.left / full.open;
      if (next < limited.length && limited[next].demand <= level) {
        close(limited[next], limited[next].demand);
        continue;
      }
      for (let i = 0; i < full.users.length; i++) if (full.users[i].open) close(full.users[i], level);
    }
  }

  #begin(flows: readonly SharedFlow[], resources: readonly SharedResource[]): void {
    const limited = this.#limited;
    limited.length = 0;
    for (let i = 0; i < flows.length; i++) {
      flows[i].open = true;
      if (flows[i].demand < Number.POSITIVE_INFINITY) limited.push(flows[i]);
    }
    limited.sort(byDemand);
    const heap = this.#heap;
    heap.length = resources.length;
    if (this.#keys.length < resources.length) this.#keys = new Float64Array(2 * resources.length);
    for (let i = 0; i < resources.length; i++) {
      const resource = resources[i];
      resource.left = resource.capacity;
      resource.open = resource.users.length;
      heap[i] = resource;
      this.#keys[i] = resource.left / resource.open;
    }
    for (let i = (heap.length >> 1) - 1; i >= 0; i--) this.#down(i);
  }

  /** The resource with the smallest share for its open users; undefined: no flow is open. */
  #firstToFill(): SharedResource | undefined {
    const heap = this.#heap;
    while (heap.length > 0) {
      const first = heap[0];
      const level = first.left / first.open;
      if (first.open > 0 && level <= this.#keys[0]) return first;
      if (first.open > 0) {
        // Other flows have used less than their share of it since.
        this.#keys[0] = level;
      } else {
        const last = heap.pop();
        if (last === undefined || heap.length === 0) return undefined;
        heap[0] = last;
        this.#keys[0] = this.#keys[heap.length];
      }
      this.#down(0);
    }
    return undefined;
  }

  #down(from: number): void {
    const heap = this.#heap;
    const keys = this.#keys;
    const moved = heap[from];
    const key = keys[from];
    let position = from;
    for (;;) {
      let child = 2 * position + 1;
      if (child >= heap.length) break;
      if (child + 1 < heap.length && keys[child + 1] < keys[child]) child++;
      if (keys[child] >= key) break;
      heap[position] = heap[child];
      keys[position] = keys[child];
      position = child;
    }
    heap[position] = moved;
    keys[position] = key;
  }
}

function byDemand(a: SharedFlow, b: SharedFlow): number {
  return a.demand - b.demand;
}

function close(flow: SharedFlow, share: number): void {
  flow.share = share;
  flow.open = false;
  for (let i = 0; i < flow.resources.length; i++) {
    const resource = flow.resources[i];
    resource.left = Math.max(0, resource.left - share);
    resource.open--;
  }
}
