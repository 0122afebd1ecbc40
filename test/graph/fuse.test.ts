// Graph passes: what they merge and what they must not change.
import { expect, test } from 'vitest';
import { GraphBuilder } from '../../src/graph/builder.ts';
import { fuse, fuseResidualAdds, mergeLinears, narrowToLogitRows } from '../../src/graph/fuse.ts';
import { type Graph, type Node, nodeInputs, nodeOutputs, tensorSpec } from '../../src/graph/graph.ts';
import { buildGraph } from '../../src/models/registry.ts';
import { smallConfig } from '../models/configs.ts';

const shape = { heads: 2, kvHeads: 1, headDim: 8 };

function kinds(graph: Graph): Node['kind'][] {
  return graph.nodes.map((node) => node.kind);
}

/** Checks that every tensor is written once, before it is read, and that the rows of each node agree. */
function check(graph: Graph): void {
  const written = new Set<number>();
  for (const node of graph.nodes) {
    for (const x of nodeInputs(node)) expect(written).toContain(x);
    for (const out of nodeOutputs(node)) {
      expect(written).not.toContain(out);
      written.add(out);
    }
    const rows = new Set([...nodeInputs(node), ...nodeOutputs(node)].map((tensor) => tensorSpec(graph, tensor).rows));
    expect([...rows]).toEqual(node.kind === 'gather' ? ['token', 'logit'] : [[...rows][0]]);
  }
  expect(written).toContain(graph.logits);
}

test('fusion leaves eight nodes a layer, in a valid order', () => {
  const graph = fuse(buildGraph(smallConfig));
  check(graph);
  const layer = ['norm', 'linear', 'attention', 'linear', 'norm', 'linear', 'glu', 'linear'];
  const last = ['norm', 'linear', 'attention', 'gather', 'linear', 'gather', 'norm', 'linear', 'glu', 'linear'];
  expect(kinds(graph)).toEqual(['embed', ...layer, ...layer, ...last, 'norm', 'linear']);
});

test('rows that attention needs stay; other nodes run on logit rows', () => {
  const graph = narrowToLogitRows(buildGraph(smallConfig));
  check(graph);
  const lastAttention = graph.nodes.findLastIndex((node) => node.kind === 'attention');
  for (const [index, node] of graph.nodes.entries()) {
    const rows = tensorSpec(graph, node.kind === 'norm' ? node.out : nodeOutputs(node)[0]).rows;
    expect(rows).toBe(index <= lastAttention ? 'token' : 'logit');
  }
  expect(tensorSpec(graph, graph.logits ?? -1)).toEqual({ rows: 'logit', columns: 96 });
});

test('q, k and v become one linear of three segments, in that order; gate and up one of two', () => {
  const graph = mergeLinears(buildGraph(smallConfig));
  const merged = graph.nodes
    .filter((node) => node.kind === 'linear')
    .map((node) => node.segments.map(({ rows }) => rows));
  expect(merged.slice(0, 4)).toEqual([[64, 32, 32], [64], [160, 160], [64]]);
});

test('a linear with a second reader is not merged', () => {
  const b = new GraphBuilder();
  const x = b.embed('embed', 10, 16);
  const gate = b.linear(x, 'gate', 16);
  const up = b.linear(x, 'up', 16);
  const graph = b.head(b.add(gate, b.glu([gate, up], 'silu')), 'head', 10);
  expect(kinds(mergeLinears(graph))).toEqual(kinds(graph));
});

test('linears with different inputs are not merged', () => {
  const b = new GraphBuilder();
  const x = b.embed('embed', 10, 16);
  const y = b.rmsNorm(x, 'gain', { eps: 1e-5 });
  const graph = b.head(b.glu([b.linear(x, 'gate', 16), b.linear(y, 'up', 16)], 'silu'), 'head', 10);
  expect(kinds(mergeLinears(graph))).toEqual(kinds(graph));
});

test('an add is not fused when the residual is read again later', () => {
  const b = new GraphBuilder();
  const x = b.embed('embed', 10, 16);
  const sum = b.add(x, b.linear(x, 'w', 16));
  const y = b.rmsNorm(sum, 'gain', { eps: 1e-5 });
  const graph = b.head(b.add(y, x), 'head', 10);
  expect(kinds(fuseResidualAdds(graph))).toContain('add');
});

test('attention with the wrong number of columns is refused', () => {
  const b = new GraphBuilder();
  const x = b.embed('embed', 10, 16);
  expect(() => b.attention([b.linear(x, 'qkv', 40)], { ...shape, rope: undefined })).toThrow(
    'q, k and v have 40 columns',
  );
});
