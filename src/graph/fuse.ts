// Graph passes that reduce the work of a step and change no value: fewer rows, fewer products, less memory traffic.
import {
  type Graph,
  type Node,
  nodeInputs,
  nodeOutputs,
  readersOf,
  type TensorId,
  type TensorSpec,
  tensorSpec,
  withInputs,
} from './graph.ts';

export function fuse(graph: Graph): Graph {
  return fuseResidualAdds(mergeLinears(narrowToLogitRows(graph)));
}

/**
 * Runs nodes that attention does not depend on for logit rows only: the head, the final norm, the last layer's MLP and
 * output projection.
 */
export function narrowToLogitRows(graph: Graph): Graph {
  const everyRow = tensorsForAttention(graph);
  const tensors: TensorSpec[] = graph.tensors.map((spec, id) => (everyRow.has(id) ? spec : { ...spec, rows: 'logit' }));
  const gathered = new Map<TensorId, TensorId>();
  const nodes: Node[] = [];
  for (const node of graph.nodes) {
    if (nodeOutputs(node).every((out) => everyRow.has(out))) {
      nodes.push(node);
      continue;
    }
    for (const x of nodeInputs(node)) {
      if (!everyRow.has(x) || gathered.has(x)) continue;
      const out = tensors.push({ rows: 'logit', columns: tensorSpec(graph, x).columns }) - 1;
      nodes.push({ kind: 'gather', x, out });
      gathered.set(x, out);
    }
    nodes.push(withInputs(node, (x) => gathered.get(x) ?? x));
  }
  return { ...graph, tensors, nodes };
}

/** Nodes with rows of every token, whatever reads their output. */
const ofEveryToken: ReadonlySet<Node['kind']> = new Set(['attention', 'sendQ', 'sendKV', 'waitPartial']);

/** Attention stores K and V of every token, so all of its ancestors need every token's row. */
function tensorsForAttention(graph: Graph): ReadonlySet<TensorId> {
  const needed = new Set<TensorId>([...graph.inputs, ...graph.outputs]);
  for (const node of [...graph.nodes].reverse()) {
    if (!ofEveryToken.has(node.kind) && !nodeOutputs(node).some((out) => needed.has(out))) continue;
    for (const tensor of [...nodeInputs(node), ...nodeOutputs(node)]) needed.add(tensor);
  }
  return needed;
}

/**
 * Merges linears with the same input that are read together (q | k | v, k | v, gate | up) into one linear of several segments.
 */
export function mergeLinears(graph: Graph): Graph {
  const readers = readersOf(graph);
  const producer = new Map(graph.nodes.flatMap((node) => nodeOutputs(node).map((out) => [out, node] as const)));
  const tensors = [...graph.tensors];
  const replaced = new Map<Node, Node | undefined>();
  for (const node of graph.nodes) {
    if (!isJoining(node) || node.x.length < 2) continue;
    const linears = node.x.map((x) => producer.get(x)).filter((p) => p?.kind === 'linear');
    const first = linears[0];
    const unshared = node.x.every((x) => readers[x]?.length === 1);
    if (first === undefined || linears.length !== node.x.length || !unshared || linears.some((l) => l.x !== first.x))
      continue;
    const segments = linears.flatMap((l) => l.segments);
    const columns = segments.reduce((sum, segment) => sum + segment.rows, 0);
    const out = tensors.push({ rows: tensorSpec(graph, first.out).rows, columns }) - 1;
    for (const linear of linears) replaced.set(linear, undefined);
    replaced.set(first, { kind: 'linear', x: first.x, segments, out });
    replaced.set(node, { ...node, x: [out] });
  }
  const nodes = graph.nodes.flatMap((node) => {
    const now = replaced.has(node) ? replaced.get(node) : node;
    return now === undefined ? [] : [now];
  });
  return { ...graph, tensors, nodes };
}

/** True if the node reads several tensors as one, concatenated. */
function isJoining(node: Node): node is Extract<Node, { readonly x: readonly TensorId[] }> {
  return node.kind === 'glu' || node.kind === 'attention' || node.kind === 'sendQ' || node.kind === 'sendKV';
}

/** Fuses a residual add into the norm that follows it; the sum is written in place to the residual stream. */
export function fuseResidualAdds(graph: Graph): Graph {
  const readers = readersOf(graph);
  const dropped = new Set<Node>();
  const fused = new Map<Node, Node>();
  graph.nodes.forEach((add, index) => {
    if (add.kind !== 'add') return;
    const norm = graph.nodes[readers[add.out]?.[0] ?? -1];
    const lastReader = readers[add.left]?.at(-1);
    if (norm?.kind !== 'norm' || norm.add !== undefined || norm.x !== add.out || lastReader !== index) return;
    dropped.add(add);
    fused.set(norm, { ...norm, x: add.right, add: { residual: add.left, sum: add.out } });
  });
  return { ...graph, nodes: graph.nodes.filter((node) => !dropped.has(node)).map((node) => fused.get(node) ?? node) };
}
