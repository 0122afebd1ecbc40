// The minimum cut of small random networks equals the best of all cuts.
import { expect, test } from 'vitest';
import { FlowNetwork } from '../../src/graph/min-cut.ts';
import { Prng } from '../../src/util/prng.ts';

interface Edge {
  readonly from: number;
  readonly to: number;
  readonly capacity: number;
}

const [source, sink] = [0, 1];

function networkOf(vertices: number, edges: readonly Edge[]): FlowNetwork {
  const network = new FlowNetwork();
  for (let vertex = 0; vertex < vertices; vertex++) expect(network.addVertex()).toBe(vertex);
  for (const { from, to, capacity } of edges) network.addEdge(from, to, capacity);
  return network;
}

/** The least weight of all cuts, and the fewest vertices on the source side of such a cut. */
function bestOfAllCuts(vertices: number, edges: readonly Edge[]): { readonly weight: number; readonly size: number } {
  let best = { weight: Number.POSITIVE_INFINITY, size: Number.POSITIVE_INFINITY };
  for (let others = 0; others < 2 ** (vertices - 2); others++) {
    const isBefore = (vertex: number): boolean =>
      vertex === source || (vertex !== sink && (others & (1 << (vertex - 2))) !== 0);
    const weight = edges.reduce(
      (sum, { from, to, capacity }) => sum + (isBefore(from) && !isBefore(to) ? capacity : 0),
      0,
    );
    const size = Array.from({ length: vertices }, (_, vertex) => vertex).filter(isBefore).length;
    if (weight < best.weight || (weight === best.weight && size < best.size)) best = { weight, size };
  }
  return best;
}

test('the cut has the least weight, and the smallest source side of such cuts', () => {
  const prng = new Prng(16, 1);
  let infinite = 0;
  for (let round = 0; round < 400; round++) {
    const vertices = prng.integer(2, 9);
    const edges = Array.from({ length: prng.integer(0, 24) }, () => ({
      from: prng.integer(0, vertices - 1),
      to: prng.integer(0, vertices - 1),
      capacity: prng.chance(0.1) ? Number.POSITIVE_INFINITY : prng.integer(0, 5),
    })).filter(({ from, to }) => from !== to);
    const best = bestOfAllCuts(vertices, edges);
    const network = networkOf(vertices, edges);
    if (best.weight === Number.POSITIVE_INFINITY) {
      infinite++;
      expect(() => network.minimumCut(source, sink)).toThrow('infinite capacity connects source and sink');
      continue;
    }
    const cut = network.minimumCut(source, sink);
    expect({ weight: cut.weight, size: cut.sourceSide.size }, `round ${round}`).toEqual(best);
  }
  expect(infinite).toBeGreaterThan(0);
});

test('a long chain is cut at its narrowest edge', () => {
  const length = 3000;
  const edges = Array.from({ length: length - 1 }, (_, i) => ({
    from: i === 0 ? source : i + 1,
    to: i === length - 2 ? sink : i + 2,
    capacity: i === 1700 ? 2 : 5,
  }));
  const cut = networkOf(length, edges).minimumCut(source, sink);
  expect(cut.weight).toBe(2);
  expect(cut.sourceSide.size).toBe(1701);
});
