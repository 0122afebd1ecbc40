// Cuts a model at its attention ops into slices that run on model workers, while attention workers compute the
// attention between them (Lamina, "automated model converter").
import {
  type AttentionNode,
  type Graph,
  type Node,
  nodeInputs,
  nodeOutputs,
  readersOf,
  type TensorId,
  tensorSpec,
} from './graph.ts';
import { FlowNetwork } from './min-cut.ts';

/** What a model worker computes between two attention ops. */
export interface ModelSlice {
  /**
   * Nodes in the order of execution: the Q projection and its inputs first, then `sendQ`; `sendKV` last. Inputs are the
   * carried context of the slice before, outputs that of this slice. Tensor ids are those of the whole model.
   */
  readonly graph: Graph;
  /** The attention that runs after this slice, on attention workers; undefined after the last slice. */
  readonly attention: AttentionNode | undefined;
  /** Bytes of the outputs, which the next slice or a later one reads besides the attention. */
  readonly carriedBytesPerToken: number;
}

/**
 * The slices around the n attention ops of a model, n + 1 in order. Nodes are cut where the fewest bytes are carried;
 * of equal cuts the earliest is taken, so that Q, K and V leave early.
 */
export function slice(graph: Graph): readonly ModelSlice[] {
  const slices: ModelSlice[] = [];
  let rest: Remainder = { nodes: graph.nodes, inputs: [] };
  for (const [call, attention] of graph.nodes.filter(isAttention).entries()) {
    const { nodes, carried, after } = cutAt(graph, rest, attention);
    slices.push({
      graph: {
        ...graph,
        nodes: inSendingOrder(graph, nodes, attention, call),
        inputs: rest.inputs,
        outputs: carried,
        logits: undefined,
        hidden: undefined,
        groups: [],
      },
      attention,
      carriedBytesPerToken: carried.reduce((sum, tensor) => sum + bytesPerToken(graph, tensor), 0),
    });
    rest = { nodes: [waitPartial(attention, call), ...after], inputs: carried };
  }
  const last: Graph = { ...graph, ...rest, groups: [] };
  return [...slices, { graph: last, attention: undefined, carriedBytesPerToken: 0 }];
}

/** The graph of a whole model for a model worker: all slices in one linear order, with the ops that send and wait. */
export function modelWorkerGraph(graph: Graph): Graph {
  return { ...graph, nodes: slice(graph).flatMap((each) => each.graph.nodes) };
}

/** Bytes of a carried tensor, which is float32. */
export function bytesPerToken(graph: Graph, tensor: TensorId): number {
  return tensorSpec(graph, tensor).columns * Float32Array.BYTES_PER_ELEMENT;
}

/** The nodes that no slice has yet, and the tensors that earlier slices computed for them. */
interface Remainder {
  readonly nodes: readonly Node[];
  readonly inputs: readonly TensorId[];
}

interface Cut {
  /** Nodes before the cut. */
  readonly nodes: readonly Node[];
  /** Tensors across the cut. */
  readonly carried: readonly TensorId[];
  readonly after: readonly Node[];
}

/**
 * The minimum cut of the remaining nodes without this attention. Before the cut are the inputs of the attention, after
 * it what depends on its output, later attentions and the output of the model.
 */
function cutAt(graph: Graph, { nodes: remaining, inputs }: Remainder, attention: AttentionNode): Cut {
  const nodes = remaining.filter((node) => node !== attention);
  const network = new FlowNetwork();
  const [source, sink] = [network.addVertex(), network.addVertex()];
  const vertices = new Map(nodes.map((node) => [node, network.addVertex()]));
  const vertexOf = (node: Node): number => vertices.get(node) ?? sink;
  const always = Number.POSITIVE_INFINITY;

  const readers = readersOf({ ...graph, nodes, outputs: [] });
  const tensors: { readonly tensor: TensorId; readonly producer: number; readonly vertex: number }[] = [];
  const addTensor = (tensor: TensorId, producer: number): void => {
    // A tensor is carried once for all of its readers after the cut.
    const vertex = network.addVertex();
    tensors.push({ tensor, producer, vertex });
    network.addEdge(producer, vertex, bytesPerToken(graph, tensor));
    if (tensor === graph.logits) network.addEdge(vertex, sink, always);
    for (const reader of readers[tensor]) {
      const reading = vertexOf(nodes[reader]);
      network.addEdge(vertex, reading, always);
      // A node before the cut has its inputs before the cut.
      network.addEdge(reading, producer, always);
    }
  };
  for (const tensor of inputs) addTensor(tensor, source);
  for (const [node, vertex] of vertices) {
    for (const tensor of nodeOutputs(node)) {
      addTensor(tensor, vertex);
      if (attention.x.includes(tensor)) network.addEdge(source, vertex, always);
    }
    if (node.kind === 'waitPartial') network.addEdge(source, vertex, always);
    if (node.kind === 'attention' || nodeInputs(node).includes(attention.out)) network.addEdge(vertex, sink, always);
  }

  const { sourceSide } = network.minimumCut(source, sink);
  const isBefore = (node: Node): boolean => sourceSide.has(vertexOf(node));
  return {
    nodes: nodes.filter(isBefore),
    carried: tensors.flatMap(({ tensor, producer, vertex }) =>
      sourceSide.has(producer) && !sourceSide.has(vertex) ? [tensor] : [],
    ),
    after: nodes.filter((node) => !isBefore(node)),
  };
}

/** The Q projection and its inputs, `sendQ`, the other nodes, `sendKV`; each part in the order of the model. */
function inSendingOrder(graph: Graph, nodes: readonly Node[], attention: AttentionNode, call: number): readonly Node[] {
  const { layer, heads, kvHeads, headDim, rope, qNorm, kNorm, eps, scale, softcap, alibi, x } = attention;
  const shape = { call, layer, heads, kvHeads, headDim, rope, eps };
  const q = leading(graph, x, heads * headDim);
  const kv = leading(graph, x.toReversed(), 2 * kvHeads * headDim).toReversed();
  const early = ancestors(nodes, q);
  return [
    ...nodes.filter((node) => early.has(node)),
    { kind: 'sendQ', ...shape, qNorm, scale, softcap, alibi, x: q },
    ...nodes.filter((node) => !early.has(node)),
    { kind: 'sendKV', ...shape, kNorm, x: kv },
  ];
}

/** The fewest tensors, from the first on, with so many columns. */
function leading(graph: Graph, tensors: readonly TensorId[], columns: number): readonly TensorId[] {
  let covered = 0;
  return tensors.filter((tensor) => {
    if (covered >= columns) return false;
    covered += tensorSpec(graph, tensor).columns;
    return true;
  });
}

/** Those of the nodes, in order, on which the tensors depend. */
function ancestors(nodes: readonly Node[], tensors: readonly TensorId[]): ReadonlySet<Node> {
  const needed = new Set(tensors);
  const found = new Set<Node>();
  for (const node of nodes.toReversed()) {
    if (!nodeOutputs(node).some((out) => needed.has(out))) continue;
    found.add(node);
    for (const tensor of nodeInputs(node)) needed.add(tensor);
  }
  return found;
}

function isAttention(node: Node): node is AttentionNode {
  return node.kind === 'attention';
}

function waitPartial({ layer, heads, kvHeads, headDim, out }: AttentionNode, call: number): Node {
  return { kind: 'waitPartial', call, layer, heads, kvHeads, headDim, out };
}
