// The minimum cut of a directed network with capacities, by Dinic's maximum flow.

/** A vertex is an integer, in the order of `addVertex`. */
type Vertex = number;

interface Edge {
  readonly to: Vertex;
  /** Capacity that no flow uses yet. */
  free: number;
}

export interface MinimumCut {
  /** Sum of the capacities of the edges that leave `sourceSide`. */
  readonly weight: number;
  readonly sourceSide: ReadonlySet<Vertex>;
}

export class FlowNetwork {
  /** An edge and its reverse are neighbours: their ids differ in the lowest bit. */
  readonly #edges: Edge[] = [];
  /** Ids of the edges that leave each vertex, reverse edges included. */
  readonly #leaving: number[][] = [];

  addVertex(): Vertex {
    return this.#leaving.push([]) - 1;
  }

  /** An edge of infinite capacity is never cut: if `from` lies on the source side, `to` does. */
  addEdge(from: Vertex, to: Vertex, capacity: number): void {
    this.#leaving[from].push(this.#edges.push({ to, free: capacity }) - 1);
    this.#leaving[to].push(this.#edges.push({ to: from, free: 0 }) - 1);
  }

  /**
   * Of the cuts of minimum weight the one with the smallest source side. The flow stays in the network, so a network
   * can be cut once.
   * @throws Error if a path of infinite capacity connects source and sink
   */
  minimumCut(source: Vertex, sink: Vertex): MinimumCut {
    let weight = 0;
    for (;;) {
      const levels = this.#levels(source, sink);
      // The sink is out of reach: what the source still reaches is its side of the cut.
      if (!levels.has(sink)) return { weight, sourceSide: new Set(levels.keys()) };
      weight += this.#blockingFlow(source, sink, levels);
      if (weight === Number.POSITIVE_INFINITY)
        throw new Error('Cannot cut the network: a path of infinite capacity connects source and sink');
    }
  }

  /** Edges from the source to each vertex over free capacity, until the sink is reached. */
  #levels(source: Vertex, sink: Vertex): ReadonlyMap<Vertex, number> {
    const levels = new Map([[source, 0]]);
    for (const [vertex, level] of levels) {
      if (vertex === sink) break;
      for (const id of this.#leaving[vertex]) {
        const { to, free } = this.#edges[id];
        if (free > 0 && !levels.has(to)) levels.set(to, level + 1);
      }
    }
    return levels;
  }

  /** Adds flow along shortest paths until each of them has a full edge. */
  #blockingFlow(source: Vertex, sink: Vertex, levels: ReadonlyMap<Vertex, number>): number {
    /** Leaving edges of each vertex that lead no further. */
    const tried = this.#leaving.map(() => 0);
    const push = (vertex: Vertex, limit: number): number => {
      if (vertex === sink) return limit;
      const leaving = this.#leaving[vertex];
      for (; tried[vertex] < leaving.length; tried[vertex]++) {
        const id = leaving[tried[vertex]];
        const { to, free } = this.#edges[id];
        if (free === 0 || levels.get(to) !== (levels.get(vertex) ?? 0) + 1) continue;
        const pushed = push(to, Math.min(limit, free));
        if (pushed === 0) continue;
        this.#edges[id].free -= pushed;
        this.#edges[id ^ 1].free += pushed;
        return pushed;
      }
      return 0;
    };
    let flow = 0;
    for (;;) {
      const pushed = push(source, Number.POSITIVE_INFINITY);
      flow += pushed;
      if (pushed === 0 || flow === Number.POSITIVE_INFINITY) return flow;
    }
  }
}
