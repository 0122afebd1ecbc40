// The symbolic graph of a model as plain data: nodes in order; each tensor is written once.

import type { Activation } from '../util/model-config.ts';
import type { LayerGroup } from '../util/step.ts';
import type { HeadShape, LayerRef } from './program.ts';
import type { RopeSpec } from './rope.ts';

export type TensorId = number;

/** `token`: a row for each token of the step. `logit`: a row for each token that needs logits. */
export interface TensorSpec {
  readonly rows: 'token' | 'logit';
  readonly columns: number;
}

/** A stored matrix (rows, columns) = (out, in) by its checkpoint name, with the bias of its outputs. */
export interface WeightRef {
  readonly name: string;
  readonly rows: number;
  readonly columns: number;
  readonly bias: string | undefined;
}

/** A stored vector of gains plus `offset`. */
export interface GainRef {
  readonly name: string;
  readonly offset: number;
}

/** A stored table (rows, hidden) of learned positions: a token at position p uses row p + offset. */
export interface PositionTable {
  /** Undefined: positions have no embeddings, and token types alone are added. */
  readonly name: string | undefined;
  readonly rows: number;
  readonly offset: number;
  /** A stored table (rows, hidden) of token types, added as well. */
  readonly types?: { readonly name: string; readonly rows: number } | undefined;
}

export type Node =
  | {
      readonly kind: 'embed';
      readonly weight: WeightRef;
      readonly scale: number;
      readonly positions: PositionTable | undefined;
      readonly out: TensorId;
    }
  /** With `sum`: sum = x + residual, out = norm(sum) * gain + bias. Without: out = norm(x) * gain + bias. */
  | {
      readonly kind: 'norm';
      readonly style: 'rms' | 'layer';
      readonly x: TensorId;
      readonly add: { readonly residual: TensorId; readonly sum: TensorId } | undefined;
      readonly gain: GainRef;
      readonly bias: string | undefined;
      readonly eps: number;
      readonly out: TensorId;
    }
  /** Outputs of the segments are concatenated. */
  | { readonly kind: 'linear'; readonly x: TensorId; readonly segments: readonly WeightRef[]; readonly out: TensorId }
  /** `x` concatenated: gate | up. */
  | { readonly kind: 'glu'; readonly activation: Activation; readonly x: readonly TensorId[]; readonly out: TensorId }
  | { readonly kind: 'activate'; readonly activation: Activation; readonly x: TensorId; readonly out: TensorId }
  /** left is the residual stream, if there is one. */
  | { readonly kind: 'add'; readonly left: TensorId; readonly right: TensorId; readonly out: TensorId }
  /** out = cap * tanh(x / cap) */
  | { readonly kind: 'softcap'; readonly cap: number; readonly x: TensorId; readonly out: TensorId }
  /** `x` concatenated: q | k | v. Writes K and V of every row to the pages, so every token row is computed. */
  | ({
      readonly kind: 'attention';
      readonly layer: LayerRef;
      readonly rope: RopeSpec | undefined;
      readonly qNorm: GainRef | undefined;
      readonly kNorm: GainRef | undefined;
      readonly eps: number;
      readonly scale: number;
      readonly softcap: number | undefined;
      readonly window: number | undefined;
      readonly alibi: boolean;
      /** Rows attend to all keys of their sequences, not only to those up to their own. */
      readonly bidirectional?: boolean | undefined;
      readonly x: readonly TensorId[];
      readonly out: TensorId;
    } & HeadShape)
  /** Token rows that need logits, compacted. */
  | { readonly kind: 'gather'; readonly x: TensorId; readonly out: TensorId }
  /** `x` concatenated begins with q, which leaves for the attention workers, normalised and rotated. */
  | ({
      readonly kind: 'sendQ';
      /** Number of the attention within the model, from 0; the same in its `sendKV` and `waitPartial`. */
      readonly call: number;
      readonly layer: LayerRef;
      readonly rope: RopeSpec | undefined;
      readonly qNorm: GainRef | undefined;
      readonly eps: number;
      /** Of the attention's scores, like the next two. */
      readonly scale: number;
      readonly softcap: number | undefined;
      readonly alibi: boolean;
      readonly x: readonly TensorId[];
    } & HeadShape)
  /** `x` concatenated ends with k | v, which leave for the attention workers, k normalised and rotated. */
  | ({
      readonly kind: 'sendKV';
      readonly call: number;
      readonly layer: LayerRef;
      readonly rope: RopeSpec | undefined;
      readonly kNorm: GainRef | undefined;
      readonly eps: number;
      readonly x: readonly TensorId[];
    } & HeadShape)
  /** The layer's attention of every row, as the attention workers return it. */
  | ({
      readonly kind: 'waitPartial';
      readonly call: number;
      readonly layer: LayerRef;
      readonly out: TensorId;
    } & HeadShape);

export type AttentionNode = Node & { readonly kind: 'attention' };

export interface Graph {
  readonly tensors: readonly TensorSpec[];
  readonly nodes: readonly Node[];
  /** Tensors that are given before the first node runs; none in the graph of a whole model. */
  readonly inputs: readonly TensorId[];
  /** Tensors that remain after the last node, besides the logits; none in the graph of a whole model. */
  readonly outputs: readonly TensorId[];
  readonly logits: TensorId | undefined;
  /** The input of the head: hidden states after the final norm. Undefined: the graph ends before. */
  readonly hidden: TensorId | undefined;
  readonly groups: readonly LayerGroup[];
  /** Stored matrices with a row for each token of the vocabulary. */
  readonly vocabularyNames: ReadonlySet<string>;
}

/** Tensors that a node reads. */
export function nodeInputs(node: Node): readonly TensorId[] {
  switch (node.kind) {
    case 'embed':
    case 'waitPartial':
      return [];
    case 'norm':
      return node.add === undefined ? [node.x] : [node.x, node.add.residual];
    case 'linear':
    case 'activate':
    case 'softcap':
    case 'gather':
      return [node.x];
    case 'glu':
    case 'attention':
    case 'sendQ':
    case 'sendKV':
      return node.x;
    case 'add':
      return [node.left, node.right];
  }
}

/** Tensors that a node writes. */
export function nodeOutputs(node: Node): readonly TensorId[] {
  if (node.kind === 'sendQ' || node.kind === 'sendKV') return [];
  return node.kind === 'norm' && node.add !== undefined ? [node.out, node.add.sum] : [node.out];
}

/** The node with its input tensors renamed. */
export function withInputs(node: Node, rename: (tensor: TensorId) => TensorId): Node {
  switch (node.kind) {
    case 'embed':
    case 'waitPartial':
      return node;
    case 'norm':
      return {
        ...node,
        x: rename(node.x),
        add: node.add === undefined ? undefined : { ...node.add, residual: rename(node.add.residual) },
      };
    case 'linear':
    case 'activate':
    case 'softcap':
    case 'gather':
      return { ...node, x: rename(node.x) };
    case 'glu':
    case 'attention':
    case 'sendQ':
    case 'sendKV':
      return { ...node, x: node.x.map(rename) };
    case 'add':
      return { ...node, left: rename(node.left), right: rename(node.right) };
  }
}

/** Indices of the nodes that read each tensor, in order. An output of the graph is read after the last node. */
export function readersOf(graph: Graph): readonly (readonly number[])[] {
  const readers: number[][] = graph.tensors.map(() => []);
  graph.nodes.forEach((node, index) => {
    for (const tensor of nodeInputs(node)) readers[tensor]?.push(index);
  });
  for (const tensor of graph.outputs) readers[tensor]?.push(graph.nodes.length);
  return readers;
}

export function tensorSpec(graph: Graph, tensor: TensorId): TensorSpec {
  const spec = graph.tensors[tensor];
  if (spec === undefined) throw new RangeError(`Cannot read tensor: no such id in the graph: ${tensor}`);
  return spec;
}
