// Max-min fair rates: every flow gets what it can use, or as much as any other on a resource that is full.

export interface SharedFlow {
  /** Resources that it passes, each at its full rate. */
  readonly resources: readonly number[];
  /** Most it can use. */
  demand: number;
  rate: number;
}

/**
 * Sets the rates of flows that share the resources with nobody else, by progressive filling: all rates rise together; a flow stops at its
 * demand, and every flow on a resource stops when that is full. Exact but for rounding.
 */
export function shareFairly(flows: readonly SharedFlow[], capacity: (resource: number) => number): void {
  const left = new Map<number, number>();
  const users = new Map<number, number>();
  for (const flow of flows) {
    for (const resource of flow.resources) {
      left.set(resource, capacity(resource));
      users.set(resource, (users.get(resource) ?? 0) + 1);
    }
  }
  const fix = (flow: SharedFlow, rate: number) => {
    flow.rate = rate;
    for (const resource of flow.resources) {
      left.set(resource, Math.max(0, (left.get(resource) ?? 0) - rate));
      users.set(resource, (users.get(resource) ?? 1) - 1);
    }
  };
  let open = [...flows];
  while (open.length > 0) {
    const share = (flow: SharedFlow) =>
      flow.resources.reduce((least, at) => Math.min(least, (left.get(at) ?? 0) / (users.get(at) ?? 1)), flow.demand);
    const shares = open.map(share);
    const least = shares.reduce((a, b) => Math.min(a, b));
    // Whoever stops at this level: those that can use no more, and those on a resource that it fills.
    const stops = open.filter((_, i) => shares[i] === least);
    open = open.filter((_, i) => shares[i] !== least);
    for (const flow of stops) fix(flow, least);
  }
}
